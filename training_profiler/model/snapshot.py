"""Frozen statistics in seconds: the only input of rules, reports and trackers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from training_profiler.base.sections import BACKWARD_PASS, FORWARD_PASS
from training_profiler.base.sections import OTHER as OTHER
from training_profiler.base.sections import PROFILER as PROFILER
from training_profiler.base.text import escaped
from training_profiler.base.units import Price, duration_text, ms_text
from training_profiler.model.lines import BETWEEN as BETWEEN
from training_profiler.model.lines import CHECKS as CHECKS
from training_profiler.model.lines import HOT_PLACES as HOT_PLACES
from training_profiler.model.lines import HOT_SHARE as HOT_SHARE
from training_profiler.model.lines import PARAMETERS as PARAMETERS
from training_profiler.model.lines import PYTHON as PYTHON
from training_profiler.model.lines import TOKENIZERS as TOKENIZERS
from training_profiler.model.lines import LineStats as LineStats
from training_profiler.model.lines import UnsampledWait as UnsampledWait
from training_profiler.model.lines import WorkerLineStats as WorkerLineStats
from training_profiler.model.lines import WorkerStats as WorkerStats
from training_profiler.model.lines import hottest_places as hottest_places
from training_profiler.model.machine import GarbageStats as GarbageStats
from training_profiler.model.machine import GpuStats as GpuStats
from training_profiler.model.machine import Growth as Growth
from training_profiler.model.machine import Level as Level
from training_profiler.model.machine import MachineStats as MachineStats
from training_profiler.model.machine import MemoryChange as MemoryChange
from training_profiler.model.machine import Pause as Pause
from training_profiler.model.program import LOADER, NOTHING_KNOWN, ProgramFacts
from training_profiler.model.ranks import AllRanksStats as AllRanksStats
from training_profiler.model.ranks import AttemptStats as AttemptStats
from training_profiler.model.ranks import GradientSyncStats as GradientSyncStats

OUTSIDE_STEPS: Final = "(outside steps)"  # time before, between and after steps in no section
BEFORE_TRAINING: Final = "(before the first step)"  # of stacks that are not part of the training
AFTER_TRAINING: Final = "(after the last step)"
SHOWN_SECTIONS: Final = 3  # in the text of a snapshot
SHOWN_SHARE: Final = 0.005
MOSTLY_SETTLED: Final = 0.75  # of the time of a section; then its lines are those of later steps
FORWARD_PASSES: Final = "forward passes"  # units of the work of a step
INPUT_ELEMENTS: Final = "input elements"
SPANS_NEEDED: Final = 10  # spans with known device time that are enough to stand for all


@dataclass(frozen=True, slots=True)
class SectionStats:
    """One section. None means unknown: there are no spans, or the time has no spans."""

    name: str
    count: int
    total_s: float  # inclusive, summed over spans; a recursive section counts its inner spans too
    self_s: float  # exclusive, on the training thread; adds up to the wall time over all sections
    share: float  # self_s over the wall time, 0 to 1
    parent: str | None = None  # the section around most spans
    avg_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    std_s: float | None = None  # of the sample; None for a single span
    p50_s: float | None = None  # quantiles are accurate to 1 %
    p95_s: float | None = None
    p99_s: float | None = None
    min_step: int = 0  # the step of the shortest span, counted from 1; 0 outside of steps
    max_step: int = 0
    other_threads_s: float = 0.0  # exclusive time on other threads; not part of the wall time
    step_self_s: float = 0.0  # the part of self_s within training steps
    step_total_s: float = 0.0  # the part of total_s within training steps, recursion counted once
    before_s: float = 0.0  # the part of self_s before the first step, by samples
    after_s: float = 0.0  # the part of self_s after the training: its last step, and the validation that ends an epoch
    settled_total_s: float = 0.0  # the part of step_total_s in the steps after warm-up
    device_count: int = 0  # spans with known time on the accelerator
    device_total_s: float | None = None  # accelerator time of those spans; None without any

    @property
    def training_s(self) -> float:
        """The part of ``self_s`` from the first step to the last."""
        return max(0.0, self.self_s - self.before_s - self.after_s)

    @property
    def spans_in_steps(self) -> float:
        """How many of its spans lie within training steps, by their part of its time."""
        return self.count * self.step_total_s / self.total_s if self.total_s else 0.0

    @property
    def device_avg_s(self) -> float | None:
        """Mean time on the accelerator; None if unknown."""
        if self.device_total_s is None or not self.device_count:
            return None
        return self.device_total_s / self.device_count


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line before and after a change of the steps."""

    line: str  # "train.py:41 main"
    before_s: float  # of a step
    after_s: float
    samples: int  # of it after the change
    called: str = ""  # the function that it calls for most of its time then: "torch.cat"


