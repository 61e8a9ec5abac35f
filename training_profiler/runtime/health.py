"""The cost of the profiler and the notes under "Profiler health"."""

import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import FrameType
from typing import Any, Final

from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import OTHER_NAMES
from training_profiler.base.text import MOST_OF_ERROR, printable
from training_profiler.base.units import NS_PER_S, counted
from training_profiler.model.program import CallSite, CpuSpeed
from training_profiler.model.snapshot import PROFILER, Health
from training_profiler.recording.implementation import Clock, Implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.safety.fault_guard import SHARE, FaultGuard

SPEED_SHARE: Final = 0.001  # of the run that the measurement may take
LEAST_SPEED_S, MOST_SPEED_S = 0.01, 0.06
SIDE: Final = 384  # of the matrices: large enough for full speed, small enough for a millisecond
CHAIN: Final = 100  # operations of the shortest kind, forward and backward
HALF: Final = ("bfloat16", "float16")  # which a CPU without units for them computes slower than float32
DTYPES: Final = ("float32", "float64", *HALF)


def budget_s(run_s: float) -> float:
    """Return how long measuring may take after a run of ``run_s``; 0 for a run too short."""
    allowed_s = min(MOST_SPEED_S, SPEED_SHARE * run_s)
    return allowed_s if allowed_s >= LEAST_SPEED_S else 0.0


def measure(torch: Any, dtype: str, seconds: float) -> CpuSpeed | None:
    """Return the speed of matrix products in ``dtype``, and of the shortest operations; None for another dtype."""
    if dtype not in DTYPES:
        return None
    with torch.enable_grad():
        operator_s = _best_s(lambda: _short_operations(torch), seconds / 3) / (2 * CHAIN)
    gflops = _gflops(torch, dtype, 2 * seconds / 3)
    return CpuSpeed(dtype, gflops, operator_s, _gflops(torch, "float32", seconds / 3) if dtype in HALF else 0.0)


def _gflops(torch: Any, dtype: str, seconds: float) -> float:
    with torch.no_grad():
        left, right = (torch.full((SIDE, SIDE), 0.5, dtype=getattr(torch, dtype)) for _ in range(2))
        product_s = _best_s(lambda: torch.mm(left, right), seconds)
    return 2 * SIDE**3 / product_s / 1e9


def _short_operations(torch: Any) -> None:
    value = start = torch.ones(8, requires_grad=True)
    for _ in range(CHAIN):
        value = value * 1.0
    torch.autograd.grad(value.sum(), start)


def _best_s(work: Any, seconds: float) -> float:
    """Return the shortest time of ``work``, which other programs delay now and then; at least two are made."""
    best_s, ends_s, count = float("inf"), time.perf_counter() + seconds, 0
    while count < 2 or time.perf_counter() < ends_s:
        began_s = time.perf_counter()
        work()
        best_s, count = min(best_s, time.perf_counter() - began_s), count + 1
    return max(best_s, 1e-9)


CALIBRATION_ROUNDS, CALIBRATION_SPANS = 5, 400  # about 1 ms together
# Cost of a patched call in empty sections of the same recorder, by the time between two such calls. Measured with the
# recorder in Python: 2 to 5 where they are 30 us apart (an agent that acts; the smallest step of benchmarks.patches).
# With longer steps the training evicts the code of the patches from the caches: 8 to 18 (benchmarks.switched). The
# recorder in C writes an event in less time, and the patches are the same: 25 of its sections, with warm caches on a
# busy machine. The 40 where they are evicted is an estimate: 12 in Python, times what a section there takes more.
PATCH_COSTS: Final = {  # is it of C -> apart, in ns -> sections; in between by its logarithm
    True: {50_000: 25.0, 1_000_000: 40.0},
    False: {50_000: 4.0, 1_000_000: 12.0},
}
REPEATED_COST: Final = 3.0  # the same of a forward pass that C records without Python: 0.3 to 0.5 us
REPORTS_FREE: Final = 20  # first periodic reports that the user has asked for, and first epochs, at any cost
REPORTS_SHOWN: Final = 3  # the same where the user has not set how often


