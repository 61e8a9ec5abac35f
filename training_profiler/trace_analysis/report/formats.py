"""How the views of a trace write times, shares, amounts of memory and names of kernels."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from training_profiler.base.table import table, with_details, wrapped
from training_profiler.base.units import BYTES_PER_MIB, NS_PER_MS, NS_PER_US, bytes_text
from training_profiler.findings.finding import Finding
from training_profiler.trace_analysis.report.trace_json import saving_ms
from training_profiler.trace_analysis.rules.registry import RULES
from training_profiler.trace_analysis.trace import Trace

Item = TypeVar("Item")
BYTES_PER_KIB: Final = 1024
_NOISE: Final = re.compile(r"^void |at::native::|\(anonymous namespace\)::|at::detail::")
_LONG: Final = 1200  # characters; names of kernels can have many thousands


def ms_number(ns: float) -> str:
    """Return a time in ms, without its unit."""
    return f"{ns / NS_PER_MS:.3f}"


def ms(ns: float) -> str:
    """Return a time in ms, with its unit."""
    return f"{ms_number(ns)} ms"


def us(ns: float) -> str:
    """Return a time in us, with its unit."""
    return f"{ns / NS_PER_US:.1f} us"


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 as a percentage; "" for None."""
    return "" if share is None else f"{share:.1%}"


def amount(count: int | None) -> str:
    """Return an amount of bytes with its unit; "" for None."""
    if count is None:
        return ""
    if abs(count) < BYTES_PER_KIB:
        return f"{count} B"
    return bytes_text(count) if abs(count) >= BYTES_PER_MIB / 10 else f"{count / BYTES_PER_KIB:.1f} KiB"


def kernel(name: str) -> str:
    """Return the name of a kernel without the prefixes that all kernels of torch have."""
    return _NOISE.sub("", name[:_LONG])


def listing(
    headers: Sequence[str],
    items: Sequence[Item],
    row_of: Callable[[Item], Sequence[object]],
    most: int,
    *,
    detail_of: Callable[[Item], str] | None = None,
    left: Sequence[int] = (0,),
    more: str = "more; --json has all",
) -> str:
    """Return a table of the first items, each with a detail below it, and how many more there are."""
    shown, left_out = items[:most], len(items) - most
    text = table(headers, [row_of(item) for item in shown], left)
    text = with_details(text, [detail_of(item) for item in shown] if detail_of else [])
    return text + (f"\n({left_out} {more})" if left_out > 0 else "")


def finding_lines(finding: Finding, analysis: Trace, traces: str = "") -> list[str]:
    """Return a finding with its saving, and its fix below; ``traces`` names the traces it holds for."""
    saving = saving_text(finding, analysis)
    return [wrapped(f"{traces}{finding.message}.{saving}", "- ", "  "), wrapped(f"{finding.fix}.", "  ", "  ")]


def saving_text(finding: Finding, analysis: Trace) -> str:
    """Return what a change could save, as a sentence that follows the finding; "" if that is unknown."""
    saved_ms = saving_ms(finding)
    if saved_ms is None:
        return ""
    saved = f"{saved_ms:.1f} ms or more" if RULES[finding.code].saves_at_least else f"up to {saved_ms:.1f} ms"
    return f" Could save {saved} of {analysis.scope.extent}."


def without_text(analysis: Trace) -> str:
    """Return how much of the idle time is none of the program, which no rule counts; "" if that changes nothing."""
    if percent(analysis.utilization) == percent(analysis.utilization_in_steps):
        return ""
    parts = (
        f"{ms(analysis.recording_ns)} of the recording itself" if analysis.recording_ns else "",
        f"{ms(analysis.unseen_ns)} of work that was not recorded" if analysis.unseen_ns else "",
    )
    said = " and ".join(filter(None, parts))
    return f", {percent(analysis.utilization)} without {said}" if said else ""


def not_checked_lines(missing: Mapping[str, Sequence[str]]) -> list[str]:
    """Return which rules could not run, a line for what each of them needs."""
    if not missing:
        return []
    lines = [wrapped(f"- {what}: {', '.join(codes)}", "  ", "    ") for what, codes in missing.items()]
    return ["", "Not checked, because the trace lacks:", *lines]


def warnings_of(analysis: Trace, of: str = "") -> list[str]:
    """Return why figures cannot be trusted, and what of the file could not be read; ``of`` names the trace."""
    lines = [wrapped(f"{of}Incomplete: {doubt.message}.", rest="  ") for doubt in analysis.doubts]
    return lines + [wrapped(f"{of}File: {note}.", rest="  ") for note in analysis.notes]


def one_step_lines(traces: Sequence[Trace]) -> list[str]:
    """Return that findings are of a single step, if all of these traces have no more."""
    if not all(trace.is_one_step for trace in traces):
        return []
    one = "One step is" if len(traces) == 1 else "One step of each trace is"
    return [wrapped(f"{one} marked: whether others are like it is not known. Record three or more."), ""]
