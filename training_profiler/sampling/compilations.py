"""Counts and times what torch.compile compiles, and what it compiles again."""

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.instrumentation.patching import after_import
from training_profiler.model.program import (
    BREAK,
    LENGTH,
    LIMIT,
    OTHER_GUARD,
    SHAPE,
    STATE,
    VALUE,
    CompileFacts,
    CompileReason,
)
from training_profiler.sampling.frames import outwards
from training_profiler.sampling.user_code import RESUMED, UserCode, line_of, places_of_this_process

CALLBACKS: Final = "torch._dynamo.callback"  # private: may be gone
METRICS: Final = "torch._dynamo.utils"  # private, too; with reasons since torch 2.6
MOST_FRAMES: Final = 200  # from dynamo up to the program
MOST_REASONS, MOST_TEXT = 8, 100  # characters of a reason
# Guards as dynamo writes them: the kind, and what changed. "L['x']" is how earlier versions write the variable x.
GUARDS: Final = (
    (SHAPE, re.compile(r"tensor '(.+)' (?:size|stride) mismatch at index (\d+)")),
    (SHAPE, re.compile(r"(?:.* <= |.*\()?([\w.\[\]']+)\.size\(\)\[(\d+)\]")),
    (STATE, re.compile(r"(GLOBAL_STATE changed|tensor '.+' \w+ mismatch)")),
    (LENGTH, re.compile(r"(?:len\((.+)\) == \d+|not (?!___)(.+))$")),
    (VALUE, re.compile(r"(.+?) == ")),
    (OTHER_GUARD, re.compile("(.*)")),
)


class Compilations:
    """Receives dynamo's callbacks at the begin and the end of each compilation."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._graphs = self._recompiled = 0
        self._ns = self._recompiled_ns = 0
        self._places: Counter[str] = Counter()
        self._reasons: dict[tuple[str, str, str], tuple[int, float]] = {}  # times and seconds
        self._reason_of: dict[str, tuple[str, str, str]] = {}  # by dynamo's name of a recompilation
        self._functions: dict[str, str] = {}  # by dynamo's number of them
        self._restarts: dict[str, str] = {}  # function -> why its last graph ended
        self._cache_hits = self._cache_misses = 0
        self._newest: Any = None  # of dynamo's metrics that were read
        self._lock = threading.Lock()
        self._code: UserCode | None = None
        self._cancel: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to listen, now or when dynamo is imported."""
        self._newest = next(reversed(_recorded()), None)
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
        self._read()  # dynamo keeps the last 64
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

    def _read(self) -> None:
        """Add what dynamo has recorded since the last call; a compilation is recorded after its end."""
        if not self._lock.acquire(blocking=False):
            return  # the other thread adds it
        try:
            recorded = _recorded()
            newest = next((at for at, each in enumerate(recorded, 1) if each is self._newest), 0)
            for self._newest in recorded[newest:]:
                self._add(self._newest)
        except Exception:  # private records of any version
            return
        finally:
            self._lock.release()

    def _add(self, entry: Any) -> None:
        """Add a record of dynamo; fields that this version of torch lacks count as empty."""

        def of(name: str) -> Any:
            return getattr(entry, name, None)

        self._cache_hits += of("inductor_fx_local_cache_hit_count") or 0
        self._cache_misses += of("inductor_fx_local_cache_miss_count") or 0
        seconds = (of("duration_us") or 0) / 1e6 or of("entire_frame_compile_time_s") or 0.0
        text, compile_id, name = of("recompile_reason"), str(of("compile_id")), str(of("co_name") or "")
        function = self._shown(of("co_filename"), of("co_firstlineno"), name)
        frame = compile_id.partition("/")[0]
        function = self._functions[frame] = function or self._functions.get(frame, "")
        if text:
            self._reason_of[compile_id] = (*guard_of(text), self._guard_place(text) or function)
        reason = self._reason_of.get(compile_id)
        if re.search("(recompile|cache_size)[_ ]limit", str(of("fail_reason"))):
            self._count((LIMIT, *(reason or ("", "", ""))[1:]), 1, 0.0)
        elif reason is not None:  # without a text it is the backward graph
            self._count(reason, 1 if text else 0, seconds)
        _, is_rest, rest = name.partition(RESUMED)
        before, _, line = rest.rpartition("_at_")
        base = before if is_rest else name
        if is_rest and function and line.isdigit() and not text:
            place = self._shown(of("co_filename"), int(line), before)
            self._count((BREAK, self._restarts.get(base, ""), place), 1, seconds)
        if name:
            self._restarts[base] = next((_first_line(why) for why in sorted(of("restart_reasons") or ())), "")

    def _count(self, reason: tuple[str, str, str], times: int, seconds: float) -> None:
        so_far = self._reasons.get(reason, (0, 0.0))
        self._reasons[reason] = so_far[0] + times, so_far[1] + seconds

    def _guard_place(self, text: str) -> str:
        """Return the innermost line of the user's that a guard's text names."""
        lines = re.findall(r'File "(.+)", line (\d+), in (.+)', text)
        return next((place for file, line, name in reversed(lines) if (place := self._shown(file, line, name))), "")

    def _shown(self, file: str | None, line: int | str | None, name: str) -> str:
        code = self._code = self._code or UserCode(places_of_this_process())
        shown = code.shown(file) if file else None
        name = re.sub(rf"^{RESUMED}(.+)_at_\d+$", r"\1", name)
        return "" if shown is None else f"{shown}:{line} {name}"

    def _place(self, frame: FrameType | None) -> str:
        for each in outwards(frame, MOST_FRAMES):
            line = line_of(each.f_code, each.f_lasti)
            if place := self._shown(each.f_code.co_filename, line, each.f_code.co_name):
                return place
        return ""

    def facts(self) -> CompileFacts | None:
        """Return what was compiled so far; None for nothing."""
        self._read()
        if not self._graphs:
            return None
        place = self._places.most_common(1)[0][0] if self._places else ""
        reasons = [CompileReason(*reason, *figures) for reason, figures in self._reasons.items()]
        reasons.sort(key=lambda reason: -reason.seconds)
        return CompileFacts(
            self._graphs,
            self._ns / NS_PER_S,
            self._recompiled,
            self._recompiled_ns / NS_PER_S,
            place,
            tuple(reasons[:MOST_REASONS]),
            self._cache_hits,
            self._cache_misses,
        )


def guard_of(text: str) -> tuple[str, str]:
    """Return the kind of a reason for a recompilation, and what changed, without its values."""
    guard = re.sub(r"[LG]\['(\w+)'\]", r"\1", text.partition(": ")[2] or text)
    guard = re.split(r"\s+#|\n", guard)[0].strip()
    for kind, pattern in GUARDS:
        if found := pattern.match(guard):
            return kind, ", ".join(part for part in found.groups() if part)[:MOST_TEXT]
    return OTHER_GUARD, ""


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:MOST_TEXT]


def _recorded() -> list[Any]:
    metrics = getattr(sys.modules.get(METRICS), "get_compilation_metrics", None)
    return [] if metrics is None else metrics()
