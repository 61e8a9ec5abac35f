"""Views of what is done where: operators, code, kernels, rates beside the device's peaks, and communication."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from training_profiler.base.table import table, wrapped
from training_profiler.base.units import counted
from training_profiler.trace_analysis.code_places import TracedLine, TracedPlaces
from training_profiler.trace_analysis.communication import BusBandwidth, RankCollective
from training_profiler.trace_analysis.operators import Kernel, Rate
from training_profiler.trace_analysis.report_figures import amount, kernel, listing, ms, ms_number, percent, us
from training_profiler.trace_analysis.report_files import counter_rows, operator_rows, place_rows
from training_profiler.trace_analysis.trace import Trace

MOST_ROWS: Final = 25
MOST_PLACES: Final = 15
MOST_LATE: Final = 3  # ranks that a line names
LINE: Final = "line"
UNKNOWN: Final = "unknown"
_WITHOUT: Final = (
    "This trace has no annotations, modules or stacks of Python: record with "
    "torch.profiler.profile(with_stack=True), or mark parts with torch.profiler.record_function()."
)
_LEGEND: Final = (
    "A moment belongs to the innermost place, so self times add up; total includes inner places, and a place within "
    "itself counts once. Gaps are those of 30 us or more."
)
_OTHER_ARGUMENTS: Final = re.compile(r"(,\[\])+\]$")  # at the end of shapes: arguments that are not tensors
_ABOVE: Final = (
    "Above 100%: faster than the counted work allows. The data was in a cache, an input was expanded, or the algorithm "
    "needs fewer operations (Winograd, FFT) or computes in a smaller type."
)


def operators(analysis: Trace, sort: str) -> str:
    """Return the operators, each with its section and shapes."""
    found = operator_rows(analysis, sort)
    details = [
        ", ".join(str(part) for part in (row["section"] and f"in {row['section']}", row["shapes"]) if part)
        for row in found.rows[:MOST_ROWS]
    ]
    return found.text(MOST_ROWS, details)


def counters(analysis: Trace) -> str:
    """Return the counters, beside when the device is busy and its gaps."""
    note = "Means by time; busy, gaps: samples over 90% in work or in a gap of 30 us or more"
    return counter_rows(analysis).text(MOST_ROWS, note=note)


def code(analysis: Trace) -> str:
    """Return a table for each kind of place that the trace has: where the host is, what it launches, and gaps."""
    found = analysis.code
    kinds = (
        ("section", "sections", found.sections),
        ("nn.Module", "modules", found.modules),
        (LINE, "lines", found.lines),
    )
    tables = [_places(header, kind, places, analysis) for header, kind, places in kinds if places.rows]
    if found.sampled:
        tables.append(_sampled(found.sampled, analysis.has_gpu))
    return "\n\n".join([*tables, wrapped(_LEGEND)]) if tables else wrapped(_WITHOUT)


def _places(header: str, kind: str, places: TracedPlaces, analysis: Trace) -> str:
    is_line = header == LINE
    found = place_rows(kind, analysis, f"{header}\n(times in ms)", _file_and_line if is_line else str)
    names = [place.name for place in places.rows[:MOST_PLACES]] if is_line else []
    idle_ns = places.elsewhere_idle_ns
    elsewhere = f"(gaps outside of these: {ms_number(idle_ns)} ms)" if idle_ns else ""
    return found.text(MOST_PLACES, names, elsewhere)


def _sampled(sampled: Sequence[TracedLine], has_gpu: bool) -> str:
    count = sum(row.samples for row in sampled)

    def cells(row: TracedLine) -> tuple[object, ...]:
        shown = _file_and_line(row.name), row.samples, percent(row.samples / count), row.in_gaps
        return shown if has_gpu else shown[:-1]

    headers = (f"line\n({counted(count, 'sample')})", "samples", "share", *(("in gaps",) if has_gpu else ()))
    return listing(headers, sampled, cells, MOST_PLACES, detail_of=lambda row: row.name)


def _file_and_line(line: str) -> str:
    return line.partition(" in ")[0].rpartition("/")[2]


def kernels(analysis: Trace) -> str:
    """Return the kernels by name, and what they have in common."""
    found = analysis.kernels
    if not found.count:
        return "This trace contains no kernels."

    def share(ns: int) -> str:
        return percent(ns / max(1, found.total_ns))

    def cells(row: Kernel) -> tuple[object, ...]:
        blocks = "" if row.blocks_per_sm is None else f"{row.blocks_per_sm:.1f}"
        times = ms(row.total_ns), share(row.total_ns), us(row.mean_ns)
        return row.kind, row.calls, *times, percent(row.occupancy), blocks

    headers = ("kernel", "calls", "total", "share", "mean", "occupancy", "blocks/SM")
    lines = [
        listing(headers, found.rows[:MOST_ROWS], cells, MOST_ROWS, detail_of=lambda row: kernel(row.name)),
        "",
        f"{counted(found.count, 'kernel')}, {ms(found.total_ns)} in total",
        f"Under 10 us: {found.short_count} kernels, {percent(found.short_share)} of the time",
        f"Under 100 us: {percent(found.below_100us_share)} of the time",
        f"Tensor cores, by name: {percent(found.tensor_core_share)} of kernel time",
        f"Flash or fused attention: {ms(found.flash_ns)}",
    ]
    if found.launch_known_count:
        lines.append(
            f"Shorter than the call that launched them: {found.launch_bound_count} of {found.launch_known_count}"
        )
    by_kind = ", ".join(f"{kind} {share(ns)}" for kind, ns in found.by_kind_ns.items())
    lines += [wrapped(f"By kind: {by_kind}", rest="  ")]
    return "\n".join([*lines, f"Unclassified: {percent(found.unclassified_share)} of kernel time"])


def roofline(analysis: Trace) -> str:
    """Return the operators with most device time, each with its rates and its share of the roof."""
    found = analysis.roofline
    if not found.rates:
        return "This trace contains no kernels of operators whose work can be counted."
    shown = found.rates[:MOST_ROWS]
    lines = [] if analysis.is_whole else ["Kernels may be missing in this trace: rates can be too high."]
    known = [f"{rate.peak_tflops:g} TFLOP/s in {rate.peak_type}" for rate in shown if rate.peak_tflops is not None]
    known += [f"{rate.peak_tb_s:g} TB/s" for rate in shown if rate.peak_tb_s is not None]

    def cells(rate: Rate) -> tuple[object, ...]:
        rates = "" if rate.only_moves else _rate(rate.tflops, 1), _rate(rate.tb_s, 1)
        of_roof = percent(rate.share_of_roof) or ("over 100%" if rate.is_above_roof else UNKNOWN)
        return rate.name.removeprefix("aten::"), rate.calls, ms_number(rate.device_ns), *rates, of_roof, rate.bound

    def detail(rate: Rate) -> str:
        return ", ".join(filter(None, (rate.dtype, _OTHER_ARGUMENTS.sub("]", rate.shapes))))

    headers = ("operator", "calls", "device\nms", "TFLOP/s", "TB/s", "of roof", "bound")
    lines += [
        listing(headers, found.rates, cells, MOST_ROWS, detail_of=detail),
        "",
        *([wrapped(f"Peak of the device: {', '.join(dict.fromkeys(known))}")] if known else []),
        f"{percent(found.rated_ns / found.kernel_ns)} of kernel time has a known roof",
        *_lacking("device time", ((rate.lacks, rate.device_ns) for rate in found.rates)),
    ]
    return "\n".join([*lines, wrapped(_ABOVE)] if any(rate.is_above_roof for rate in shown) else lines)


def _rate(value: float | None, least: int) -> str:
    """Return a rate with three digits below ``least``, else with one after the point."""
    return UNKNOWN if value is None else f"{value:.3g}" if value < least else f"{value:.1f}"


def _lacking(by: str, lacks: Iterable[tuple[Sequence[str], int]]) -> list[str]:
    lacking: Counter[str] = Counter()
    for missing, ns in lacks:
        lacking.update(dict.fromkeys(missing, ns))
    listed = ", ".join(f"{what} ({ms(ns)})" for what, ns in lacking.most_common())
    return [wrapped(f"Not known, by {by}: {listed}")] if lacking else []


def communication(analysis: Trace, over_ranks: Sequence[RankCollective]) -> str:
    """Return the collectives, how fast they are, and how ranks wait for each other."""
    if not analysis.collectives:
        return _no_communication(analysis)
    rows = []
    for row in analysis.collectives:
        hidden = percent(row.hidden_ns / row.total_ns if row.total_ns else None)
        rows.append((row.kind, row.count, amount(row.bytes), ms(row.total_ns), hidden))
    lines = [table(("collective", "count", "sent", "time", "hidden behind compute"), rows)]
    lines += ["", *_bus_bandwidth(analysis.bus_bandwidths)]
    return "\n".join([*lines, "", communication_over_ranks(over_ranks)] if over_ranks else lines)


def _no_communication(analysis: Trace) -> str:
    if analysis.host_collectives:
        return wrapped(on_host(analysis))
    if not analysis.has_gpu or analysis.kernels.are_known:
        return "This trace contains no communication."
    unknown = percent(analysis.kernels.unclassified_share)
    return f"No kernel is known to communicate; {unknown} of kernel time is of unknown kind."


def on_host(analysis: Trace) -> str:
    """Return the collectives that the host runs, in threads of their own: they may overlap with all else."""
    calls = [f"{call.name} {ms(call.total_ns)} in {counted(call.count, 'call')}" for call in analysis.host_collectives]
    return f"Communication by threads of the host: {', '.join(calls)}"


def _bus_bandwidth(found: Sequence[BusBandwidth]) -> list[str]:
    def cells(row: BusBandwidth) -> tuple[object, ...]:
        of = row.kind, amount(row.message_bytes) or UNKNOWN, row.group_size or UNKNOWN, row.count
        of_link = percent(row.share_of_link) or ("over 100%" if row.is_above_link else UNKNOWN)
        return *of, _rate(row.mean_gb_s, 10), _rate(row.best_gb_s, 10), of_link

    headers = ("bus bandwidth\n(GB/s)", "message", "group", "runs", "mean", "best", "best, of\nthe link")
    text = listing(headers, found, cells, MOST_PLACES)
    links = dict.fromkeys(
        f"{row.link.gb_s:g} GB/s in each direction ({row.link.source})" for row in found[:MOST_PLACES] if row.link
    )
    lacking = _lacking("time of communication", ((row.lacks, row.total_ns) for row in found))
    return [text, *(wrapped(f"The link: {link}") for link in links), *lacking]


def communication_over_ranks(over_ranks: Sequence[RankCollective]) -> str:
    """Return for each kind of collective the time of transfer and of waiting for the last rank."""
    rows = []
    for row in over_ranks:
        share = percent(row.waiting_ns / (row.waiting_ns + row.transfer_ns) if row.waiting_ns else 0.0)
        rows.append((row.kind, row.count, us(row.transfer_ns), us(row.waiting_ns), share, _late(row)))
    return table(("mean per run\nover ranks", "runs", "transfer", "waiting", "waiting\nshare", "waited for"), rows)


def _late(collective: RankCollective) -> str:
    if len(collective.late) < 2:
        return f"rank {collective.late[0][0] if collective.late else collective.latest_rank}"
    return "ranks " + ", ".join(f"{rank} ({share:.0%})" for rank, share in collective.late[:MOST_LATE])