@dataclass(frozen=True, slots=True)
class StepChange:
    """Steps that take another time from one of them on, and what else differs. Pairs are before and after it."""

    step: int  # the first of them, counted from 1
    first_step: int  # 95 % interval of ``step``
    last_step: int
    before_s: float  # median steps
    after_s: float
    is_abrupt: bool  # explains the steps better than a straight line
    sections: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # exclusive s a step
    lines: Mapping[str, tuple[LineChange, ...]] = field(default_factory=dict)  # of sections: what rose most, first
    forward_passes: tuple[float, float] | None = None  # a step
    input_elements: tuple[float, float] | None = None  # of a forward pass
    machine: tuple[MachineStats | None, MachineStats | None] = (None, None)


@dataclass(frozen=True, slots=True)
class AroundCapture:
    """Median steps right before the first capture and after it, without those that it slowed."""

    before_s: float
    after_s: float
    error_s: float  # standard error of their difference


@dataclass(frozen=True, slots=True)
class StepStats:
    """Durations of training steps, without validation, sampling and checkpoints between them."""

    count: int
    total_s: float
    median_s: float
    warmup_count: int
    warmup_s: float
    settled_count: int  # steps after warm-up
    avg_s: float
    std_s: float
    max_s: float
    max_step: int
    settled_s: float  # time of the steps after warm-up
    p95_s: float | None = None  # 95% of the steps after warm-up are not longer; None with too few
    inspected_s: float = 0.0  # by which inspections have made first steps longer, a part of ``warmup_s``
    disturbed_count: int = 0  # steps slowed by a capture window; see ``has_own_pace``
    before_s: float | None = None  # from the begin of the run to the begin of the first step; None if unknown
    rise: float | None = None  # trend over the run, 0.1 = 10 % longer at the end; None with too few steps
    rise_p_value: float | None = None
    work_unit: str = ""  # what grows in each step: forward passes or input elements; "" for nothing
    work_rise: float = 0.0  # of the work of a step over the run; 1: twice as much at the end
    unit_rise: float = 0.0  # of the time for one unit of this work
    unit_rise_p_value: float = 1.0
    explained_by_calls: float = 0.0  # part of the variance of step time, by the number of forward passes
    explained_by_inputs: float = 0.0  # the same by the sizes of their inputs
    change: StepChange | None = None  # None with too few steps, or where chance may explain it
    halves: StepChange | None = None  # of a run whose steps rise without such a change
    around_capture: AroundCapture | None = None  # None without a capture, or with too few steps on a side
    explained: Mapping[str, float] = field(default_factory=dict)  # section -> its part of the variance of step time

    @property
    def has_own_pace(self) -> bool:
        """Whether median, avg, std and max leave out steps slowed by captures; True unless those are most steps."""
        return 2 * self.disturbed_count <= self.count


@dataclass(frozen=True, slots=True)
class StartupPart:
    """What a program prepared before its first step: imports, its model, ..."""

    name: str
    seconds: float
    lines: tuple[tuple[str, float], ...] = ()  # "train.py:3 main" and seconds, the longest first


@dataclass(frozen=True, slots=True)
class StartupStats:
    """The time before the first step, or of a whole run without steps."""

    total_s: float
    has_steps: bool
    parts: tuple[StartupPart, ...]  # the longest first; they add up to ``total_s``


@dataclass(frozen=True, slots=True)
class EpochStats:
    """One epoch, from the begin to the end of its ``profile_epoch``."""

    number: int
    wall_s: float
    steps: int
    batches: int | None  # fetched from profiled loaders; without these, steps
    samples: int | None
    avg_batch_s: float | None
    self_s: Mapping[str, float]  # exclusive time of each section; adds up to wall_s
    first_fetch_s: float | None
    median_fetch_s: float | None
    is_complete: bool = True
    machine: "MachineStats | None" = None  # None without samples


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """The batches of one loader in training or validation, and their cost. Means are per batch."""

    name: str
    batches: int
    samples: int | None
    wait_s: float
    phase: str = "train"  # or "val"
    data_avg_s: float | None = None  # of next(iterator), on the host
    forward_avg_s: float | None = None
    backward_avg_s: float | None = None
    optimizer_avg_s: float | None = None  # of the updates that followed its batches
    batch_wait_avg_s: float | None = None  # from the previous batch of any loader to its own
    proportion: float | None = None  # its share of the batches of its phase, 0 to 1
    requested_proportion: float | None = None  # the share that the user has set
    num_workers: int | None = None  # this and the following: the loader's arguments, as it was made last
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    is_remade: bool | None = None  # whether the program makes a new loader for each pass
    made_at: str = ""  # the user's line that made it; "" if unknown
    data_set: str = ""  # its class
    is_map_style: bool | None = None  # whether samples are asked for by number
    fetches_batches: bool | None = None  # whether the data set returns all samples of a batch at once
    collate: str | None = None  # torch's function that makes a batch of samples, or "own"
    same_order: int = 0  # passes after the first, if a DistributedSampler gives all the same order
    cut_passes: int = 0  # left after their first batch, as `next(iter(loader))` does
    batch_cpu_avg_s: float | None = None  # CPU time of a batch that the training makes itself; None with workers
    workers: WorkerStats | None = None  # of both phases, with the first of them; None where they were not observed


