"""Loops in Python in the forward pass, as samples of its lines show them."""

from collections import defaultdict
from dataclasses import replace
from typing import Final

from training_profiler.snapshot.snapshot import PYTHON, LineStats, Snapshot
from training_profiler.tables.sections import FORWARD_PASS

LOOPS: Final = 0.15  # of a function's time between calls, at the turns of its loops


def loops(snapshot: Snapshot) -> list[LineStats]:
    """Return the lines of forward passes in functions that loop in Python: without calls, with operators in between."""
    lines = [line for line in snapshot.lines_of_steps(FORWARD_PASS) if not line.inside]
    whole: defaultdict[tuple[str, str], float] = defaultdict(float)
    turns: defaultdict[tuple[str, str], float] = defaultdict(float)
    for line in lines:
        whole[line.file, line.function] += _without_calls(line)
        turns[line.file, line.function] += line.called.get(PYTHON, 0.0)
    return [
        replace(line, share=_without_calls(line))
        for line in lines
        if _without_calls(line) and turns[line.file, line.function] >= LOOPS * whole[line.file, line.function]
    ]


def _without_calls(line: LineStats) -> float:
    """Return the share of a line without the functions that it calls: ``mask[i, j] = 0`` calls none."""
    return max(0.0, line.share - sum(share for name, share in line.called.items() if name != PYTHON))
