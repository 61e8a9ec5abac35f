"""Constructs and connects the parts of a session and does not change them afterwards."""

import multiprocessing
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.native_sums import arithmetic_of
from training_profiler.aggregation.run import RunSums
from training_profiler.device.device_time import DeviceTime
from training_profiler.instrumentation.instrumentation import Instrumentation
from training_profiler.loader_workers.collector import WorkerCollector
from training_profiler.ranks.channel import RankChannel, ReceivedMessage
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.hang_detector import HangDetector
from training_profiler.ranks.identity import Rank
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.hang_watch import HangWatch
from training_profiler.runtime.health import ProfilerHealth, measure_section_cost_ns
from training_profiler.runtime.notebook import NotebookCells
from training_profiler.runtime.output_thread import OutputThread
from training_profiler.runtime.outputs import Outputs
from training_profiler.runtime.parts import Parts
from training_profiler.runtime.pipeline import Pipeline
from training_profiler.runtime.progress import TrainingProgress
from training_profiler.runtime.samplers import Samplers
from training_profiler.runtime.session import Session
from training_profiler.runtime.shutdown import Shutdown
from training_profiler.runtime.terminal import Terminal
from training_profiler.safety.cost_budget import LINES, MACHINE, WORKERS, CostBudget
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.garbage_watch import GarbageWatch
from training_profiler.sampling.line_sampler import LineSampler
from training_profiler.sampling.lock_watch import lock_watch
from training_profiler.sampling.machine_sampler import MachineSampler
from training_profiler.sampling.startup_sampler import StartupSampler
from training_profiler.settings.settings import Settings
from training_profiler.sinks.trackers import Trackers
from training_profiler.snapshot.ranks import RankId
from training_profiler.storage.journal import JournalLines
from training_profiler.storage.run_files import RunFiles
from training_profiler.torch_capture.controller import Captures


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


def _health(context: RunContext, guard: FaultGuard) -> ProfilerHealth:
    recorder, measure = context.recorder, None
    if context.flushes_beside:  # measured on that thread: the training wants the CPU, or Python's lock, as well
        measure = partial(measure_section_cost_ns, recorder.implementation, spent=time.thread_time_ns)
    return ProfilerHealth(recorder, context.section_cost_ns, guard, has_patches=True, measure=measure)


def build_session(settings: Settings, context: RunContext) -> Session:
    """Return a session that has not started."""
    recorder, begin_ns = context.recorder, context.begin_ns
    session: Session  # some parts call back into it while it runs

    guard = FaultGuard()
    health = _health(context, guard)
    rank, progress = rank_of(settings), TrainingProgress(recorder.thread_id(), context.awaits_training)
    arithmetic = arithmetic_of(recorder.implementation)
    accumulator = Accumulator(recorder.names, begin_ns, settings.warmup, has_inferred=True, arithmetic=arithmetic)
    sums = RunSums(recorder.names, begin_ns, settings.warmup)
    terminal = Terminal(rank, guard, health, settings.stream, lambda: progress.steps)
    hang_detector = HangDetector(
        recorder, accumulator, lambda: progress.thread_id, rank.who.host, lambda: progress.steps
    )
    hang_watch: HangWatch  # the channel sends its stacks, and it reads those that the channel receives
    channel = _build_channel(
        settings,
        rank,
        guard,
        hang_detector,
        on_messages=lambda messages: exchange.read_ahead(messages),
        stacks=lambda: hang_watch.attached(),
    )
    exchange = _build_exchange(context, rank, guard, channel)
    files_thread = OutputThread(
        "files", guard.run, "files", tick=(lambda: session.flush_beside()) if context.flushes_beside else None
    )
    trackers = Trackers(
        guard.run, last_row=lambda tracker: session.send_last_row(tracker), report=lambda: session.report_files()
    )
    outputs = _build_outputs(settings, context, rank, guard, terminal, exchange, files_thread, trackers)
    hang_watch = _build_hang_watch(context, hang_detector, channel, rank, guard, progress, outputs, terminal)
    counted = _costs(context.startup, health, sums, files_thread, terminal, trackers, channel, hang_watch)
    budget = CostBudget(recorder.clock, begin_ns, counted)
    parts = Parts(
        recorder=recorder,
        instrumentation=context.instrumentation,
        guard=guard,
        health=health,
        budget=budget,
        rank=rank,
        progress=progress,
        accumulator=accumulator,
        sums=sums,
        loaders=LoaderRegistry(),
        exchange=exchange,
        outputs=outputs,
        samplers=_build_samplers(settings, context, guard, health, accumulator, budget),
        captures=_build_captures(
            settings, recorder, guard, health, accumulator, outputs, terminal, lambda: session.flush_soon()
        ),
        hang_watch=hang_watch,
    )
    shutdown = Shutdown(lambda ended_by: session.close(ended_by))
    cells = NotebookCells(lambda: progress.steps, lambda: session.show_so_far())
    session = Session(settings, begin_ns, parts, Pipeline(settings, parts), shutdown, cells)
    return session


