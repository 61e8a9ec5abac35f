"""The parts of a run, constructed and connected, and their life cycle."""

import multiprocessing
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.run import RunSums
from training_profiler.device.device_time import DeviceTime
from training_profiler.model.ranks import RankId
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.hang_detector import HangDetector
from training_profiler.ranks.identity import Rank
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.implementation import best_implementation, python_implementation
from training_profiler.recording.recorder import Recorder, StepCount
from training_profiler.runtime.hang_watch import HangWatch
from training_profiler.runtime.health import ProfilerHealth, measure_section_cost_ns
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.runtime.outputs import Outputs
from training_profiler.runtime.terminal import OutputThread, Terminal
from training_profiler.safety.fault_guard import LINES, MACHINE, WORKERS, CostBudget, FaultGuard
from training_profiler.sampling.compilations import Compilations
from training_profiler.sampling.garbage_watch import GarbageWatch
from training_profiler.sampling.line_sampler import LineSampler, StartupSampler
from training_profiler.sampling.loader_workers import WorkerCollector
from training_profiler.sampling.lock_watch import lock_watch
from training_profiler.sampling.machine_sampler import MachineSampler
from training_profiler.settings.settings import NATIVE, Settings
from training_profiler.sinks.trackers import Trackers
from training_profiler.storage.journal import JournalLines
from training_profiler.storage.run_files import RunFiles
from training_profiler.torch_capture.controller import Captures


def new_recorder(settings: Settings) -> Recorder:
    """Return a recorder of the kind that ``settings`` allow and this installation has."""
    if settings.may_be_native:
        return Recorder(implementation=best_implementation())
    return Recorder(implementation=python_implementation(f"{NATIVE} refuses the recorder in C"))


class TrainingProgress(StepCount):
    """``thread_id`` is the recorder's number of the thread whose time is the run's.

    A trainer that knows the tokens of its batches counts them here. ``is_awaited`` is whether the training has not
    begun, and nothing is written before that: the switch alone holds for every program of a shell. ``uses_api`` is
    whether the program measures itself, and has a report of whatever it does.
    """

    def __init__(self, thread_id: int, is_awaited: bool = False) -> None:
        super().__init__()
        self.thread_id, self.is_awaited, self.uses_api = thread_id, is_awaited, False
        self._tokens = self._drained_tokens = 0

    def stop_waiting(self, uses_api: bool = False) -> None:
        """Note that the program trains, or that it calls the API."""
        self.is_awaited, self.uses_api = False, self.uses_api or uses_api

    def count_tokens(self, tokens: int) -> None:
        """Count tokens that the training has read."""
        self._tokens += tokens

    def drain_tokens(self) -> int | None:
        """Return the tokens since the last call; None if none are ever counted."""
        before, self._drained_tokens = self._drained_tokens, self._tokens
        return self._drained_tokens - before if self._drained_tokens else None

    def move_to(self, thread_id: int) -> None:
        """Attribute the run's time to another thread from now on."""
        self.thread_id = thread_id


class Component(Protocol):
    """A part of a session, which calls it in the order of its parts."""

    def start(self) -> None:
        """Start working at the start of the run."""

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""

    def close(self, ended_by: str | None) -> None:
        """Stop working and hand over what is left; ``ended_by`` is the signal or exception that ends the run."""

    def after_fork_in_child(self) -> None:
        """Discard all state without output: the run belongs to the parent process."""


@dataclass(frozen=True)
class RunContext:
    """The parameters of a session that its process knows."""

    recorder: Recorder
    section_cost_ns: float  # of an empty section on this machine
    begin_ns: int  # when the run began, by the recorder's clock
    opens_files: bool  # whether the run folder is created at the start; otherwise the first output creates it
    instrumentation: Instrumentation  # infers sections and steps of an unmodified training
    awaits_training: bool = False  # whether nothing is written before the process trains or uses the API
    startup: StartupSampler | None = None  # has sampled lines since the import of torch
    flushes_beside: bool = False  # whether a thread flushes by time; unit tests flush by their own clock


class SessionCalls(NamedTuple):
    """What parts ask of their session while it runs."""

    flush_beside: Callable[[], float]
    flush_soon: Callable[[], None]
    send_last_row: Callable[[str], None]
    report_files: Callable[[], dict[str, str]]