@dataclass(frozen=True, slots=True)
class DeviceTimingStats:
    """Device time of sections: how it was measured, and spans without it."""

    kind: str  # cuda, xpu, mps, ...
    name: str
    timing: str  # events or sync
    spans: int  # spans with known device time
    unmeasured: Mapping[str, int] = field(default_factory=dict)  # reason -> spans without device time


@dataclass(frozen=True, slots=True)
class Throughput:
    """Training throughput per second of step time after warm-up. None means unknown."""

    steps_per_s: float
    batches_per_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None  # where the trainer counts them
    flops_per_step: float | None = None  # of the model: forward and backward, counted in one step
    tflops: float | None = None  # achieved, in 1e12 per second
    dtype: str = ""  # of most of these FLOPs
    device: str = ""  # name of the accelerator that does most of them
    peak_tflops: float | None = None  # of the device, for that dtype
    peak_source: str = ""
    attention: str = ""  # torch's kernel that did most attention in the counted step; "" without any
    mfu: float | None = None  # model FLOPs utilization, without recomputation: achieved over peak, 0 to 1
    mfu_by: str = ""  # the convention of its FLOPs
    hfu: float | None = None  # hardware FLOPs utilization: all that were executed, over peak


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the profiler itself."""

    dropped: int = 0  # events that could not be attributed
    disabled: tuple[str, ...] = ()  # components that were disabled after an error
    overhead_s: float = 0.0  # cost of the profiler to the training thread (see ProfilerHealth)
    span_s: float = 0.0  # of it, what recording one span takes, by estimate
    notes: tuple[str, ...] = ()
    error: str = ""  # that ended the program: "train.py:12 main: expected a tensor"


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """How much longer a step takes than in the last runs of the same program: 0.03 is 3%; negative where shorter."""

    relative: float
    low: float
    high: float
    runs: int  # earlier runs that it was compared with
    section: str | None = None  # which carries most of it, in each of these comparisons
    section_s: float | None = None
    since: str = ""  # the commit, or what else is new in this run

    @property
    def text(self) -> str:
        """The change in words."""
        low, high = sorted(abs(each) for each in (self.low, self.high))
        word, carried, since = (
            "slower" if self.relative > 0 else "faster",
            "",
            f", since {self.since}" if self.since else "",
        )
        if self.section is not None and self.section_s is not None:
            carried = f": {self.section} {'+' if self.section_s >= 0 else '-'}{ms_text(abs(self.section_s))}"
        runs = f"your last {self.runs} runs ({100 * low:.0f} to {high:.0%})"
        return f"{abs(self.relative):.0%} {word} a step than {runs}{carried}{since}"


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """All stats of a stretch of a run: an interval, or the run so far."""

    steps: int = 0  # complete steps of the run so far
    first_step: int = 0  # steps complete before this stretch
    wall_s: float = 0.0
    sections: Mapping[str, SectionStats] = field(default_factory=dict)
    lines: Mapping[str, tuple[LineStats, ...]] = field(default_factory=dict)  # by section, hottest first
    # The same without warm-up, where there was one and enough samples are known after it.
    settled_lines: Mapping[str, tuple[LineStats, ...]] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)  # phase of a trainer -> share of the run, largest first
    batch_parts: Mapping[str, float] = field(default_factory=dict)  # of batches made in the training -> share
    unsampled_waits: tuple[UnsampledWait, ...] = ()  # the longest first
    startup: StartupStats | None = None  # None with too few samples
    step: StepStats | None = None
    epochs: tuple[EpochStats, ...] = ()
    loaders: tuple[LoaderStats, ...] = ()
    machine: MachineStats | None = None
    memory_changes: tuple[MemoryChange, ...] = ()  # of accelerators, and of the process
    garbage: GarbageStats | None = None  # None without a garbage collection
    device: DeviceTimingStats | None = None
    throughput: Throughput | None = None
    program: ProgramFacts = NOTHING_KNOWN
    ranks: AllRanksStats | None = None  # None for a single rank
    with_grad_count: int = 0  # forward passes of validation that recorded gradients
    with_grad_s: float = 0.0
    gradient_sync: GradientSyncStats | None = None  # None without DistributedDataParallel
    attempts: tuple[AttemptStats, ...] = ()  # earlier attempts of a restarted training
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of rules, where they differ from the default
    price: Price | None = None  # of an accelerator; None if the user gave none
    health: Health = field(default_factory=Health)
    run_folder: str | None = None
    open_sections: tuple[str, ...] = ()  # on the training thread, outermost first
    ended_by: str | None = None  # exception, signal or option that ended the run, if any
    history: HistoryChange | None = None  # None where no change is shown

    def __repr__(self) -> str:
        step = "" if self.step is None else f", step {ms_text(self.step.avg_s)}"
        shares = "".join(f", {escaped(name)} {share:.0%}" for name, share in self._largest(SHOWN_SECTIONS))
        folder = f", run folder {escaped(self.run_folder)}" if self.run_folder else ""
        return f"<Snapshot: {self.steps} steps in {duration_text(self.wall_s)}{step}{shares}{folder}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the sections by their share of the time."""
        from html import escape  # only notebooks need it

        step = "" if self.step is None else f", step {ms_text(self.step.avg_s)}"
        rows = "".join(
            f"<tr><td>{escape(escaped(name))}</td><td>{share:.1%}</td><td>{self.sections[name].count}</td></tr>"
            for name, share in self._largest(len(self.sections))
        )
        folder = f"<p>{escape(escaped(self.run_folder))}</p>" if self.run_folder else ""
        return (
            f"<p>{self.steps} steps in {escape(duration_text(self.wall_s))}{escape(step)}</p>"
            f"<table><tr><th>section</th><th>of the time</th><th>count</th></tr>{rows}</table>{folder}"
        )

    def _largest(self, most: int) -> list[tuple[str, float]]:
        shares = [
            (name, section.share)
            for name, section in self.sections.items()
            if section.share >= SHOWN_SHARE and name != PROFILER
        ]
        return sorted(shares, key=lambda each: -each[1])[:most]

    @property
    def training_s(self) -> float:
        """Time from the first step to the last, in s, with validation and checkpoints; all of a run without steps.

        Journals of earlier versions do not have the end of the last step: the time after it counts as well.
        """
        return self.wall_s - (0.0 if self.step is None else self.step.before_s or 0.0) - self.after_training_s

    @property
    def left_s(self) -> float | None:
        """Time until the loop under way ends, at this stretch's pace with all between steps; None if unknown."""
        step, left = self.step, self.program.expected_steps - self.steps
        if step is None or step.settled_count <= 0 or left <= 0 or self.ended_by is not None:
            return None
        return left * max(0.0, self.training_s - step.warmup_s) / step.settled_count

    @property
    def after_training_s(self) -> float:
        """Time after the last step, and after the validation and checkpoints that follow each epoch, in s."""
        return sum((section.after_s for section in self.sections.values()), 0.0)

    @property
    def device_count(self) -> int | None:
        """Accelerators that all ranks use, if each uses as many as this one; None if it uses none, as far as known."""
        own = 0 if self.machine is None else len(self.machine.gpus)
        if not own and self.device is not None:
            own = 1
        return own * (1 if self.ranks is None else self.ranks.world_size) or None

    def cost_text(self, seconds: float) -> str:
        """Return what all accelerators cost for this time of the run; "" without a price or without accelerators."""
        devices = self.device_count
        return "" if self.price is None or devices is None else self.price.of(seconds, devices)

    def is_by_device(self, name: str) -> bool:
        """Return whether the device time of section ``name`` is known; the host's time then does not count."""
        section = self.sections.get(name)
        return section is not None and section.device_count >= SPANS_NEEDED and bool(section.avg_s)

    def total_of_step_s(self, name: str) -> float | None:
        """Return the time of section ``name`` within the steps after warm-up, in s; None if it never ran.

        On an accelerator it is the device time if that is known: spans times their mean. The host's time for queueing
        work and waiting for it makes no step longer.
        """
        section, step = self.sections.get(name), self.step
        if section is None or not (section.count or section.total_s):  # no span of OTHER is counted
            return None
        if self.is_by_device(name) and section.device_avg_s is not None and section.total_s and step and step.count:
            # Not by the host's mean, which may include a minute of compiling in the first step.
            return section.spans_in_steps * step.settled_count / step.count * section.device_avg_s
        return section.settled_total_s

    def computing_s(self) -> float:
        """Return the time of forward and backward passes within the steps after warm-up; 0 of what is unknown."""
        return sum(self.total_of_step_s(name) or 0.0 for name in (FORWARD_PASS, BACKWARD_PASS))

    def idle_device_s(self) -> float | None:
        """Return the most of the time within steps after warm-up in which the device was idle; None if unknown.

        It is the time in which no section used the device, and at most all of its idle time from the first step on.
        Waiting for input counts as used, because ``data_loading`` shows it already. By sections the result is unknown
        if one encloses the backward pass: its device time includes the gaps between its parts.
        """
        bounds = [bound for bound in (self._unused_device_s(), self.idle_loop_s()) if bound is not None]
        return min(bounds, default=None)

    def idle_loop_s(self) -> float | None:
        """Return how long the least busy accelerator was idle from the first step on, in s; None if unknown."""
        busy = None if self.machine is None else self.machine.least_busy
        if busy is None or self.step is None:
            return None
        return (1 - busy[0]) * max(self.step.total_s, self.wall_s - (self.step.before_s or 0.0))

    def _unused_device_s(self) -> float | None:
        if self.step is None or not self.is_by_device(BACKWARD_PASS):
            return None
        forward = self.sections.get(FORWARD_PASS)
        is_forward_unknown = forward is not None and forward.step_total_s > 0 and not self.is_by_device(FORWARD_PASS)
        if is_forward_unknown or self.sections[BACKWARD_PASS].parent in self.sections:
            return None
        outermost = [name for name, section in self.sections.items() if section.parent not in self.sections]
        taken_s = sum(self.total_of_step_s(name) or 0.0 for name in outermost if self.is_by_device(name))
        return max(0.0, self.step.settled_s - taken_s)

    def share_of_phase(self, name: str) -> float:
        """Return the share of the run in samples with this phase, also beside others."""
        return sum(share for phase, share in self.phases.items() if name in phase.split(BETWEEN))

    def share_of_step(self, name: str) -> float | None:
        """Return the share of step time after warm-up in ``name``, with nested sections; None if unknown."""
        total_s = self.total_of_step_s(name)
        if total_s is None or self.step is None or not self.step.settled_s:
            return None
        return total_s / self.step.settled_s

    @property
    def has_hugging_face_trainer(self) -> bool:
        """Whether the ``Trainer`` of Hugging Face runs the loop, whose arguments are then what can be changed.

        Its lines say so where its loader was made before the run, as under its callback.
        """
        makers = [call.site.inside for call in self.program.calls if call.kind == LOADER]
        sections = (*self.lines.values(), *self.settled_lines.values())
        loops = (line.inside for lines in sections for line in lines)
        return any(inside.startswith("transformers/trainer.py") for inside in (*makers, *loops))

    def lines_of_steps(self, name: str) -> tuple[LineStats, ...]:
        """Return the lines of ``name`` after warm-up; none if these are too few, and warm-up may have other lines."""
        section = self.sections.get(name)
        if name in self.settled_lines or section is None:
            return self.settled_lines.get(name, ())
        inspected_s = 0.0 if self.step is None else self.step.inspected_s
        is_settled = section.settled_total_s + inspected_s >= MOSTLY_SETTLED * section.step_total_s
        return self.lines.get(name, ()) if is_settled else ()

    def hottest(self, name: str, *, of_steps: bool = False) -> list[LineStats]:
        """Return ``hottest_places`` of ``name``, the user's lines with its time; with ``of_steps``, after warm-up."""
        return hottest_places(self.lines_of_steps(name) if of_steps else self.lines.get(name, ()))

    def lines_in_workers(self) -> tuple[WorkerLineStats, ...]:
        """Return the lines that workers of all loaders ran, as shares of all their work, the largest first."""
        observed = [loader.workers for loader in self.loaders if loader.workers is not None and loader.workers.lines]
        if len(observed) == 1:
            return observed[0].lines
        # A line of several loaders has a row for each: their data sets differ.
        whole = sum(workers.work_s for workers in observed)
        rows = [replace(line, share=line.share * each.work_s / whole) for each in observed for line in each.lines]
        return tuple(sorted(rows, key=lambda line: -line.share))
