"""What a rule and a finding are; for runs and for traces."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from training_profiler.findings.losses import Change, losses_text

Evidence = Mapping[str, float | int | str]

SHORTEST_CLAIM: Final = 24  # characters; a colon before them introduces the claim, as in "GPU 0: ..."
PASS: Final = "PASS"
FAIL: Final = "FAIL"
UNKNOWN: Final = "not measured"
UNLIMITED: Final = 1000  # characters
MIN_WIDTH: Final = 20  # of the column that is wrapped


class Fix(str):
    """What to do, and which changes of the training that names."""

    __slots__ = ("changes",)

    def __new__(cls, text: str, _changes: tuple[Change, ...] = ()) -> "Fix":
        """Return the text."""
        return super().__new__(cls, text)

    def __init__(self, _text: str, changes: tuple[Change, ...] = ()) -> None:
        self.changes = changes

    @property
    def as_next(self) -> "Fix":
        """The fix as a part of a longer sentence."""
        return Fix(self[0].lower() + self[1:], self.changes)


def joined(fixes: Sequence[Fix]) -> Fix:
    """Return several fixes as one, with semicolons between them."""
    return Fix("; ".join(fixes), tuple(change for fix in fixes for change in fix.changes))


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, the measured numbers behind it, and what to change.

    ``potential_saving_s`` is how much shorter the measured run, or the recorded steps of a trace, would have been
    without the cost. It is 0 if that is not known or nothing needs to change. ``step_s`` is the mean step and
    ``step_if_gone_s`` the same without the cost; both are None for a cost outside of steps, and in traces.
    ``saving_range_s`` is the least and the most that a change is likely to save; None if unknown. ``tried`` is what
    trials of the fix have shown; empty without any.
    """

    code: str
    message: str
    evidence: Evidence
    potential_saving_s: float = 0.0
    fix: str = ""
    step_s: float | None = None
    step_if_gone_s: float | None = None
    saving_range_s: tuple[float, float] | None = None
    tried: str = ""

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the training that the fix names."""
        return self.fix.changes if isinstance(self.fix, Fix) else ()

    @property
    def losses(self) -> str:
        """What the fix does to the losses of the training; "" where it names no change."""
        return losses_text(self.changes)

    @property
    def advice(self) -> str:
        """The fix, what it does to the losses, and what trials of it have shown."""
        losses = f". Losses: {self.losses}" if self.losses else ""
        return f"{self.fix}{losses}" + (f". Tried: {self.tried}" if self.tried else "")


def brief(message: str) -> str:
    """Return the claim of a finding's message, without the places and the figures in parentheses after it."""
    depth = 0
    for at, character in enumerate(message):
        depth += (character == "(") - (character == ")")
        is_end = message.startswith("; ", at) or (message.startswith(": ", at) and at >= SHORTEST_CLAIM)
        if is_end and not depth:
            message = message[:at]
            break
    return re.sub(r"\s*\([^()]*\)$", "", message)


class Check(NamedTuple):
    """A target in words, the measured value, and whether it meets the target."""

    what: str
    target: str
    verdict: str
    measured: str  # "" if not measured


def check(what: str, target: str, figure: float | None, is_met: Callable[[float], bool]) -> Check:
    """Return the check of a share of 0 to 1; None if it was not measured."""
    if figure is None:
        return Check(what, target, UNKNOWN, "")
    return Check(what, target, PASS if is_met(figure) else FAIL, f"{figure:.1%}")


def check_lines(checks: Sequence[Check], width: int = UNLIMITED) -> list[str]:
    """Return the checks as text; one that is longer than ``width`` takes several lines."""
    measured_width = max(len(check.measured) for check in checks)
    target_width = max(len(check.target) for check in checks)
    room = width - len(f"{UNKNOWN}      (target )") - measured_width - target_width
    what_width = min(max(len(check.what) for check in checks), max(MIN_WIDTH, room))
    lines = []
    for check in checks:
        what, *rest = textwrap.wrap(check.what, what_width)
        verdict, measured = f"{check.verdict:<{len(UNKNOWN)}}", f"{check.measured:>{measured_width}}"
        lines.append(f"{verdict}  {what:<{what_width}}  {measured}  (target {check.target})")
        lines += [f"{'':<{len(UNKNOWN)}}  {line}" for line in rest]
    return lines
