"""Moments that all ranks share: barriers of the program, and gradient synchronization.

No rank leaves a sync point before all ranks have entered it, which shows how the clocks of the hosts differ.
"""

import time
from threading import get_ident
from typing import Final, NamedTuple

KEPT: Final = 16  # of each kind: the first 16, and at most 16 spread over all


class SyncPoint(NamedTuple):
    """One sync point; ns of the wall clock."""

    number: int  # counted within its kind; decides alone whether it is kept
    key: str  # the same on every rank
    enter_ns: int
    leave_ns: int


class SyncPoints:
    """A bounded list of sync points. Every rank keeps the same ones."""

    def __init__(self) -> None:
        self._kept: dict[str, list[SyncPoint]] = {}
        self._stride: dict[str, int] = {}  # by kind: every n-th is kept, a power of two
        self._calls = 0
        self._thread: int | None = None
        self._is_inside = False

    @property
    def kept(self) -> list[tuple[str, int, int]]:
        """Return (key, enter, leave), ns of the wall clock."""
        return [point[1:] for points in list(self._kept.values()) for point in points]

    def add(self, kind: str, number: int, key: str, enter_ns: int, leave_ns: int) -> None:
        """Add the sync point ``number`` of ``kind``, counted from 0, if it is one to be kept."""
        stride = self._stride.get(kind, 1)
        while number >= KEPT * stride:
            stride *= 2
        if number >= KEPT and number % stride:
            return
        self._stride[kind] = stride
        before = [point for point in self._kept.get(kind, ()) if point.number < KEPT or point.number % stride == 0]
        self._kept[kind] = [*before, SyncPoint(number, key, enter_ns, leave_ns)]

    def call_begins(self) -> int | None:
        """Count a collective call of all ranks. Return its number, or None for a call inside another.

        All ranks make these calls in the same order within a thread, but not across threads. So only those of the
        first thread are counted.
        """
        ident = get_ident()
        if self._thread is None:
            self._thread = ident
        if self._is_inside or self._thread != ident:
            return None
        self._is_inside = True
        self._calls += 1
        return self._calls - 1

    def call_ends(self, number: int, enter_ns: int | None) -> None:
        """Add the finished call; ``enter_ns`` is None if it failed."""
        self._is_inside = False
        if enter_ns is not None:
            self.add("all", number, f"all:{number}", enter_ns, time.time_ns())