def _costs(
    startup: StartupSampler | None,
    health: ProfilerHealth,
    sums: RunSums,
    files: OutputThread,
    terminal: Terminal,
    trackers: Trackers,
    channel: RankChannel,
    hangs: HangWatch,
) -> dict[str, Callable[[], float]]:
    """Return functions that return the CPU time so far of each part that cannot wait, in ns."""
    return {
        "startup sampler": lambda: 0.0 if startup is None else startup.cpu_ns,
        "sections and patches": lambda: health.sections_ns(sums.run),
        "collecting": lambda: health.collecting_ns,
        "files": lambda: files.cpu_ns,
        "terminal": lambda: terminal.cpu_ns,
        "trackers": lambda: trackers.cpu_ns,
        "other ranks": lambda: channel.cpu_ns,
        "hangs": lambda: hangs.cpu_ns,
    }


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


def _build_outputs(
    settings: Settings,
    context: RunContext,
    rank: Rank,
    guard: FaultGuard,
    terminal: Terminal,
    exchange: RankExchange,
    files_thread: OutputThread,
    trackers: Trackers,
) -> Outputs:
    names = context.recorder.names
    return Outputs(
        settings,
        context.opens_files,
        rank,
        guard,
        terminal,
        RunFiles(settings, names, context.begin_ns),
        files_thread,
        JournalLines(names),
        trackers,
        run_name=lambda: exchange.run_name,
        share_folder=exchange.share_folder,
    )


def _build_channel(
    settings: Settings,
    rank: Rank,
    guard: FaultGuard,
    detector: HangDetector,
    on_messages: Callable[[Mapping[int, ReceivedMessage]], None],
    stacks: Callable[[], bytes],
) -> RankChannel:
    return RankChannel(
        rank,
        settings.rank_wait_s,
        settings.launch.has_agent_store,
        guard.run,
        heartbeat=detector.heartbeat,
        on_messages=on_messages,
        stacks=stacks,
    )


def _build_exchange(context: RunContext, rank: Rank, guard: FaultGuard, channel: RankChannel) -> RankExchange:
    recorder, patches = context.recorder, context.instrumentation
    return RankExchange(
        rank,
        channel,
        recorder.names,
        recorder.clock,
        guard.run,
        patches.context.gradient_sync,
        patches.context.sync_points,
        context.begin_ns,
    )


def _build_hang_watch(
    context: RunContext,
    detector: HangDetector,
    channel: RankChannel,
    rank: Rank,
    guard: FaultGuard,
    progress: TrainingProgress,
    outputs: Outputs,
    terminal: Terminal,
) -> HangWatch:
    recorder = context.recorder
    return HangWatch(
        recorder,
        detector,
        channel,
        rank,
        guard.run,
        lambda: progress.thread_id,
        outputs.location,
        outputs.read_soon,
        terminal.report,
        time.time_ns,
        time.time_ns() - (recorder.clock() - context.begin_ns),
    )


def _build_samplers(
    settings: Settings,
    context: RunContext,
    guard: FaultGuard,
    health: ProfilerHealth,
    accumulator: Accumulator,
    budget: CostBudget,
) -> Samplers:
    recorder = context.recorder
    return Samplers(
        LineSampler(
            recorder.clock,
            guard.run,
            startup=context.startup,
            watch=partial(lock_watch, settings.launch.openmp_sleeps),
            pace=budget.pace(LINES),
            new_stop=recorder.implementation.new_stop,
        ),
        DeviceTime(recorder, accumulator, guard.run, health.spend, settings.launch.cuda_connections),
        MachineSampler(
            recorder.clock,
            guard.run,
            local_ranks=settings.launch.local_world_size or 1,
            pace=budget.pace(MACHINE),
        ),
        GarbageWatch(guard.run),
        WorkerCollector(
            guard.run,
            context.instrumentation.awaited,
            pace=budget.pace(WORKERS),
        ),
        settings,
        recorder.clock,
        context.begin_ns,
    )


def _build_captures(
    settings: Settings,
    recorder: Recorder,
    guard: FaultGuard,
    health: ProfilerHealth,
    accumulator: Accumulator,
    outputs: Outputs,
    terminal: Terminal,
    ask_flush: Callable[[], None],
) -> Captures:
    return Captures(
        recorder.clock,
        guard.run,
        health.run_as_overhead,
        outputs.location,
        outputs.read_soon,
        terminal.report,
        accumulator,
        recorder.names.names,
        settings.capture,
        ask_flush,
    )
