"""The books of one session: what was recorded is summed up here, and handed on an interval at a time."""

from collections.abc import Callable, Mapping

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.loaders import interval_stats
from training_profiler.aggregation.run import RunSums
from training_profiler.aggregation.totals import Totals
from training_profiler.device.device_time import DeviceTime
from training_profiler.diagnosis import diagnose
from training_profiler.instrumentation.instrumentation import Instrumentation
from training_profiler.instrumentation.loop_detection.epoch_detector import EpochBoundary
from training_profiler.ranks.channel import ReceivedMessage
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.hang_detector import HangDetector
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.section import Clock
from training_profiler.runtime.health import REPORTS_SHARE, ProfilerHealth
from training_profiler.runtime.outputs import Outputs
from training_profiler.sampling.line_sampler import LineSampler
from training_profiler.sampling.machine_sampler import MachineSampler
from training_profiler.settings import Settings
from training_profiler.snapshot.snapshot import PROFILER, Health, Snapshot
from training_profiler.torch_capture.controller import Captures
from training_profiler.torch_capture.trace_writer import OutputLocation


class Samplers:
    """The line sampler of one session, its clock of the accelerator, and its machine monitor."""

    def __init__(self, clock: Clock, guard: Callable[[str, Callable[[], None]], None], device: DeviceTime) -> None:
        self.lines = LineSampler(clock, guard)
        self.device = device
        self.machine = MachineSampler(clock, guard)

    def run(self, settings: Settings, since_ns: int) -> None:
        """Start with these settings, or go on with them."""
        self.lines.run_at(settings.sample_hz, since_ns)
        self.device.run(settings.timing)
        self.machine.run_every(settings.monitor_s)

    def sample_this_thread(self) -> None:
        """Look at the calling thread: it trains."""
        self.lines.sample_this_thread()
        self.device.sample_this_thread()

    def look(self, now_ns: int) -> None:
        """Do what is to be done now and then at the end of a step."""
        self.device.look(now_ns)

    def add_to(self, accumulator: Accumulator) -> None:
        """Hand over what was seen beside the events of the batch that was just added."""
        self.device.book()
        accumulator.totals.machine.look(self.machine.take())

    def stop(self) -> None:
        """End all threads."""
        self.lines.stop()
        self.device.stop()
        self.machine.stop()

    def abandon(self) -> None:
        """Forget the threads: in a forked child there are none."""
        self.lines.abandon()
        self.device.abandon()
        self.machine.abandon()

    def costs(self, run: Totals) -> list[str]:
        """Return a sentence for each on what it saw of the run, and what that cost."""
        costs = [cost for cost in (self.lines.cost(run.wall_ns), self.machine.cost(run.wall_ns)) if cost]
        return [*costs, *self.device.notes()]


