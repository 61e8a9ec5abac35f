"""The parts that pipeline and session share, and their life cycle."""

import multiprocessing
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.run import RunSums
from training_profiler.device.device_time import DeviceTime
from training_profiler.loader_workers.collector import WorkerCollector
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.hang_detector import HangDetector
from training_profiler.ranks.identity import Rank
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.implementation import best_implementation, python_implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.step_count import StepCount
from training_profiler.runtime.hang_watch import HangWatch
from training_profiler.runtime.health import ProfilerHealth, measure_section_cost_ns
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.runtime.output_thread import OutputThread
from training_profiler.runtime.outputs import Outputs
from training_profiler.runtime.samplers import Samplers
from training_profiler.runtime.terminal import Terminal
from training_profiler.safety.cost_budget import LINES, MACHINE, WORKERS, CostBudget
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.garbage_watch import GarbageWatch
from training_profiler.sampling.line_sampler import LineSampler
from training_profiler.sampling.lock_watch import lock_watch
from training_profiler.sampling.machine_sampler import MachineSampler
from training_profiler.sampling.startup_sampler import StartupSampler
from training_profiler.settings.settings import NATIVE, Settings
from training_profiler.sinks.trackers import Trackers
from training_profiler.snapshot.ranks import RankId
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

    def stop_waiting(self) -> None:
        """Note that the program trains."""
        self.is_awaited = False

    def use_api(self) -> None:
        """Note that the program calls the API."""
        self.is_awaited, self.uses_api = False, True

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
        """Stop working and hand over what is left.

        Args:
            ended_by: signal or exception that ends the run; None if it ends normally.
        """

    def after_fork_in_child(self) -> None:
        """Discard all state without output: the run belongs to the parent process."""

    def notes(self) -> list[str]:
        """Return sentences for the report's "Profiler health"."""


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


class SessionCalls(Protocol):
    """What parts ask of their session while it runs."""

    def flush_beside(self) -> float:
        """Flush if that is due, on a thread beside the training; return in how many seconds to ask again."""

    def flush_soon(self) -> None:
        """Flush at the end of the next step if possible."""

    def send_last_row(self, tracker: str) -> None:
        """Send the metrics since the last report to a tracker."""

    def report_files(self) -> dict[str, str]:
        """Return the final report as it would be now, as the texts of its files."""


