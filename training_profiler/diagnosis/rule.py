"""What a rule is: a function with its threshold beside it, and the book of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import Snapshot

Find = Callable[[Snapshot, float], Finding | None]

# A share means nothing before a few steps have been seen.
STEPS_NEEDED: Final = 10
# No alarm about trifles: what is worth less than this over the run is not mentioned, whatever its share.
MIN_SAVING_S: Final = 0.02


class Rule(NamedTuple):
    """A rule of the diagnosis."""

    code: str
    threshold: float  # by default
    find: Find
    is_of_step: bool  # what it is worth would make every step shorter

    def __call__(self, snapshot: Snapshot) -> Finding | None:
        """Return what the rule finds by the threshold that holds for this run; None where it has nothing to say."""
        found = self.find(snapshot, threshold(snapshot, self.code))
        if found is None or not self.is_of_step or not found.potential_saving_s or snapshot.step is None:
            return found
        step = snapshot.step
        # Of the steps' whole time, and told of the average step, which leaves out those of capture windows.
        saved_share = found.potential_saving_s / step.settled_s if step.disturbed_count and step.settled_s else None
        saved_s = (
            found.potential_saving_s / max(1, step.settled_count) if saved_share is None else saved_share * step.avg_s
        )
        return replace(found, step_s=step.avg_s, step_if_gone_s=max(0.0, step.avg_s - saved_s))


_BOOK: dict[str, Rule] = {}


def rule(code: str, threshold: float, is_of_step: bool = True) -> Callable[[Find], Rule]:
    """Return what makes a function into the rule ``code``, and notes its threshold for whoever overrides it."""

    def make(find: Find) -> Rule:
        made = _BOOK[code] = Rule(code, threshold, find, is_of_step)
        return made

    return make


def thresholds() -> Mapping[str, float]:
    """Return the threshold of every rule by its code, as it is by default."""
    return {made.code: made.threshold for made in _BOOK.values()}


def threshold(snapshot: Snapshot, code: str) -> float:
    """Return the threshold of rule ``code`` in this run."""
    return snapshot.thresholds.get(code, _BOOK[code].threshold)


def has_enough_steps(snapshot: Snapshot) -> bool:
    """Return whether shares of the step can be trusted."""
    return snapshot.step is not None and snapshot.step.settled_count >= STEPS_NEEDED
