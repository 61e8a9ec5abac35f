"""What trials have shown of the fixes that the findings of a run name."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from training_profiler.findings.finding import Finding
from training_profiler.trials.results import (
    FAILED,
    FASTER,
    NO_VERDICT,
    NOT_CONFIRMED,
    NOT_SHOWN,
    SLOWER,
    Results,
    Row,
    best_of_each,
)
from training_profiler.trials.treatments import EXCLUSIVE, worth_trying

PREDICTED: Final = "would not help"
WITHOUT_GAIN: Final = (NOT_SHOWN, NOT_CONFIRMED, SLOWER, NO_VERDICT, FAILED)


def with_trials(findings: Iterable[Finding], results: Results | None) -> list[Finding]:
    """Return the findings; each whose fix was tried says what that brought."""
    rows = [] if results is None else results.tried
    return [replace(each, tried=_text(_rows_of(each, rows), each.fix)) if each.fix else each for each in findings]


def _rows_of(finding: Finding, rows: Iterable[Row]) -> list[Row]:
    """Return the changes that may be the fix; ceilings only where nothing else was tried."""
    families = worth_trying(finding)
    rows = [row for row in rows if row.family in families]
    return [row for row in rows if not row.is_ceiling] or rows


def _text(rows: Sequence[Row], fix: str) -> str:
    gains = best_of_each((row for row in rows if row.verdict == FASTER), EXCLUSIVE)
    if gains:
        shown = ", ".join(f"{row.name} {row.effect}{' (a ceiling)' * row.is_ceiling}" for row in gains)
        # Such as "Workers would not help", which is predicted from CPU times.
        is_against = PREDICTED in fix and any(not row.is_ceiling for row in gains)
        return f"{shown}, which was measured, unlike the prediction" if is_against else shown
    names = {verdict: [row.name for row in rows if row.verdict == verdict] for verdict in WITHOUT_GAIN}
    return "; ".join(f"{verdict} ({', '.join(same)})" for verdict, same in names.items() if same)