@dataclass
class Samplers:
    """The parts that measure beside the training: lines of code, the accelerator, the machine."""

    settings: Settings  # at the start of the run
    clock: Callable[[], int]  # the recorder's
    begin_ns: int  # when the run began
    lines: LineSampler
    device: DeviceTime
    machine: MachineSampler
    garbage: GarbageWatch
    workers: WorkerCollector
    compilations: Compilations = field(default_factory=Compilations)

    def start(self) -> None:
        """Start sampling."""
        self._apply(self.settings, self.begin_ns)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""
        self._apply(settings, self.clock())

    def _apply(self, settings: Settings, since_ns: int) -> None:
        self.lines.start(settings.sample_hz, since_ns)
        self.device.start(settings.timing)
        self.machine.start(settings.monitor_s, is_paced=not settings.asks_for_monitor)
        self.garbage.start(is_on=settings.monitor_s > 0)
        self.workers.start(is_on=settings.sample_hz > 0)
        self.compilations.start()

    def sample_this_thread(self) -> None:
        """Sample the calling thread from now on. Called on the training thread."""
        for sampler in (self.lines, self.device, self.machine, self.garbage):
            sampler.sample_this_thread()

    def poll(self, now_ns: int) -> None:
        """Check for an accelerator and for the cost of device timing, at the end of a step."""
        self.device.poll(now_ns)
        self.compilations.keep_listening()
        self.garbage.poll()

    def add_to(self, accumulator: Accumulator) -> None:
        """Add the device times and machine samples that belong to the last drain."""
        self.device.resolve()
        totals = accumulator.totals
        totals.machine.add_samples(self.machine.pop_samples(), totals.loop_begin_ns, accumulator.settled_ns())

    def close(self, ended_by: str | None) -> None:
        """End all threads."""
        for sampler in (self.lines, self.device, self.machine, self.garbage, self.workers, self.compilations):
            sampler.close()

    def after_fork_in_child(self) -> None:
        """Drop the threads: a forked child has none."""
        for sampler in (self.lines, self.device, self.machine, self.garbage, self.workers):
            sampler.after_fork_in_child()
        self.compilations.close()

    def notes(self) -> list[str]:
        """Return a sentence for each sampler: number of samples and cost."""
        costs = [cost for cost in (self.lines.cost(), self.machine.cost()) if cost]
        return [*costs, *self.garbage.notes(), *self.workers.notes(), *self.device.notes()]


