"""One line of the quick checklist, of a run or of a trace, and how the lines are written."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

PASS: Final = "PASS"
FAIL: Final = "FAIL"
UNKNOWN: Final = "not measured"


class Check(NamedTuple):
    """What is looked at, the target in words, and the measured figure with whether it is met."""

    what: str
    target: str
    verdict: str
    measured: str  # "" where it is not


def check(what: str, target: str, figure: float | None, is_met: Callable[[float], bool]) -> Check:
    """Return the line of a share of 0 to 1, which is None where it was not measured."""
    if figure is None:
        return Check(what, target, UNKNOWN, "")
    return Check(what, target, PASS if is_met(figure) else FAIL, f"{figure:.1%}")


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return checks as text, a line each."""
    width, measured_width = max(len(one.what) for one in checks), max(len(one.measured) for one in checks)
    return [
        f"{one.verdict:<{len(UNKNOWN)}}  {one.what:<{width}}  {one.measured:>{measured_width}}  (target {one.target})"
        for one in checks
    ]