class Parts:
    """The parts of one session, connected.

    Args:
        settings: at the start of the run.
        context: of the process.
        session: returns the session; called while it runs.
    """

    def __init__(self, settings: Settings, context: RunContext, session: Callable[[], SessionCalls]) -> None:
        self._settings, self._context, self._session = settings, context, session
        self.recorder, self.instrumentation = context.recorder, context.instrumentation
        self.guard, self.rank, self.loaders = FaultGuard(), rank_of(settings), LoaderRegistry()
        self.progress = TrainingProgress(self.recorder.thread_id(), context.awaits_training)
        self.health = self._health()
        names, begin_ns = self.recorder.names, context.begin_ns
        self.accumulator = Accumulator(names, begin_ns, settings.warmup, has_inferred=True)
        self.sums = RunSums(names, begin_ns, settings.warmup)
        self._terminal = Terminal(self.rank, self.guard, self.health, settings.stream, lambda: self.progress.steps)
        self._hang_detector = HangDetector(
            self.recorder,
            self.accumulator,
            lambda: self.progress.thread_id,
            self.rank.who.host,
            lambda: self.progress.steps,
        )
        self._channel = self._new_channel()
        self.exchange = self._new_exchange()
        self._files_thread = OutputThread(
            "files",
            self.guard.run,
            "files",
            tick=(lambda: session().flush_beside()) if context.flushes_beside else None,
        )
        self._trackers = Trackers(
            self.guard.run,
            last_row=lambda tracker: session().send_last_row(tracker),
            report=lambda: session().report_files(),
        )
        self.outputs = self._new_outputs()
        self.hang_watch = self._new_hang_watch()
        self.budget = CostBudget(self.recorder.clock, begin_ns, self._costs())
        self.samplers = self._new_samplers()
        self.captures = self._new_captures()

    def _health(self) -> ProfilerHealth:
        context, measure = self._context, None
        if context.flushes_beside:  # measured on that thread: the training wants the CPU, or Python's lock, as well
            measure = partial(measure_section_cost_ns, self.recorder.implementation, spent=time.thread_time_ns)
        return ProfilerHealth(
            self.recorder,
            context.section_cost_ns,
            self.guard,
            patched_spans=lambda: self.accumulator.inferred_filter.spans,
            measure=measure,
        )

    def _costs(self) -> dict[str, Callable[[], float]]:
        """Return functions that return the CPU time so far of each part that cannot wait, in ns."""
        startup = self._context.startup
        return {
            "startup sampler": lambda: 0.0 if startup is None else startup.cpu_ns,
            "sections and patches": lambda: self.health.sections_ns(self.sums.run),
            "collecting": lambda: self.health.collecting_ns,
            "files": lambda: self._files_thread.cpu_ns,
            "terminal": lambda: self._terminal.cpu_ns,
            "trackers": lambda: self._trackers.cpu_ns,
            "other ranks": lambda: self._channel.cpu_ns,
            "hangs": lambda: self.hang_watch.cpu_ns,
        }

    def _new_channel(self) -> RankChannel:
        return RankChannel(
            self.rank,
            self._settings.rank_wait_s,
            self._settings.launch.has_agent_store,
            self.guard.run,
            heartbeat=self._hang_detector.heartbeat,
            on_messages=lambda messages: self.exchange.read_ahead(messages),
            stacks=lambda: self.hang_watch.attached(),
        )

    def _new_exchange(self) -> RankExchange:
        return RankExchange(
            self.rank,
            self._channel,
            self.recorder.names,
            self.recorder.clock,
            self.guard.run,
            self.instrumentation.context.gradient_sync,
            self.instrumentation.context.sync_points,
            self._context.begin_ns,
        )

    def _new_outputs(self) -> Outputs:
        names = self.recorder.names
        return Outputs(
            self._settings,
            self._context.opens_files,
            self.rank,
            self.guard,
            self._terminal,
            files=RunFiles(self._settings, names, self._context.begin_ns),
            thread=self._files_thread,
            lines=JournalLines(names),
            trackers=self._trackers,
            run_name=lambda: self.exchange.run_name,
            share_folder=self.exchange.share_folder,
        )

    def _new_hang_watch(self) -> HangWatch:
        return HangWatch(
            self.recorder,
            self._hang_detector,
            self._channel,
            self.rank,
            self.guard.run,
            training_thread=lambda: self.progress.thread_id,
            location=self.outputs.location,
            with_files=self.outputs.read_soon,
            report=self._terminal.report,
            wall_clock=time.time_ns,
            began_wall_ns=time.time_ns() - (self.recorder.clock() - self._context.begin_ns),
        )

    def _new_samplers(self) -> Samplers:
        clock, guard, launch = self.recorder.clock, self.guard.run, self._settings.launch
        lines = LineSampler(
            clock,
            guard,
            startup=self._context.startup,
            watch=partial(lock_watch, launch.openmp_sleeps),
            pace=self.budget.pace(LINES),
            new_stop=self.recorder.implementation.new_stop,
        )
        machine = MachineSampler(clock, guard, local_ranks=launch.local_world_size or 1, pace=self.budget.pace(MACHINE))
        return Samplers(
            lines,
            DeviceTime(self.recorder, self.accumulator, guard, self.health.spend, launch.cuda_connections),
            machine,
            GarbageWatch(guard),
            WorkerCollector(guard, self.instrumentation.awaited, pace=self.budget.pace(WORKERS)),
            settings=self._settings,
            clock=clock,
            begin_ns=self._context.begin_ns,
        )

    def _new_captures(self) -> Captures:
        return Captures(
            self.recorder.clock,
            self.guard.run,
            self.accumulator,
            self.recorder.names.names,
            self._settings.capture,
            run_as_overhead=self.health.run_as_overhead,
            place=self.outputs.location,
            read_soon=self.outputs.read_soon,
            report=self._terminal.report,
            ask_flush=lambda: self._session().flush_soon(),
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