class Parts:
    """The parts of one session, connected."""

    def __init__(self, settings: Settings, context: RunContext, session: SessionCalls) -> None:
        recorder, begin_ns = context.recorder, context.begin_ns
        names, clock = recorder.names, recorder.clock
        self.recorder, self.instrumentation = recorder, context.instrumentation
        self.guard, self.rank, self.loaders = FaultGuard(), rank_of(settings), LoaderRegistry()
        progress = self.progress = TrainingProgress(recorder.thread_id(), context.awaits_training)
        accumulator = self.accumulator = Accumulator(names, begin_ns, settings.warmup, has_inferred=True)
        self.sums = RunSums(names, begin_ns, settings.warmup)
        # Measured on the thread beside the training, which wants the CPU, or Python's lock, as well.
        measure = partial(measure_section_cost_ns, recorder.implementation, spent=time.thread_time_ns)
        self.profiler_health = ProfilerHealth(
            recorder,
            context.section_cost_ns,
            self.guard,
            patched_spans=lambda: accumulator.inferred_filter.spans,
            measure=measure if context.flushes_beside else None,
        )
        self.terminal = Terminal(self.rank, self.guard, self.profiler_health, settings.stream, lambda: progress.steps)
        self._files_thread = OutputThread(
            "files", self.guard.run, "files", tick=session.flush_beside if context.flushes_beside else None
        )
        self._connect_ranks(settings, begin_ns)
        self._trackers = Trackers(self.guard.run, last_row=session.send_last_row, report=session.report_files)
        self.outputs = Outputs(
            settings,
            context.opens_files,
            self.rank,
            self.guard,
            self.terminal,
            files=RunFiles(settings, names, begin_ns),
            thread=self._files_thread,
            lines=JournalLines(names),
            trackers=self._trackers,
            exchange=self.exchange,
        )
        self.hang_watch = HangWatch(
            recorder,
            self._hang_detector,
            self._channel,
            self.rank,
            self.guard.run,
            training_thread=lambda: progress.thread_id,
            run_folder=lambda: self.outputs.run_folder,
            with_files=self.outputs.read_soon,
            report=self.terminal.report,
            wall_clock=time.time_ns,
            began_wall_ns=time.time_ns() - (clock() - begin_ns),
        )
        self.budget = CostBudget(clock, begin_ns, self._costs(context.startup))
        self.samplers = self._new_samplers(settings, context)
        self.captures = self._new_captures(settings, session)

    def _connect_ranks(self, settings: Settings, begin_ns: int) -> None:
        progress, recorder, patches = self.progress, self.recorder, self.instrumentation.context
        self._hang_detector = HangDetector(
            recorder, self.accumulator, lambda: progress.thread_id, self.rank.who.host, lambda: progress.steps
        )
        self._channel = RankChannel(
            self.rank,
            settings.rank_wait_s,
            settings.launch.has_agent_store,
            self.guard.run,
            heartbeat=self._hang_detector.heartbeat,
            on_messages=lambda messages: self.exchange.read_ahead(messages),
            stacks=lambda: self.hang_watch.attached(),
        )
        self.exchange = RankExchange(
            self.rank,
            self._channel,
            recorder.names,
            recorder.clock,
            self.guard.run,
            gradient_sync=patches.gradient_sync,
            sync_points=patches.sync_points,
            begin_ns=begin_ns,
        )

    def _costs(self, startup: StartupSampler | None) -> dict[str, Callable[[], float]]:
        """Return functions that return the CPU time so far of each part that cannot wait, in ns."""
        return {
            "startup sampler": lambda: 0.0 if startup is None else startup.cpu_ns,
            "sections and patches": lambda: self.profiler_health.sections_ns(self.sums.run),
            "collecting": lambda: self.profiler_health.collecting_ns,
            "files": lambda: self._files_thread.cpu_ns,
            "terminal": lambda: self.terminal.thread.cpu_ns,
            "trackers": lambda: self._trackers.cpu_ns,
            "other ranks": lambda: self._channel.cpu_ns,
            "hangs": lambda: self.hang_watch.cpu_ns,
        }

    def _new_samplers(self, settings: Settings, context: RunContext) -> Samplers:
        clock, guard, launch, pace = self.recorder.clock, self.guard.run, settings.launch, self.budget.pace
        lines = LineSampler(
            clock,
            guard,
            startup=context.startup,
            watch=partial(lock_watch, launch.openmp_sleeps),
            pace=pace(LINES),
            new_stop=self.recorder.implementation.new_stop,
        )
        return Samplers(
            settings,
            clock,
            context.begin_ns,
            lines,
            DeviceTime(self.recorder, self.accumulator, guard, self.profiler_health.spend, launch.cuda_connections),
            MachineSampler(clock, guard, local_ranks=launch.local_world_size or 1, pace=pace(MACHINE)),
            GarbageWatch(guard),
            WorkerCollector(guard, self.instrumentation.awaited, pace=pace(WORKERS)),
        )

    def _new_captures(self, settings: Settings, session: SessionCalls) -> Captures:
        return Captures(
            self.recorder.clock,
            self.guard.run,
            self.accumulator,
            self.recorder.names.names,
            settings.capture,
            run_as_overhead=self.profiler_health.run_as_overhead,
            place=self.outputs.location,
            read_soon=self.outputs.read_soon,
            report=self.terminal.report,
            ask_flush=session.flush_soon,
        )


def rank_of(settings: Settings) -> Rank:
    """Return the rank that the launcher gave this process. A process group may correct it later."""
    launch = settings.launch
    return Rank(
        RankId(
            settings.rank,
            (launch.is_torchrun and launch.world_size) or 1,  # with other launchers the process group must confirm it
            socket.gethostname(),
            launch.node,
            launch.local_rank,
            launch.attempt,
        ),
        is_certain=launch.is_torchrun or multiprocessing.parent_process() is None,
    )
