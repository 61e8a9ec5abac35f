"""What operators achieve beside what their device can do, as text."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from training_profiler.base.table import table, with_details, wrapped
from training_profiler.trace_analysis.report.formats import ms, ms_number, percent
from training_profiler.trace_analysis.roofline import Rate
from training_profiler.trace_analysis.trace import Trace

MOST_ROWS: Final = 25
UNKNOWN: Final = "unknown"
_OTHER_ARGUMENTS: Final = re.compile(r"(,\[\])+\]$")  # at the end of shapes: arguments that are not tensors
_ABOVE: Final = (
    "Above 100%: faster than the counted work allows. The data was in a cache, an input was expanded, or the algorithm "
    "needs fewer operations (Winograd, FFT) or computes in a smaller type."
)


def roofline(analysis: Trace) -> str:
    """Return the operators with most device time, each with its rates and its share of the roof."""
    found = analysis.roofline
    if not found.rates:
        return "This trace contains no kernels of operators whose work can be counted."
    shown = found.rates[:MOST_ROWS]
    rows = [
        (
            rate.name.removeprefix("aten::"),
            rate.calls,
            ms_number(rate.device_ns),
            _tflops(rate),
            _number(rate.tb_s),
            percent(rate.share_of_roof) or ("over 100%" if rate.is_above_roof else UNKNOWN),
            rate.bound,
        )
        for rate in shown
    ]
    headers = ("operator", "calls", "device\nms", "TFLOP/s", "TB/s", "of roof", "bound")
    lines = [] if analysis.is_whole else ["Kernels may be missing in this trace: rates can be too high."]
    lines += [with_details(table(headers, rows), [_detail(rate) for rate in shown])]
    more = len(found.rates) - len(shown)
    if more:
        lines += [f"({more} more; --json has all)"]
    lines += ["", *_peaks(shown), f"{percent(found.rated_ns / found.kernel_ns)} of kernel time has a known roof"]
    lines += _lacking(found.rates)
    if any(rate.is_above_roof for rate in shown):
        lines += [wrapped(_ABOVE)]
    return "\n".join(lines)


def _detail(rate: Rate) -> str:
    return ", ".join(filter(None, (rate.dtype, _OTHER_ARGUMENTS.sub("]", rate.shapes))))


def _lacking(rates: Sequence[Rate]) -> list[str]:
    """Return what would have to be known, with the device time of the operators that lack it."""
    lacking: Counter[str] = Counter()
    for rate in rates:
        for what in rate.lacks:
            lacking[what] += rate.device_ns
    if not lacking:
        return []
    listed = ", ".join(f"{what} ({ms(ns)})" for what, ns in lacking.most_common())
    return [wrapped(f"Not known, by device time: {listed}")]


def _tflops(rate: Rate) -> str:
    return "" if rate.only_moves else _number(rate.tflops)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}" if value < 1 else f"{value:.1f}"


def _peaks(rates: Sequence[Rate]) -> list[str]:
    """Return a line for each peak that was used."""
    known = [f"{rate.peak_tflops:g} TFLOP/s in {rate.peak_type}" for rate in rates if rate.peak_tflops is not None]
    known += [f"{rate.peak_tb_s:g} TB/s" for rate in rates if rate.peak_tb_s is not None]
    return [wrapped(f"Peak of the device: {', '.join(dict.fromkeys(known))}")] if known else []
