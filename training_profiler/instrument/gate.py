"""Whose calls a seam looks at: the training thread's, and none from inside of another seam."""

import threading
from typing import Final

FREE: Final = 0
FORWARD: Final = 1
FETCH: Final = 2
BACKWARD: Final = 3
OTHER_SEAM: Final = 4  # a checkpoint, a norm: nothing inside is looked at


class Gate:
    """The state that every seam reads first; ``busy`` is what the training thread is inside of.

    One for all threads: calls that other threads make meanwhile are not the training's.
    """

    __slots__ = ("busy", "is_proven", "thread")

    def __init__(self) -> None:
        self.busy = FREE
        self.thread = 0  # ident of the training thread; 0 until somebody claims to be
        self.is_proven = False  # it has computed gradients or updated parameters

    def is_mine(self, is_likely: bool = False) -> bool:
        """Return whether the calling thread is the training's.

        The first to ask is, until another proves to be, or until the main thread does what ``is_likely`` training.
        """
        ident = threading.get_ident()
        if self.thread == 0:
            self.thread = ident
        elif is_likely and not self.is_proven and ident != self.thread and ident == threading.main_thread().ident:
            self.thread = ident
            self.busy = FREE
        return self.thread == ident

    def claim(self) -> bool:
        """Return whether the calling thread, which trains beyond doubt, is the training's."""
        ident = threading.get_ident()
        if self.thread != ident:
            if self.is_proven:
                return False
            self.thread = ident
            self.busy = FREE
        self.is_proven = True
        return True
