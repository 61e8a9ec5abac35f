"""The recorder and the session of one process, and the rules for when a session begins."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

from training_profiler.instrumentation.context import WorkerHooks
from training_profiler.recording.data_loader import LoaderCounts, LoaderRegistry
from training_profiler.runtime.health import measure_section_cost_ns
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.runtime.parts import new_recorder
from training_profiler.runtime.pipeline import RunContext
from training_profiler.runtime.session import Session
from training_profiler.runtime.shutdown import is_loader_worker, is_worker
from training_profiler.sampling.line_sampler import ImportOfTorch, StartupSampler
from training_profiler.sampling.stacks import CallSiteReader
from training_profiler.sampling.worker_observer import observe_worker
from training_profiler.settings.settings import Settings, read_settings
from training_profiler.sinks.trackers import with_installed_sinks


def usable_settings(arguments: Mapping[str, object] | None = None) -> Settings:
    """Return the settings, with the trackers whose packages are installed.

    Raises:
        SettingsError: a value cannot be used.
        MissingExtraError: a tracker's package is not installed.
    """
    return with_installed_sinks(read_settings(arguments))


class Process:
    """The recorder, the settings and the session of this process."""

    def __init__(self) -> None:
        self.settings = usable_settings()  # a wrong variable must fail here, not in the training
        self.recorder = new_recorder(self.settings)
        self.recorder.wait_for_first_section(self.running)
        self.session: Session | None = None
        self._trainers_session: Session | None = None  # begun for a framework's trainer
        self.is_silent = False  # a forked child stays silent; another worker may start a run itself
        self.was_stopped = False
        self.is_bystander = False  # a child of a process that trains
        self.phase = "train"
        self.instrumentation: Instrumentation | None = None  # in use from the import of torch on
        self.process_begin_ns: int | None = None
        self._is_requested = True
        self._startup: StartupSampler | None = None
        self._beginning = threading.RLock()

    def start(self, settings: Settings) -> None:
        """Begin a session, or change the settings of the running one."""
        self.is_silent = self.was_stopped = False
        self.settings = settings
        if self.session is not None and self.session.is_running:
            self.session.reconfigure(settings)
            return
        if "torch" in sys.modules and (self.instrumentation is None or self._has_ended()):  # of a run before
            self.instrument(sys.modules["torch"], self.recorder.clock())
        self.begin(opens_files=True).use_api()

    @property
    def is_profiled(self) -> bool:
        """Whether a session is under way, or begins by itself at the first event of the training."""
        if self.session is not None:
            return self.session.is_running
        return self.instrumentation is not None and self.instrumentation.is_installed

    def start_for_trainer(self, settings: Settings, torch: Any) -> bool:
        """Begin a session that instruments this process, unless it has one already; return whether one was begun."""
        if self.is_profiled:
            return False
        self.was_stopped = False
        self.instrument(torch, self.recorder.clock())
        self.start(settings)
        self._trainers_session = self.session
        return True

    def stop_for_trainer(self) -> None:
        """End the session that ``start_for_trainer`` began, unless it has ended."""
        session, self._trainers_session = self._trainers_session, None
        if session is not None and session is self.session:
            session.snapshot()  # a run without steps, such as a prediction, then has something to report
            self.stop()
            self.instrumentation = None

    def stop(self) -> None:
        """End the session. Later sections do not begin a new one."""
        self.was_stopped = True
        if self._startup is not None:
            self._startup.stop()
            self._startup = None
        if self.instrumentation is not None and self.instrumentation.awaits_torch:
            self.instrumentation.uninstall()
        if self.session is not None:
            self.session.close()

    def enter_phase(self, phase: str) -> str:
        """Enter ``"train"`` or ``"validation"``; return the phase before."""
        before, self.phase = self.phase, phase
        return before

    def await_torch(self) -> Instrumentation:
        """Return the instrumentation; a run may begin with it before the program imports torch."""
        if self.instrumentation is None or self._has_ended():
            workers = WorkerHooks(self._expect_workers, self._add_workers, self._observe_worker)
            begin, read_site = self.begin_instrumented, CallSiteReader().read
            self.instrumentation = Instrumentation(self.recorder, begin, self.loaders, workers, read_site)
            self.instrumentation.install_early()
        return self.instrumentation

    def _has_ended(self) -> bool:
        """Return whether the instrumentation was removed at the end of a run."""
        patches = self.instrumentation
        return patches is not None and not (patches.awaits_torch or patches.is_installed)

    def instrument(
        self, torch: Any, begin_ns: int, imported: ImportOfTorch | None = None, is_requested: bool = True
    ) -> None:
        """Patch ``torch``; do nothing if that has happened or profiling was stopped.

        ``imported`` is when the import began, and where. See ``api.start_instrumentation`` for ``is_requested``.
        """
        if not self.was_stopped and self.await_torch().awaits_torch:
            self._is_requested = is_requested
            self.process_begin_ns = begin_ns
            self.await_torch().install(torch)
            if self.session is None and self.settings.sample_hz and not is_loader_worker():
                new_stop = self.recorder.implementation.new_stop
                self._startup = StartupSampler(self.recorder.clock, begin_ns, imported, new_stop=new_stop)
                self._startup.start(self.settings.sample_hz)

    def _expect_workers(self) -> None:
        if self.session is not None and self.session.is_running:
            self.session.run.samplers.workers.expect()

    def _add_workers(self, counts: LoaderCounts, workers: Iterable[int]) -> None:
        if self.session is not None:
            self.session.run.samplers.workers.add(counts, workers)

    def _observe_worker(self, loop: CodeType) -> Callable[[], None]:
        """Observe this process, which is a loader's worker; return the function that ends that."""
        if self._startup is not None:  # it was spawned: only now is it known not to train
            self._startup.stop()
            self._startup = None
        return observe_worker(loop, self.recorder.implementation.new_stop)

    def loaders(self) -> LoaderRegistry | None:
        """Return the loaders of the session; None without one."""
        return None if self.session is None else self.session.run.loaders

    def running(self) -> Session | None:
        """Return the running session. Begin one if this process has had none: a script may never call start."""
        session = self.session
        if session is not None:
            session.use_api()
            return session if session.is_running else None
        if self.is_silent or self.was_stopped or is_worker():
            return None
        with self._beginning:  # two threads may enter their first section at once
            if self.session is None:
                self.begin(opens_files=False).use_api()
        return self.session

    def begin(self, opens_files: bool, awaits_training: bool = False) -> Session:
        """Begin a session with the current settings; see ``RunContext`` for the arguments."""
        cost_ns = measure_section_cost_ns(self.recorder.implementation)
        instrumentation = self.await_torch()
        instrumentation.context.gradient_sync.start_run()
        begin_ns = self.recorder.clock() if self.process_begin_ns is None else self.process_begin_ns
        startup, self._startup = self._startup, None
        context = RunContext(
            self.recorder,
            cost_ns,
            begin_ns,
            opens_files,
            instrumentation,
            awaits_training,
            startup,
            flushes_beside=True,
        )
        self.session = Session(self.settings, context)
        self.session.start()
        return self.session

    def begin_instrumented(self) -> Callable[[int], None] | None:
        """Begin a session at the first event of an unmodified training; return the function that ends its steps.

        Returns None if this process must not have a session.
        """
        with self._beginning:  # two threads may record their first event at once
            session = self.session
            if session is None and not self.was_stopped and not self.is_bystander and not is_loader_worker():
                session = self.begin(opens_files=False, awaits_training=not self._is_requested)
        if session is None or not session.is_running or session.instrumentation is not self.instrumentation:
            return None
        session.move_to_this_thread()
        return session.step

    def before_fork(self) -> None:
        """Let no stream be locked in the child by a thread that it does not have."""
        if self.session is not None:
            self.session.run.terminal.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on after a fork."""
        if self.session is not None:
            self.session.run.terminal.after_fork()

    def after_fork_in_child(self) -> None:
        """Stop recording in a forked child: the run belongs to its parent."""
        self.is_silent = True
        self.recorder.after_fork_in_child()
        self._beginning = threading.RLock()  # a thread that the child does not have may hold the old one
        # A child of a training process serves it. A child of a launcher may train itself.
        self.is_bystander |= self.instrumentation is not None and self.instrumentation.is_training
        if self.session is not None:
            self.session.after_fork_in_child()
            self.session = None
        if self.instrumentation is not None:
            self.process_begin_ns = self._startup = None
            self.instrumentation.after_fork_in_child()
