"""What is said of windows: why one was ended or dropped, and why none opened."""

from collections.abc import Callable
from typing import Final

OTHERS: Final = "a profiler of the program's own began"
LEFT: Final = "the run ended in it"
ELSEWHERE: Final = "when steps came to end on another thread"
DROPS: Final = (OTHERS, LEFT)  # what is recorded then is not kept
CALLED_OFF: Final = "the run ended before it was written"


class Sayings:
    """Says each sentence once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()

    def once(self, sentence: str) -> None:
        """Say it, unless it was said before."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)

    def gave_way(self) -> None:
        """Say that a window was dropped for a profiler of the program's own."""
        self.once(f"{OTHERS} while a capture window was open: the window was dropped, and is tried again later")

    def none_now(self, why_not: str) -> None:
        """Say that a window that is due cannot open."""
        self.once(f"no capture window now, tried again later: {why_not}")

    def used_up(self, windows: int, is_asked_for: bool) -> None:
        """Say that the run has had all its windows."""
        if is_asked_for:
            had = "1 window of the run is" if windows == 1 else f"{windows} windows of the run are"
            self._say(f"a capture was asked for, but the {had} used up (windows=)")
        else:
            self.once(f"no further capture windows: {windows} {'was' if windows == 1 else 'were'} opened (windows=)")
