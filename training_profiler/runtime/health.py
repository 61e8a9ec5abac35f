"""The cost of the profiler and the notes under "Profiler health"."""

import math
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Final

from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_S
from training_profiler.recording.implementation import Implementation
from training_profiler.recording.python_recorder import Clock
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section_names import OTHER_NAMES
from training_profiler.safety.cost_budget import SHARE
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.snapshot.snapshot import PROFILER, Health

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
REPORTS_FREE: Final = 20  # first periodic reports that the user has asked for, and first epochs, at any cost
REPORTS_SHOWN: Final = 3  # the same where the user has not set how often


def measure_section_cost_ns(
    implementation: Implementation, clock: Clock = perf_counter_ns, spent: Clock | None = None
) -> float:
    """Return the cost of recording an empty section on this machine, in ns.

    It is the median of short rounds: a pause, in which other programs have the CPU, falls into one of them.

    Args:
        implementation: of the recorder.
        clock: of the recorder.
        spent: the clock that the rounds are timed with; None for the same.
    """
    spent = spent or clock
    recorder = Recorder(clock, implementation=implementation)
    section = recorder.section
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


class ProfilerHealth:
    """Adds up the cost of the profiler on the training thread and keeps notes for the report.

    Args:
        recorder: of the run.
        section_cost_ns: of an empty section, when the run began.
        guard: knows what was disabled.
        patched_spans: returns how many sections patches have recorded so far; the program made the others.
        measure: measures that cost again; None where it must not be.
    """

    def __init__(
        self,
        recorder: Recorder,
        section_cost_ns: float,
        guard: FaultGuard,
        patched_spans: Callable[[], int] = int,
        measure: Callable[[], float] | None = None,
    ) -> None:
        self.spent_ns = 0
        self.collecting_ns = 0
        self.notes: list[str] = []
        self._guard = guard
        self._recorder = recorder
        self._section_cost_ns = section_cost_ns
        self._patched_spans = patched_spans
        self._measure = measure

    def spend(self, ns: int) -> None:
        """Add profiler cost that lies within the time of the training thread."""
        self.spent_ns += ns

    def collect(self, cpu_ns: int) -> None:
        """Add CPU time of collecting events on the training thread."""
        self.collecting_ns += cpu_ns

    def sections_ns(self, run: Totals) -> float:
        """Return what recording the sections of a run has cost so far."""
        calls, is_native = min(run.training_spans, self._patched_spans()), self._recorder.implementation.is_native
        of_patches = calls * patch_cost(run.wall_ns / calls, is_native) if calls else 0.0
        return self._section_cost_ns * (run.training_spans - calls + of_patches)

    def measure_again(self) -> None:
        """Measure the cost of a section once more, later in the run or at its end; the lower of the two counts.

        The run may have begun in a moment in which this machine had a tenth of its speed.
        """
        measure, self._measure = self._measure, None
        if measure is not None and (cost_ns := measure()) > 0:  # a clock of CPU time may be too coarse
            self._section_cost_ns = min(self._section_cost_ns, cost_ns)

    def add_note(self, sentence: str) -> None:
        """Keep a sentence for the report."""
        self.notes.append(sentence)

    def run_as_overhead(self, work: Callable[[], None]) -> None:
        """Do ``work`` on the training thread and attribute its time to the profiler."""
        begin_ns = self._recorder.clock()
        try:
            with self._recorder.own_section(PROFILER):
                work()
        finally:
            self.spend(self._recorder.clock() - begin_ns)

    def health(self, run: Totals, reports_left_out: int, costs: Sequence[str] = ()) -> Health:
        """Return the health of the profiler in a run with these totals."""
        sections_ns, spans = self.sections_ns(run), run.training_spans
        return Health(
            dropped=run.dropped,
            disabled=tuple(f"{part} ({reason})" for part, reason in self._guard.disabled.items()),
            overhead_s=(self.spent_ns + sections_ns) / NS_PER_S,
            span_s=(sections_ns / spans if spans else self._section_cost_ns) / NS_PER_S,
            notes=(
                *self.notes,
                *self._names_notes(),
                *_of_run(run, reports_left_out),
                *_compiled(),
                f"recorder: {self._recorder.implementation.describe()}",
                *costs,
            ),
        )

    def _names_notes(self) -> list[str]:
        names = self._recorder.names
        notes = []
        if names.invalid_count:
            notes.append(
                f"{_number(names.invalid_count, 'section')} had no usable name (first: {names.invalid_example}), "
                f"they share the row (invalid name); a name is a string with at least one character"
            )
        if names.further_names:
            notes.append(
                f"more than {names.limit} section names: at least {len(names.further_names)} further ones share the "
                f"row {OTHER_NAMES}; leave numbers out of names, or raise RECTIFIED_FLOW_PROFILE_MAX_NAMES"
            )
        return notes


def _of_run(run: Totals, reports_left_out: int) -> list[str]:
    notes = []
    if run.training_spans and not run.wall_ns:
        notes.append("the clock has not moved forward: counts are right, times are not known")
    if run.unended:
        notes.append(f"entered and never left by threads that have ended: {_number(run.unended, 'section')}")
    if reports_left_out:
        notes.append(
            f"{_number(reports_left_out, 'periodic report')} left out: at this pace the profiler would cost over "
            f"{SHARE:.1%} of the run; raise log_every"
        )
    return notes


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


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
    return [f"torch.compile made {_number(graphs, 'graph')}{took}: sections inside compiled code are not recorded"]