def measure_section_cost_ns(
    implementation: Implementation, clock: Clock = perf_counter_ns, spent: Clock | None = None
) -> float:
    """Return the cost of recording an empty section on this machine, in ns.

    It is the median of short rounds: a pause, in which other programs have the CPU, falls into one of them. They are
    timed by the clock ``spent``, else by the recorder's.
    """
    spent = spent or clock
    section = Recorder(clock, implementation=implementation).section
    rounds = []
    with section("a"):
        for _ in range(CALIBRATION_ROUNDS):
            begin_ns = spent()
            for _ in range(CALIBRATION_SPANS):
                with section("a"):
                    pass
            rounds.append((spent() - begin_ns) / CALIBRATION_SPANS)
    return sorted(rounds)[CALIBRATION_ROUNDS // 2]


def patch_cost(apart_ns: float, is_native: bool) -> float:
    """Return the cost of a patched call in empty sections, if such calls begin ``apart_ns`` after each other."""
    (near_ns, near), (far_ns, far) = PATCH_COSTS[is_native].items()
    part = math.log(max(apart_ns, 1.0) / near_ns) / math.log(far_ns / near_ns)
    return near + (far - near) * min(1.0, max(0.0, part))


@dataclass(eq=False)
class ProfilerHealth:
    """Adds up the cost of the profiler on the training thread and keeps notes for the report."""

    recorder: Recorder
    section_cost_ns: float  # of an empty section, when the run began or later
    guard: FaultGuard
    # Sections that patches have recorded so far, the program made the others; and how many of them C did alone.
    patched_spans: Callable[[], tuple[int, int]] = lambda: (0, 0)
    measure: Callable[[], float] | None = None  # measures the cost of a section again; None if it must not be
    spent_ns: int = 0
    collecting_ns: int = 0
    notes: list[str] = field(default_factory=list)
    error: str = ""  # that ends the program

    def spend(self, ns: int) -> None:
        """Add profiler cost that lies within the time of the training thread."""
        self.spent_ns += ns

    def collect(self, cpu_ns: int) -> None:
        """Add CPU time of collecting events on the training thread."""
        self.collecting_ns += cpu_ns

    def sections_ns(self, run: Totals) -> float:
        """Return what recording the sections of a run has cost so far."""
        patched, repeated = self.patched_spans()
        calls, is_native = min(run.training_spans, patched), self.recorder.implementation.is_native
        of_python = max(0, calls - repeated)
        of_patches = of_python * patch_cost(run.wall_ns / of_python, is_native) if of_python else 0.0
        return self.section_cost_ns * (run.training_spans - calls + of_patches + (calls - of_python) * REPEATED_COST)

    def measure_again(self) -> None:
        """Measure the cost of a section once more, later in the run; the lower of the two counts.

        The run may have begun in a moment in which this machine had a tenth of its speed.
        """
        measure, self.measure = self.measure, None
        if measure is not None and (cost_ns := measure()) > 0:  # a clock of CPU time may be too coarse
            self.section_cost_ns = min(self.section_cost_ns, cost_ns)

    def keep_error(self, ended_by: str | None, user_line: Callable[[FrameType], CallSite | None]) -> None:
        """Keep what the uncaught error that ended the program says, after the user's line that it passed last."""
        error: Any = getattr(sys, "last_value", None)
        passed = list(traceback.walk_tb(error.__traceback__)) if type(error).__name__ == ended_by else []
        site = user_line(passed[-1][0]) if passed else None
        text = str(error).strip().split("\n")[0]
        for frame, line in reversed(passed):  # the frame itself may have ended elsewhere, at the line of a `with`
            if site is not None and os.path.abspath(frame.f_code.co_filename) == site.path:
                text = f"{site.file}:{line} {frame.f_code.co_name}: {text}"
                break
        self.error = printable(text, MOST_OF_ERROR) if passed else ""

    def run_as_overhead(self, work: Callable[[], None]) -> None:
        """Do ``work`` on the training thread and attribute its time to the profiler."""
        begin_ns = self.recorder.clock()
        try:
            with self.recorder.own_section(PROFILER):
                work()
        finally:
            self.spend(self.recorder.clock() - begin_ns)

    def health(
        self, run: Totals, reports_left_out: int, costs: Sequence[str] = (), were_asked: bool = True, looked_ns: int = 0
    ) -> Health:
        """Return the health of the profiler in a run with these totals.

        ``were_asked``: the user has set log_every; ``looked_ns`` is what the inspections of early steps took.
        """
        sections_ns, spans = self.sections_ns(run), run.training_spans
        return Health(
            dropped=run.dropped,
            disabled=tuple(f"{part} ({reason})" for part, reason in self.guard.disabled.items()),
            overhead_s=(self.spent_ns + looked_ns + sections_ns) / NS_PER_S,
            span_s=(sections_ns / spans if spans else self.section_cost_ns) / NS_PER_S,
            notes=(
                *self.notes,
                *self._names_notes(),
                *_of_run(run, reports_left_out, were_asked),
                *_compiled(),
                f"recorder: {self.recorder.implementation.describe()}",
                *costs,
            ),
            error=self.error,
        )

    def _names_notes(self) -> list[str]:
        names = self.recorder.names
        notes = []
        if names.invalid_count:
            notes.append(
                f"{counted(names.invalid_count, 'section')} had no usable name (first: {names.invalid_example}), "
                f"they share the row (invalid name); a name is a string with at least one character"
            )
        if names.further_names:
            notes.append(
                f"more than {names.limit} section names: at least {len(names.further_names)} further ones share the "
                f"row {OTHER_NAMES}; leave numbers out of names, or raise RECTIFIED_FLOW_PROFILE_MAX_NAMES"
            )
        return notes


def _of_run(run: Totals, reports_left_out: int, were_asked: bool) -> list[str]:
    notes = []
    if run.training_spans and not run.wall_ns:
        notes.append("the clock has not moved forward: counts are right, times are not known")
    if run.unended:
        notes.append(f"entered and never left by threads that have ended: {counted(run.unended, 'section')}")
    if reports_left_out:
        notes.append(
            f"{counted(reports_left_out, 'periodic report')} left out: at this pace the profiler would cost over "
            f"{SHARE:.1%} of the run" + ("; raise log_every" if were_asked else "")
        )
    return notes


def _compiled() -> list[str]:
    utils = sys.modules.get("torch._dynamo.utils")  # private: any of this may be gone
    try:
        graphs = utils.counters["stats"]["unique_graphs"] if utils is not None else 0
    except (AttributeError, KeyError, TypeError):
        return []
    if not graphs:
        return []
    try:
        took = f" in {sum(utils.compilation_time_metrics['_compile.compile_inner']):.2f}s"  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError):
        took = ""
    return [f"torch.compile made {counted(graphs, 'graph')}{took}: sections inside compiled code are not recorded"]
