"""One budget for all work of the profiler in the training's process, as a share of the run's time.

What a training calls cannot wait: its patches, drains, and the threads that write what was handed to them. It is only
counted. Samples and reports can wait, so they share what is left. Each has its part of that, over the whole run: a part
that has used more makes longer pauses until it is even.
"""

from collections.abc import Callable, Mapping
from typing import Final

Clock = Callable[[], int]

SHARE: Final = 0.005  # of the run's time, for everything
LEAST: Final = 0.002  # for all that can wait, where everything else leaves less: figures of lines need some samples
LINES: Final = "line sampler"
REPORTS: Final = "periodic reports"
EPOCHS: Final = "summaries of epochs"
MACHINE: Final = "system monitor"
WORKERS: Final = "loader workers' collector"
PARTS: Final = {LINES: 0.6, REPORTS: 0.1, EPOCHS: 0.1, MACHINE: 0.1, WORKERS: 0.1}  # of what is left
LONGEST_PAUSE_S: Final = 10.0
# Not so for lines: a phase of a few seconds, such as a validation, would have none.
LONGEST_OF: Final = {LINES: 0.25}
_S: Final = 1_000_000_000


class CostBudget:
    """The costs of one run so far, and what may still be spent. Costs are CPU time in ns: it is when others wait.

    Args:
        clock: of the run.
        begin_ns: when the run began.
        counted: returns the cost so far of each part that cannot wait.
    """

    def __init__(self, clock: Clock, begin_ns: int, counted: Mapping[str, Callable[[], float]] | None = None) -> None:
        self._clock, self._begin_ns = clock, begin_ns
        self._counted = counted or {}
        self._paces = {part: Pace(self, part) for part in PARTS}

    def pace(self, part: str) -> "Pace":
        """Return the pace of one of ``PARTS``."""
        return self._paces[part]

    @property
    def run_ns(self) -> int:
        """The run's time so far."""
        return max(0, self._clock() - self._begin_ns)

    def left_ns(self) -> float:
        """Return what all parts that can wait may have spent by now."""
        run_ns = self.run_ns
        others_ns = sum(spent_ns() for spent_ns in self._counted.values())
        others_ns += sum(max(0.0, pace.spent_ns - PARTS[part] * SHARE * run_ns) for part, pace in self._paces.items())
        return max(LEAST * run_ns, SHARE * run_ns - others_ns)

    def notes(self) -> list[str]:
        """Return what all parts cost together, and what gave way for that."""
        run_ns = self.run_ns
        spent = {part: spent_ns() for part, spent_ns in self._counted.items()}
        spent |= {part: float(pace.spent_ns) for part, pace in self._paces.items()}
        total_ns = sum(spent.values())
        if not run_ns or not total_ns:
            return []
        costs = [f"{part} {ns / run_ns:.2%}" for part, ns in sorted(spent.items(), key=lambda row: -row[1])]
        text = ", ".join(cost for cost in costs if not cost.endswith(" 0.00%"))
        notes = [f"CPU time of the profiler, on all its threads: {total_ns / run_ns:.2%} of the run's time ({text})"]
        return notes + [note for pace in self._paces.values() if (note := pace.note()) is not None]


class Pace:
    """When one part may work again. Used on one thread."""

    def __init__(self, budget: CostBudget, part: str) -> None:
        self.spent_ns = self.refused = 0
        self._budget, self._part = budget, part
        self._allowed = self._latest_ns = 0
        self._pauses = 0
        self._longest_s = LONGEST_OF.get(part, LONGEST_PAUSE_S)
        self._wanted_s = self._paused_s = 0.0

    def spend(self, ns: int) -> None:
        """Add what the part has just cost."""
        self.spent_ns += ns
        self._latest_ns = ns

    def allows(self, free: int = 0) -> bool:
        """Return whether the part may do its work once more, and count it; the first ``free`` times it always may."""
        if self._allowed < free or self.spent_ns + self._latest_ns <= self._may_ns():
            self._allowed += 1
            return True
        self.refuse(1)
        return False

    def refuse(self, times: int) -> None:
        """Count so many times at which the part was not asked, because ``refuses_for_ns`` said that it may not work."""
        self.refused += times

    def refuses_for_ns(self) -> int:
        """Return for how long ``allows`` surely refuses from now on; it may for longer."""
        over_ns = self.spent_ns + self._latest_ns - self._may_ns()
        # What is left grows by the share of the run, and by that of each part that has used more and pauses.
        return max(0, int(over_ns / (PARTS[self._part] * SHARE * (1 + sum(PARTS.values())))))

    def pause_s(self, wanted_s: float, spent_ns: int, free: int = 0) -> float:
        """Return how long to wait until the next time.

        Args:
            wanted_s: the pause without a budget.
            spent_ns: what the part has cost so far.
            free: so many first pauses are as long as wanted.
        """
        latest_ns, self.spent_ns = spent_ns - self.spent_ns, spent_ns
        pause_s = wanted_s
        if self._pauses >= free:  # adding up all costs takes time, too
            may_ns = self._may_ns()
            over_ns = self.spent_ns - may_ns
            if over_ns > 0:
                share = may_ns / max(1, self._budget.run_ns) or PARTS[self._part] * LEAST
                # Half of its part at most, so that the part is even at some time.
                longest_s = max(self._longest_s, 2 * latest_ns / share / _S)
                pause_s = max(wanted_s, min(LONGEST_PAUSE_S, longest_s, over_ns / share / _S))
        self._pauses += 1
        self._wanted_s += wanted_s
        self._paused_s += pause_s
        return pause_s

    def note(self) -> str | None:
        """Return that the part worked more seldom than wanted; None if it did not."""
        if self._paused_s <= 1.1 * self._wanted_s:
            return None
        made, wanted = self._pauses / self._paused_s, self._pauses / self._wanted_s
        return (
            f"{self._part}: {_rate(made)} times a second and not {_rate(wanted)}, because the profiler's budget is "
            f"{SHARE:.1%} of the run"
        )

    def _may_ns(self) -> float:
        return PARTS[self._part] * self._budget.left_ns()


def unlimited(part: str = LINES) -> Pace:
    """Return a pace that allows everything, as in a run without end."""
    return CostBudget(lambda: 1 << 62, 0).pace(part)


def _rate(a_second: float) -> str:
    return f"{a_second:.2g}" if a_second < 99.5 else f"{a_second:.0f}"
