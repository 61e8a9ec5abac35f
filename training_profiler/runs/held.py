"""Lines of a journal that has no file yet."""

from collections import deque
from typing import Final

MOST_LINES: Final = 2_000
MOST_BYTES: Final = 8_000_000


class HeldLines:
    """Keeps lines in their order, as many as may be held: the oldest go first.

    Of what a rank tells of itself only the last is kept, for its sums only grow.
    """

    def __init__(self, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0  # intervals that went
        self._most_lines, self._most_bytes = most_lines, most_bytes
        self._lines: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._of_rank = b""

    def add(self, kind: str, line: bytes) -> None:
        """Keep one more line."""
        if kind == "rank":
            self._of_rank = line
            return
        self._lines.append((kind, line))
        self._bytes += len(line)
        while len(self._lines) > self._most_lines or self._bytes > self._most_bytes:
            gone, oldest = self._lines.popleft()
            self._bytes -= len(oldest)
            self.dropped += gone == "interval"

    @property
    def has_measured(self) -> bool:
        """Whether there is more to tell than that a run began and ended."""
        return any(kind == "interval" for kind, _ in self._lines)

    def take(self) -> bytes:
        """Return all of them in one piece, and keep none."""
        taken = b"".join(line for _, line in self._lines) + self._of_rank
        self._lines.clear()
        self._bytes, self._of_rank = 0, b""
        return taken
