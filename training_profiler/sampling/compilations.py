"""Counts and times what torch.compile compiles, and what it compiles again."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.instrumentation.patching import after_import
from training_profiler.model.program import CompileFacts
from training_profiler.sampling.frames import outwards
from training_profiler.sampling.user_code import UserCode, line_of, places_of_this_process

CALLBACKS: Final = "torch._dynamo.callback"  # private: may be gone
MOST_FRAMES: Final = 200  # from dynamo up to the program


class Compilations:
    """Receives dynamo's callbacks at the begin and the end of each compilation."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._graphs = self._recompiled = 0
        self._ns = self._recompiled_ns = 0
        self._places: Counter[str] = Counter()
        self._code: UserCode | None = None
        self._cancel: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to listen, now or when dynamo is imported."""
        if CALLBACKS in sys.modules:
            self.keep_listening()
        elif self._cancel is None:
            self._cancel = after_import(CALLBACKS, self.keep_listening)

    def keep_listening(self) -> None:
        """Register with dynamo again: ``torch._dynamo.reset`` drops all callbacks."""
        handler = getattr(sys.modules.get(CALLBACKS), "callback_handler", None)
        if handler is not None and self.begins not in handler.start_callbacks:
            handler.register_start_callback(self.begins)
            handler.register_end_callback(self.ends)

    def close(self) -> None:
        """Stop listening."""
        if self._cancel is not None:
            self._cancel()
        handler = getattr(sys.modules.get(CALLBACKS), "callback_handler", None)
        if handler is not None:
            for callbacks, own in ((handler.start_callbacks, self.begins), (handler.end_callbacks, self.ends)):
                if own in callbacks:
                    callbacks.remove(own)

    def begins(self, args: Any = None) -> None:
        """Handle the begin of a compilation; torch 2.4 passes nothing. Must not raise."""
        self._began_ns = time.perf_counter_ns()

    def ends(self, args: Any = None) -> None:
        """Handle the end of a compilation. Must not raise."""
        try:
            took_ns = time.perf_counter_ns() - self._began_ns if self._began_ns else 0
            self._began_ns = 0
            self._ns += took_ns
            _, _, attempt = str(args.compile_id).partition("/")  # "frame/number of its compilation"
            is_again = attempt.isdigit() and int(attempt) > 0
            if is_again:
                self._recompiled_ns += took_ns
            if "DYNAMO" not in str(args.callback_trigger):
                return  # the backward graph of a compilation that was counted
            self._graphs += 1
            if is_again:
                self._recompiled += 1
                self._places[self._place(sys._getframe(1))] += took_ns
        except Exception:  # nothing here may end a compilation
            return

    def _place(self, frame: FrameType | None) -> str:
        code = self._code = self._code or UserCode(places_of_this_process())
        for each in outwards(frame, MOST_FRAMES):
            if (shown := code.shown(each.f_code.co_filename)) is not None:
                return f"{shown}:{line_of(each.f_code, each.f_lasti)} {each.f_code.co_name}"
        return ""

    def facts(self) -> CompileFacts | None:
        """Return what was compiled so far; None for nothing."""
        if not self._graphs:
            return None
        place = self._places.most_common(1)[0][0] if self._places else ""
        return CompileFacts(self._graphs, self._ns / NS_PER_S, self._recompiled, self._recompiled_ns / NS_PER_S, place)
