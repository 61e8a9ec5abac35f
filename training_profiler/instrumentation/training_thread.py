"""Which calls a patch records: those of the training thread, and none inside another recorded call or update."""

import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.recording.fields import Fields, field

FREE: Final = 0
FORWARD: Final = 1
FETCH: Final = 2
BACKWARD: Final = 3
OTHER_PATCH: Final = 4  # such as a checkpoint; only collectives are recorded inside
COLLECTIVE: Final = 5  # nothing is recorded inside
CAPTURE: Final = 6  # of a CUDA graph: nothing is executed, so nothing is recorded inside


class TrainingThread(Fields):
    """The state that every patch reads first.

    All threads share one object. Calls on threads other than the training thread are not part of the training.
    """

    busy_with: int = field(0)  # the kind of call that the training thread is in
    ident: int = field(1)  # of the training thread; 0 for none yet
    confirmed_detector: LoopDetector | None = field(2)  # takes events that only a training has, without a question
    function: int = field(3)  # of the autograd function under way, negative if it is called without gradients
    fetching: set[int]  # threads in a fetch before confirmation: another thread may train meanwhile

    def __init__(self) -> None:
        self.busy_with = FREE
        self._before_capture = FREE  # the same, before the capture under way
        self.function = 0
        self.ident = 0
        self.has_called_module = False  # with gradients enabled
        self.is_confirmed = False  # it has computed gradients or updated parameters
        self.confirmed_detector = None
        self._owner: Callable[[], threading.Thread | None] = lambda: None  # the confirmed thread, while it lives
        self.fetching = set()

    def is_current(self, is_module_call: bool = False) -> bool:
        """Return whether the calling thread is the training thread.

        The first thread that asks is, until another one shows a stronger sign of training: a module call with gradients
        enabled (``is_module_call``) is stronger than a fetch, and gradients and updates are proof. Between equals the
        main thread wins.
        """
        ident = get_ident()
        if ident in self.fetching:
            return False
        if self.ident != ident:
            self._reset_if_dead()
            is_stronger = is_module_call and not self.is_confirmed
            is_stronger = is_stronger and (not self.has_called_module or ident == threading.main_thread().ident)
            if self.ident and not is_stronger:
                return False
            self.ident, self.busy_with = ident, FREE
        self.has_called_module |= is_module_call
        return True

    def claim(self) -> bool:
        """Confirm the calling thread, which computes gradients or updates; return whether it is the training thread."""
        ident = get_ident()
        if self.ident != ident:
            self._reset_if_dead()
        if self.is_confirmed or ident in self.fetching:
            return self.is_confirmed and self.ident == ident
        if not self.is_current(is_module_call=True):
            self.ident = ident
            self.busy_with = FREE
        self.is_confirmed = True
        self._owner = weakref.ref(threading.current_thread())
        return True

    def _reset_if_dead(self) -> None:
        """Let another thread follow one that has ended, e.g. with a thread for each trial of a search."""
        owner = self._owner()
        if self.is_confirmed and (owner is None or not owner.is_alive()):
            self.reset()

    def fetch_begins(self) -> int:
        """Mark the calling thread as fetching a batch; return the argument of ``fetch_ends``."""
        ident = get_ident()
        if self.is_confirmed:
            self.busy_with = FETCH
        else:  # a thread that only fetches may be the first to ask
            self.fetching.add(ident)
        return ident

    def fetch_ends(self, ident: int) -> None:
        """Mark the fetch as ended."""
        if ident in self.fetching:
            self.fetching.discard(ident)
        elif ident == self.ident:
            self.busy_with = FREE

    def capture_begins(self) -> None:
        """Mark the calling thread as capturing a CUDA graph, if it is the training thread or may become it."""
        if self.ident in (0, get_ident()) and self.busy_with != CAPTURE:
            self._before_capture, self.busy_with = self.busy_with, CAPTURE

    def capture_ends(self, ident: int) -> None:
        """Mark the capture that thread ``ident`` began as ended."""
        if self.ident in (0, ident) and self.busy_with == CAPTURE:
            self.busy_with = self._before_capture

    def reset(self) -> None:
        """Return to the initial state: in a forked process, or after the end of the training thread."""
        self.ident, self.has_called_module, self.is_confirmed, self.busy_with = 0, False, False, FREE
        self.function = 0
        self.confirmed_detector = None
        self.fetching.clear()


class OpenUpdates(Fields):
    """Distinguishes outermost updates from nested ones: of a base class, or of a wrapped optimizer."""

    _backwards: int = field(0)  # of the program, at the last update

    def __init__(self) -> None:
        # The id of the optimizer, and the id and the code of its frame, outermost first. A frame keeps all of its
        # locals alive, and the id of one that has ended may be that of a caller's, which has other code.
        self.open: list[tuple[int, int, CodeType | None]] = []
        self._backwards = 0

    def begin(self, optimizer: Any, frame: FrameType | None) -> tuple[bool, bool]:
        """Return whether this update is outermost, and whether one before it ended by an exception."""
        had_failed = bool(self.open) and not self.is_running(frame)
        self.open.append((id(optimizer), id(frame), None if frame is None else frame.f_code))
        return len(self.open) == 1, had_failed

    def end(self, optimizer: Any) -> bool:
        """Return whether the update that ended was outermost."""
        while self.open:
            if self.open.pop()[0] == id(optimizer):
                return not self.open
        return False

    def follows_backward(self, backwards: int) -> bool:
        """Return whether there are more backward passes than at the last update; remember them for the next."""
        follows, self._backwards = backwards != self._backwards, backwards
        return follows

    def is_running(self, frame: FrameType | None) -> bool:
        """Return whether ``frame`` is within an update; forget updates that ended by an exception."""
        while self.open and frame is not None and (frame := frame.f_back) is not None:
            if id(frame) == self.open[0][1] and frame.f_code is self.open[0][2]:
                return True
        self.open.clear()  # no hook is called when an update raises
        return False
