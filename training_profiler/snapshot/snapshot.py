"""The frozen figures that diagnosis, reports and sinks read; seconds throughout."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from training_profiler.recording.known_sections import BACKWARD_PASS, FORWARD_PASS
from training_profiler.snapshot.machine import GpuStats as GpuStats
from training_profiler.snapshot.machine import Growth as Growth
from training_profiler.snapshot.machine import Level as Level
from training_profiler.snapshot.machine import MachineStats as MachineStats
from training_profiler.snapshot.ranks import AllRanksStats as AllRanksStats
from training_profiler.snapshot.ranks import AttemptStats as AttemptStats
from training_profiler.snapshot.ranks import GradientSyncStats as GradientSyncStats

OTHER: Final = "other"  # time within steps that no section covers
PROFILER: Final = "(profiler)"  # the profiler's own work: arithmetic, reports, the journal
OUTSIDE_STEPS: Final = "(outside steps)"  # time before, between and after steps that no section covers
HOT_PLACES: Final = 3  # what a reader takes in under each section
HOT_SHARE: Final = 0.01  # of the run
SPANS_NEEDED: Final = 10  # of which the device time is known, before that stands for all


@dataclass(frozen=True, slots=True)
class SectionStats:
    """What is known of one section. None is unknown: of no span, or of time that has no spans."""

    name: str
    count: int
    total_s: float  # inclusive, summed over spans; a recursive section counts its inner spans as well
    self_s: float  # exclusive, on the training thread; adds up to the wall time over all sections
    share: float  # self_s over the wall time, 0 to 1
    parent: str | None = None  # the section around most of its spans
    avg_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    std_s: float | None = None  # of the sample; None of a single span
    p50_s: float | None = None  # quantiles are within 1 %
    p95_s: float | None = None
    p99_s: float | None = None
    min_step: int = 0  # the step of the shortest span, counted from 1; 0 outside of steps
    max_step: int = 0
    elsewhere_s: float = 0.0  # exclusive time on other threads, beside the wall time and not part of it
    step_self_s: float = 0.0  # the part of self_s within training steps
    step_total_s: float = 0.0  # the part of total_s within training steps, recursion counted once
    settled_total_s: float = 0.0  # the part of step_total_s in the steps after warm-up
    device_count: int = 0  # spans of which the time on the accelerator is known
    device_total_s: float | None = None  # time on the accelerator of those spans; None where it is known of none

    @property
    def device_avg_s(self) -> float | None:
        """Mean time on the accelerator; None where it is known of no span."""
        if self.device_total_s is None or not self.device_count:
            return None
        return self.device_total_s / self.device_count


@dataclass(frozen=True, slots=True)
class LineStats:
    """What a line of the user's code has of one section's own time."""

    file: str
    line: int
    function: str
    share: float  # of the wall time, 0 to 1: the section's share times the line's part of its samples
    samples: int
    lines: int = 1  # more: so many lines of one function, added up under the hottest
    waiting_share: float = 0.0  # the part of ``share`` within a call that waits for the device
    waits_in: str = ""  # that call: item, cpu, tolist, ...


@dataclass(frozen=True, slots=True)
class StepStats:
    """Durations of training steps, without the validation, sampling and checkpoints between them."""

    count: int
    total_s: float
    median_s: float
    warmup_count: int
    warmup_s: float
    settled_count: int  # the steps after warm-up
    avg_s: float
    std_s: float
    max_s: float
    max_step: int
    settled_s: float  # the time of the steps after warm-up
    disturbed_count: int = 0  # of all, made slower by a capture window; see ``has_own_pace``
    before_s: float | None = None  # from the run's begin to the first step's; None where that is not known
    rise: float | None = None  # trend over the run, 0.1 = 10 % longer at the end; None on too few steps
    rise_p_value: float | None = None
    explained: Mapping[str, float] = field(default_factory=dict)  # part of the variance of step time a section has

    @property
    def has_own_pace(self) -> bool:
        """Whether median, avg, std and max leave out disturbed steps, which they do not where those are most."""
        return 2 * self.disturbed_count <= self.count


@dataclass(frozen=True, slots=True)
class EpochStats:
    """One epoch, from where its ``profile_epoch`` begins to where it ends."""

    number: int
    wall_s: float
    steps: int
    batches: int | None  # fetched from profiled loaders; steps where there are none
    samples: int | None
    avg_batch_s: float | None
    self_s: Mapping[str, float]  # exclusive time a section; adds up to wall_s
    first_fetch_s: float | None
    median_fetch_s: float | None
    is_complete: bool = True
    machine: "MachineStats | None" = None  # None where it was not looked at


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What came out of one loader in training or in validation, and what its batches cost; means are per batch."""

    name: str
    batches: int
    samples: int | None
    wait_s: float
    phase: str = "train"  # or "val"
    data_avg_s: float | None = None  # of next(iterator), on the host
    forward_avg_s: float | None = None
    backward_avg_s: float | None = None
    optimizer_avg_s: float | None = None  # of the updates that followed its batches
    batch_wait_avg_s: float | None = None  # from the batch before, of whichever loader, to its own
    proportion: float | None = None  # its share of the batches of its phase, 0 to 1
    asked_proportion: float | None = None  # what the user said that share should be


@dataclass(frozen=True, slots=True)
class DeviceTimingStats:
    """Device time of sections: where it was measured, and of how many spans not."""

    kind: str  # cuda, xpu, mps, ...
    name: str
    timing: str  # events or sync
    spans: int  # whose device time is known
    unmeasured: Mapping[str, int] = field(default_factory=dict)  # reason -> spans of which it is not


