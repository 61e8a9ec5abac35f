"""How the attempts before one fared, of a training that its launcher started anew."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training_profiler.rank_figures import AttemptFigures
from training_profiler.runs.found import Found, choose, find_journals
from training_profiler.runs.tail import last_of
from training_profiler.units import NS_PER_S


def attempts_in(folder: Path, before: int) -> tuple[AttemptFigures, ...]:
    """Return the attempts of the run in ``folder`` that came before number ``before``, from rank 0's journals."""
    return attempts_before(choose(find_journals(folder, "rank0"), folder).journals, before)


def attempts_before(journals: Iterable[Found], number: int) -> tuple[AttemptFigures, ...]:
    """Return the attempts before ``number``, each from the journal of its lowest rank; those without one are not there.

    ``journals`` are in the order of attempts and ranks.
    """
    figures: dict[int, AttemptFigures] = {}
    for journal in journals:
        if journal.attempt < number and journal.attempt not in figures and journal.begin is not None:
            attempt = _figures(journal)
            if attempt is not None:
                figures[journal.attempt] = attempt
    return tuple(figures[number] for number in sorted(figures))


def _figures(journal: Found) -> AttemptFigures | None:
    begin = journal.begin or {}

    def until_then(interval: dict[str, Any]) -> tuple[int, float]:
        return (
            int(interval["first_step"]) + len(interval["step_ns"]),
            (interval["end_ns"] - begin["begin_ns"]) / NS_PER_S,
        )

    try:
        steps, wall_s = last_of(journal.path, "interval", until_then) or (0, 0.0)
        end = last_of(journal.path, "end", _ended_by)
    except OSError:
        return None
    return AttemptFigures(journal.attempt, steps, wall_s, end[0] if end else None, is_ended=end is not None)


def _ended_by(end: dict[str, Any]) -> tuple[str | None]:
    return (None if end["ended_by"] is None else str(end["ended_by"]),)
