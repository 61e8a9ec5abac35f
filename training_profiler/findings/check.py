"""One line of the quick checklist, of a run or of a trace."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

PASS: Final = "PASS"
FAIL: Final = "FAIL"
UNKNOWN: Final = "not measured"
UNLIMITED: Final = 1000  # characters
MIN_WIDTH: Final = 20  # of the column that is wrapped


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