@dataclass(frozen=True, slots=True)
class Throughput:
    """How much training gets done; per second of step time after warm-up. None is unknown."""

    steps_per_s: float
    batches_per_s: float | None = None
    samples_per_s: float | None = None
    flops_per_step: float | None = None  # of the model: forward and backward, counted in one step
    tflops: float | None = None  # achieved, in 1e12 a second
    dtype: str = ""  # of most of these FLOPs
    device: str = ""  # name of the accelerator that does most of them
    peak_tflops: float | None = None  # of the device, for that type
    peak_source: str = ""
    attention: str = ""  # torch's kernel that did most attention in the counted step; "" where none was seen
    mfu: float | None = None  # model FLOPs utilization: achieved over peak, 0 to 1


@dataclass(frozen=True, slots=True)
class Health:
    """How the profiler itself fared."""

    dropped: int = 0  # events that could not be booked
    disabled: tuple[str, ...] = ()  # parts that switched themselves off
    overhead_s: float = 0.0  # cost of the profiler to the training thread (see ProfilerHealth)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All figures of a stretch of a run: an interval, or the run so far."""

    steps: int = 0  # complete steps of the run so far
    first_step: int = 0  # steps complete before this stretch
    wall_s: float = 0.0
    sections: Mapping[str, SectionStats] = field(default_factory=dict)
    lines: Mapping[str, tuple[LineStats, ...]] = field(default_factory=dict)  # by section, the hottest first
    step: StepStats | None = None
    epochs: tuple[EpochStats, ...] = ()
    loaders: tuple[LoaderStats, ...] = ()
    machine: MachineStats | None = None
    device: DeviceTimingStats | None = None
    throughput: Throughput | None = None
    ranks: AllRanksStats | None = None  # None where there is one
    exchange: GradientSyncStats | None = None  # None without DistributedDataParallel
    attempts: tuple[AttemptStats, ...] = ()  # those before this one, of a training that was started anew
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of rules, where they are not the default
    health: Health = field(default_factory=Health)
    run_folder: str | None = None
    open_sections: tuple[str, ...] = ()  # entered and not left on the training thread, the outermost first
    ended_by: str | None = None  # name of the exception or signal that ended the run, where one did

    def is_by_device(self, name: str) -> bool:
        """Return whether the accelerator's time of section ``name`` is known, so that the host's is not what counts."""
        section = self.sections.get(name)
        return section is not None and section.device_count >= SPANS_NEEDED and bool(section.avg_s)

    def total_of_step_s(self, name: str) -> float | None:
        """Return the time of section ``name`` within the steps after warm-up, in s; None where it was not seen.

        On an accelerator that is its device time where it is known: spans times their mean. What the host spends on
        queueing work, and on waiting for work queued before, makes no step longer.
        """
        section, step = self.sections.get(name), self.step
        if section is None or not section.count:
            return None
        if self.is_by_device(name) and section.device_avg_s is not None and section.total_s and step and step.count:
            # Not by the host's mean: a first step that compiles for a minute is in it, and the device's is without.
            spans_in_steps = section.count * section.step_total_s / section.total_s
            return spans_in_steps * step.settled_count / step.count * section.device_avg_s
        return section.settled_total_s

    def idle_device_s(self) -> float | None:
        """Return the time within steps after warm-up that no section took the device for; None if unknown.

        What it waits for input counts as taken: that is told by ``data_loading`` itself. Unknown too where a section
        is around the backward pass: its own device time has the idle times between the parts in it.
        """
        if self.step is None or not self.is_by_device(BACKWARD_PASS):
            return None
        forward = self.sections.get(FORWARD_PASS)
        is_forward_unknown = forward is not None and forward.step_total_s > 0 and not self.is_by_device(FORWARD_PASS)
        if is_forward_unknown or self.sections[BACKWARD_PASS].parent in self.sections:
            return None
        outermost = [name for name, section in self.sections.items() if section.parent not in self.sections]
        taken_s = sum(self.total_of_step_s(name) or 0.0 for name in outermost if self.is_by_device(name))
        return max(0.0, self.step.settled_s - taken_s)

    def share_of_step(self, name: str) -> float | None:
        """Return the share of step time after warm-up spent in ``name``, nested ones included; None if unknown."""
        total_s = self.total_of_step_s(name)
        if total_s is None or self.step is None or not self.step.settled_s:
            return None
        return total_s / self.step.settled_s

    def hottest(self, name: str) -> list[LineStats]:
        """Return where in the user's code the time of section ``name`` goes: at most 3 places with 1 % of the run each.

        A place is a line. Where three lines tell less than half as much as three functions do, the time is spread over
        many lines, and a place is a function.
        """
        lines = self.lines.get(name, ())
        functions: dict[tuple[str, str], LineStats] = {}
        for line in lines:
            hotter = functions.get((line.file, line.function))
            functions[line.file, line.function] = line if hotter is None else _added(hotter, line)
        by_function = sorted(functions.values(), key=lambda place: -place.share)[:HOT_PLACES]
        by_line = lines[:HOT_PLACES]
        told = sum(place.share for place in by_line), sum(place.share for place in by_function)
        return [place for place in (by_function if 2 * told[0] < told[1] else by_line) if place.share >= HOT_SHARE]


def _added(one: LineStats, other: LineStats) -> LineStats:
    return replace(
        one,
        share=one.share + other.share,
        samples=one.samples + other.samples,
        lines=one.lines + other.lines,
        waiting_share=one.waiting_share + other.waiting_share,
        waits_in=one.waits_in or other.waits_in,
    )
