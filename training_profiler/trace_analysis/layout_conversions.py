"""Kernels with which a library converts tensors for its convolutions from NCHW to NHWC and back."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from training_profiler.trace_analysis import kernel_names
from training_profiler.trace_analysis.graphs import is_graph_launch
from training_profiler.trace_analysis.host_activity import is_conversion, span_of
from training_profiler.trace_analysis.intervals import covered, together
from training_profiler.trace_analysis.launches import Launches
from training_profiler.trace_analysis.load.columns import NONE, Columns, Ints
from training_profiler.trace_analysis.nesting import Nesting
from training_profiler.trace_analysis.scope import Scope


@dataclass(frozen=True, slots=True)
class LayoutConversions:
    """What the conversions take; ns."""

    kernels: int
    total_ns: int  # in which the device did nothing else
    saved_ns: int  # of the scope, without them
    is_miopen: bool  # whether they are MIOpen's


NO_CONVERSIONS: Final = LayoutConversions(0, 0, 0, False)


def layout_conversions(columns: Columns, nesting: Nesting, launches: Launches, scope: Scope) -> LayoutConversions:
    """Return the conversions of layout, without those in operators that copy.

    A convolution has two inputs and one output. Where most conversions are to NCHW, the tensors are in NHWC already.
    """
    which = columns.named(kernel_names.converts_layout, columns.is_of("kernel"))
    if not which.any() or 2 * columns.named(kernel_names.converts_to_nchw, which).sum() > which.sum():
        return NO_CONVERSIONS
    which &= ~is_conversion(columns, nesting, launches)
    others = span_of(columns, columns.is_gpu() & ~which)
    either = together(span_of(columns, which), others)
    begins, ends = (np.array([getattr(part, key) for part in scope.parts], np.int64) for key in ("begin_ns", "end_ns"))
    alone_ns = covered(either, begins, ends) - covered(others, begins, ends)
    idle_ns = np.array([part.idle_ns for part in scope.parts], np.int64)
    calls = launches.call[which]
    calls = calls[calls != NONE]
    calling = span_of(columns, calls[~is_graph_launch(columns)[calls]])
    return LayoutConversions(
        int(which.sum()),
        either.total_ns - others.total_ns,
        int(_saved_ns(alone_ns, idle_ns, covered(calling, begins, ends)).sum()),
        bool(columns.named(kernel_names.is_of_miopen, which).any()),
    )


def _saved_ns(alone_ns: Ints, idle_ns: Ints, calling_ns: Ints) -> Ints:
    """Return what each window is shorter without the conversions.

    If the device is idle for longer than they take, it waits for the host: then only their launches are saved.
    """
    saved_ns: Ints = np.maximum(alone_ns - idle_ns, np.minimum(calling_ns, idle_ns))
    return saved_ns
