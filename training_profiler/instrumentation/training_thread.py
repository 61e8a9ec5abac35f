"""Whose calls a seam looks at: the training thread's, and none from inside of another seam."""

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector

FREE: Final = 0
FORWARD: Final = 1
FETCH: Final = 2
BACKWARD: Final = 3
OTHER_PATCH: Final = 4  # a checkpoint, a norm: nothing inside is looked at but collectives
COLLECTIVE: Final = 5  # nothing inside is looked at


class TrainingThread:
    """The state that every seam reads first; ``busy`` is what the training thread is inside of.

    One for all threads: calls that other threads make meanwhile are not the training's.
    """

    __slots__ = ("_owner", "busy", "fetching", "is_confirmed", "is_likely", "thread", "training")

    def __init__(self) -> None:
        self.busy = FREE
        self.thread = 0  # ident of the training thread; 0 until somebody claims to be
        self.is_likely = False  # it has called a module with gradients on
        self.is_confirmed = False  # it has computed gradients or updated parameters
        self.training: LoopDetector | None = None  # what the proven thread's seams tell events to
        self._owner: Callable[[], threading.Thread | None] = lambda: None  # the proven thread, while it lives
        self.fetching: set[int] = set()  # threads inside of a fetch while none is proven: another may train meanwhile

    def is_current(self, is_likely: bool = False) -> bool:
        """Return whether the calling thread is the training's.

        The first to ask is, until another does what is more like training: ``is_likely`` is more than a fetch,
        and gradients and updates are beyond doubt. Where two are alike, the main thread is.
        """
        ident = threading.get_ident()
        if ident in self.fetching:
            return False
        if self.thread != ident:
            self._release_if_dead()
        if self.thread != ident and self._takes_over(ident, is_likely):
            self.thread = ident
            self.busy = FREE
        if self.thread != ident:
            return False
        self.is_likely |= is_likely
        return True

    def _takes_over(self, ident: int, is_likely: bool) -> bool:
        if self.thread == 0:
            return True
        if self.is_confirmed or not is_likely:
            return False
        return not self.is_likely or ident == threading.main_thread().ident

    def claim(self) -> bool:
        """Return whether the calling thread, which trains beyond doubt, is the training's."""
        ident = threading.get_ident()
        if self.thread != ident:
            self._release_if_dead()
        if self.is_confirmed or ident in self.fetching:
            return self.is_confirmed and self.thread == ident
        if not self.is_current(is_likely=True):
            self.thread = ident
            self.busy = FREE
        self.is_confirmed = True
        self._owner = weakref.ref(threading.current_thread())
        return True

    def _release_if_dead(self) -> None:
        """Let another thread be the training's where the one that was has ended, as with a thread a trial."""
        owner = self._owner()
        if self.is_confirmed and (owner is None or not owner.is_alive()):
            self.begin_anew()

    def fetch_begins(self) -> int:
        """Note that the training thread is inside of a fetch; return what ``fetch_ends`` takes."""
        ident = threading.get_ident()
        if self.is_confirmed:
            self.busy = FETCH
        else:  # a thread that only fetches may be the first to be seen
            self.fetching.add(ident)
        return ident

    def fetch_ends(self, ident: int) -> None:
        """Note that the fetch is over."""
        if ident in self.fetching:
            self.fetching.discard(ident)
        elif ident == self.thread:
            self.busy = FREE

    def begin_anew(self) -> None:
        """Start anew: in a forked process, or after the training's thread."""
        self.thread, self.is_likely, self.is_confirmed, self.busy = 0, False, False, FREE
        self.training = None
        self.fetching.clear()