class Pipeline:
    """Sums of the run, of the interval since the last report, and of the epoch; one thread at a time may call.

    ``training_thread`` is the serial of the thread whose time is the run's.
    """

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        begin_ns: int,
        watch: Instrumentation | None,
        profiler_health: ProfilerHealth,
        outputs: Outputs,
        left_out: Callable[[], tuple[int, int]],  # periodic reports, and turns of epochs
    ) -> None:
        self.loaders = LoaderRegistry()
        if watch is not None:
            watch.loaders = self.loaders
        self.accumulator = Accumulator(recorder.names, begin_ns, settings.warmup)
        self.accumulator.inferred.is_needed = watch is not None
        device = DeviceTime(recorder, self.accumulator, profiler_health.guard, profiler_health.spend)
        self.samplers = Samplers(recorder.clock, profiler_health.guard, device)
        self.captures = Captures(
            recorder.clock,
            profiler_health.guard,
            self._do_as_own,
            self._place,
            self._say,
            self.accumulator,
            recorder.names.names,
        )
        self.peers = RankExchange(outputs.rank, outputs.channel, recorder.names, recorder.clock, outputs.tell, begin_ns)
        self.sums = RunSums(recorder.names, begin_ns, settings.warmup)
        self.training_thread = recorder.thread_id()
        self.hang_detector = HangDetector(
            recorder, self.accumulator, lambda: self.training_thread, outputs.rank.who.host, self._report_hang
        )
        outputs.channel.alive, outputs.channel.watch = self.hang_detector.alive, self._look_at_others
        self._recorder = recorder
        self._watch = watch
        self._health_of_profiler = profiler_health
        self._outputs = outputs
        self._left_out = left_out
        self.reconfigure(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings."""
        self._settings = settings
        self.accumulator.loaders.wants_rows(bool(settings.sinks), settings.log_scalars_every_n_steps)
        self.accumulator.warmup_steps = self.sums.warmup_steps = settings.warmup
        self.peers.reconfigure(settings.warmup)
        self.captures.reconfigure(settings.capture)

    def drain(self) -> None:
        """Sum up what was recorded since the last drain."""
        self.accumulator.add(self._recorder.drain(), self.training_thread, self.samplers.lines.take())
        self.samplers.add_to(self.accumulator)
        self._tell_of_loaders()

    def _tell_of_loaders(self, is_last: bool = False) -> None:
        for row in self.accumulator.loaders.take_rows(is_last):
            self._outputs.loader_row(row.step, interval_stats(row, self.loaders.all))

    def flush(self) -> None:
        """Drain, and write the journal's next line."""
        self.drain()
        exchanged = self.peers.book_exchange(self.accumulator)
        totals, step_ns = self.accumulator.take_totals()
        totals.batches, totals.samples = self.loaders.drain_interval()
        if self._watch is not None:
            totals.flops, totals.slow_steps = self._watch.flops.counted, self._watch.flops.slow_steps
        self.sums.add(totals, step_ns)
        inside, device = self.accumulator.open_sections(self.training_thread), self.samplers.device.stats()
        self._outputs.journal(
            lambda journal: journal.write_interval(totals, step_ns, self.health(), self.loaders.all, inside, device)
        )
        self.peers.add(totals, step_ns, exchanged)
        self.peers.tell(self.sums.run, inside=inside)

    def report(self) -> None:
        """Print and send the interval since the last report."""
        self.flush()
        if self._outputs.is_primary():
            self._outputs.periodic(self._interval())
            self.peers.new_interval()
        self.sums.new_interval()

    def _look_at_others(self, told: Mapping[int, ReceivedMessage]) -> None:
        self.peers.read_ahead(told)
        self.hang_detector.interval_s = self._outputs.channel.every_s
        self.hang_detector.look(told)

    def _report_hang(self, line: str) -> None:
        self._health_of_profiler.notes.append(line.removeprefix("Profiler: "))
        self._outputs.say(line)

    def _say(self, sentence: str) -> None:
        self._report_hang(f"Profiler: {sentence}")

    def _do_as_own(self, work: Callable[[], None]) -> None:
        """Do ``work`` on the training thread, as a cost of the profiler's."""
        begin_ns = self._recorder.clock()
        try:
            with self._recorder.section(PROFILER):
                work()
        finally:
            self._health_of_profiler.spend(self._recorder.clock() - begin_ns)

    def _place(self, is_needed: bool) -> OutputLocation:
        if is_needed and self._outputs.run_folder is None:
            self._outputs.journal(lambda journal: None)
        return OutputLocation(self._outputs.run_folder, self._outputs.rank.who.rank, self._outputs.rank.who.attempt)

    def send_interval(self, tracker: str | None = None) -> None:
        """Send what was measured since the last report, to one tracker or to all."""
        self._outputs.interval_row(self._interval(), tracker)

    def _interval(self) -> Snapshot:
        return self.sums.snapshot(
            self.health(),
            of_interval=True,
            device=self.samplers.device.stats(),
            ranks=self.peers.stats(self.sums.run, of_interval=True),
            exchange=self.peers.gradient_sync_stats(),
            thresholds=self._settings.thresholds,
        )

    def begin_epoch(self, number: int) -> None:
        """Begin the sums of an epoch."""
        self.flush()
        self.loaders.begin_epoch()
        self.sums.begin_epoch(number)
        self._outputs.journal(lambda journal: journal.write_epoch_begin(number))

    def end_epoch(self, is_complete: bool) -> None:
        """End them, and report on the epoch."""
        self.flush()
        self._end_epoch(*self.loaders.epoch_counts(), is_complete)

    def _end_epoch(self, batches: int | None, samples: int | None, is_complete: bool) -> None:
        if self.sums.is_in_epoch:
            self._outputs.journal(lambda journal: journal.write_epoch_end(batches, samples, is_complete))
            stats = self.sums.end_epoch(batches, samples, is_complete)
            if stats is not None:
                self._outputs.epoch(stats, self.sums.steps)

    def roll_over_epoch(self, turn: EpochBoundary | None) -> None:
        """End the epoch that seams saw and begin the next, where what is recorded is held back; None: there is none."""
        if turn is None:
            self.sums.drop_epoch()
            return
        self.flush()
        self._end_seen_epoch(turn.batches, turn.samples, is_complete=True)
        self.sums.begin_epoch(turn.number)
        self._outputs.journal(lambda journal: journal.write_epoch_begin(turn.number))

    def _end_seen_epoch(self, batches: int | None, samples: int | None, is_complete: bool) -> None:
        if batches is not None and self.sums.epoch_steps > batches:  # they were used more than once: this was no pass
            self.sums.drop_epoch()
        else:
            self._end_epoch(batches, samples, is_complete)

    def _end_last_epoch(self) -> None:
        epochs = None if self._watch is None else self._watch.epochs
        if epochs is None or epochs.current is None:
            self.end_epoch(is_complete=False)
            return
        last = epochs.last()
        if last is None:
            self.sums.drop_epoch()
        else:
            self._end_seen_epoch(*last)

    def close(self, ended_by: str | None) -> None:
        """Report on the run, which is over."""
        self._health_of_profiler.guard(
            "statistics", self.flush
        )  # should it fail, what was summed up before is still told
        self._health_of_profiler.guard("capture", self.captures.finish)
        if self.sums.is_in_epoch:
            self._end_last_epoch()
        self._health_of_profiler.guard("trackers", lambda: self._tell_of_loaders(is_last=True))
        inside = self.accumulator.open_sections(self.training_thread)
        self._health_of_profiler.guard(
            "ranks", lambda: self.peers.close(self.sums.run, inside=inside, ended_by=ended_by)
        )
        if not self._outputs.is_primary():
            self._outputs.close(self.health, ended_by)  # which may find the run's folder, if nobody told of it
            self._health_of_profiler.guard("ranks", self.peers.finish)
            return
        self._health_of_profiler.guard("ranks", self.peers.finish)
        self.send_interval()
        self._outputs.final(lambda: self.stats(ended_by), diagnose(self.stats(ended_by)), self.health)

    def stats(self, ended_by: str | None = None) -> Snapshot:
        """Return the figures of the run as far as they are summed up."""
        return self.sums.snapshot(
            self.health(),
            loaders=self.loaders.all,
            device=self.samplers.device.stats(),
            open_sections=self.accumulator.open_sections(self.training_thread),
            run_folder=self._outputs.run_folder,
            ended_by=ended_by,
            ranks=self.peers.stats(self.sums.run),
            exchange=self.peers.gradient_sync_stats(),
            attempts=self._outputs.attempts,
            thresholds=self._settings.thresholds,
        )

    def health(self) -> Health:
        """Return how the profiler fared so far."""
        reports, has_left_out = self._left_out()
        notes = [*self.samplers.costs(self.sums.run), *self._outputs.notes(), *self.peers.notes()]
        if has_left_out and self._watch is not None:
            seen = self._watch.epochs.number
            missing = seen - len(self.sums.epochs) - self.sums.is_in_epoch
            notes.append(
                f"{missing} of {seen} epochs have no figures: at this pace they would cost over {REPORTS_SHARE:.2%} of "
                f"the run"
            )
        return self._health_of_profiler.health(self.sums.run, reports, notes)
