"""What speaks against the figures of a trace, as lines."""

from collections.abc import Sequence

from training_profiler.findings.tables import wrapped
from training_profiler.trace_analysis.analysis import Analysis


def warnings_of(analysis: Analysis, of: str = "") -> list[str]:
    """Return why figures cannot be trusted, and what of the file could not be read; ``of`` names the trace."""
    lines = [wrapped(f"{of}Incomplete: {doubt.message}.", rest="  ") for doubt in analysis.doubts]
    return lines + [wrapped(f"{of}File: {note}.", rest="  ") for note in analysis.notes]


def one_step_lines(traces: Sequence[Analysis]) -> list[str]:
    """Return that findings are of a single step, if all of these traces have no more."""
    if not all(trace.is_one_step for trace in traces):
        return []
    one = "One step is" if len(traces) == 1 else "One step of each trace is"
    return [wrapped(f"{one} marked: whether others are like it is not known. Record three or more."), ""]
