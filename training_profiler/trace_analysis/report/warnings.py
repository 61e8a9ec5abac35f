"""What speaks against the figures of a trace, as lines."""

from training_profiler.findings.tables import wrapped
from training_profiler.trace_analysis.analysis import Analysis


def warnings_of(analysis: Analysis, of: str = "") -> list[str]:
    """Return why figures cannot be trusted, and what of the file could not be read; ``of`` names the trace."""
    lines = [wrapped(f"{of}Incomplete: {doubt.message}.", rest="  ") for doubt in analysis.doubts]
    return lines + [wrapped(f"{of}File: {note}.", rest="  ") for note in analysis.notes]
