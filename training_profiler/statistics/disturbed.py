"""Steps that a capture window makes slower: they say nothing of the training's own pace."""


class DisturbedSteps:
    """Ranges of steps, counted from 1; told by the training thread as they begin, asked by the one that drains."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int | None]] = []

    def begin(self, step: int) -> None:
        """Note that steps are disturbed from ``step`` on, until told otherwise."""
        self._ranges.append((step, None))

    def end(self, last: int) -> None:
        """Note that ``last`` is the last one."""
        if self._ranges and self._ranges[-1][1] is None:
            self._ranges[-1] = (self._ranges[-1][0], last)

    def among(self, before: int, count: int) -> list[int]:
        """Return which of the ``count`` steps after the first ``before`` are, counted from 0."""
        found: set[int] = set()
        for first, last in list(self._ranges):
            end = count if last is None else min(count, last - before)
            found.update(range(max(0, first - 1 - before), end))
        return sorted(found)
