"""What one process profiles: its recorder, the session under way, and whether there is to be one at all."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from training_profiler.instrumentation.instrumentation import Instrumentation
from training_profiler.instrumentation.rank_patches import RankPatches
from training_profiler.recording.data_loader import LoaderRegistry
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.health import measure_section_cost_ns
from training_profiler.runtime.session import Session
from training_profiler.runtime.shutdown import is_loader_worker, is_worker
from training_profiler.runtime.wiring import RunContext, build_session
from training_profiler.settings import Settings, read_settings
from training_profiler.sinks.extras import require_packages


def usable_settings(arguments: Mapping[str, object] | None = None) -> Settings:
    """Return the settings, where all is there that they ask for.

    Raises:
        SettingsError: a value cannot be used.
        MissingExtraError: a tracker's package is not installed.
    """
    settings = read_settings(arguments)
    require_packages(settings.sinks)
    return settings


class Process:
    """What this process profiles."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        recorder.wait_for_first_section(self.begin_at_first_section)
        self.session: Session | None = None
        self.settings = usable_settings()  # so that a wrong variable is an error now, and not in the training
        self.is_silent = False  # for good in a forked child; in other workers until they start by name
        self.was_stopped = False
        self.is_bystander = False  # a child of a process that trains
        self.phase = "train"
        self.watch: Instrumentation | None = None
        self.watch_begin_ns: int | None = None
        self.manual_patches = RankPatches(recorder)
        self._beginning = threading.RLock()

    def start(self, settings: Settings) -> None:
        """Begin a session, or go on with other settings."""
        self.is_silent = False
        self.settings = settings
        if self.session is not None and self.session.is_running:
            self.session.reconfigure(settings)
        else:
            self.begin(opens_files=True)
        self.was_stopped = False

    def stop(self) -> None:
        """End the session, if there is one, and begin none at the next section."""
        self.was_stopped = True
        self.manual_patches.uninstall()
        if self.session is not None:
            self.session.close()

    def enter_phase(self, phase: str) -> str:
        """Enter ``"train"`` or ``"validation"``; return the phase before."""
        before, self.phase = self.phase, phase
        return before

    def instrument(self, torch: Any, begin_ns: int) -> None:
        """Patch ``torch``, which has just been imported; do nothing if that has happened or profiling was stopped."""
        if self.watch is None and not self.was_stopped:
            self.manual_patches.uninstall()
            self.watch = Instrumentation(self.recorder, self.begin_watched, self.loaders)
            self.watch_begin_ns = begin_ns
            self.watch.install(torch)

    def loaders(self) -> LoaderRegistry | None:
        """Return the loaders of the session; None without one."""
        return None if self.session is None else self.session.loaders

    def look_for_ranks(self) -> None:
        """See what the program does with other ranks, before its first section: it may be made for them by then."""
        if self.watch is None and not is_worker():
            self.manual_patches.install()

    def running(self) -> Session | None:
        """Return the session under way, beginning one if this process has had none."""
        session = self.session
        if session is not None:
            return session if session.is_running else None
        if self.is_silent or self.was_stopped or is_worker():
            return None
        with self._beginning:  # two threads may come to their first section at once
            if self.session is None:
                self.begin(opens_files=False)
        return self.session

    def begin_at_first_section(self) -> None:
        """Begin a session where a script only has sections and never starts one."""
        self.running()

    def begin(self, opens_files: bool) -> Session:
        """Begin a session with the settings that hold now."""
        cost_ns = measure_section_cost_ns()
        if self.watch is None:
            self.manual_patches.install()
        patches = self.watch or self.manual_patches
        patches.context.gradient_sync.start_run()
        begin_ns = self.recorder.clock() if self.watch_begin_ns is None else self.watch_begin_ns
        context = RunContext(self.recorder, cost_ns, begin_ns, opens_files, self.watch, patches)
        self.session = build_session(self.settings, context)
        self.session.start()
        return self.session

    def begin_watched(self) -> Callable[[int], None] | None:
        """Begin a session at the first event of a training that nobody edited; return what ends its steps.

        None where this process is not to have a session.
        """
        with self._beginning:  # two threads may come to their first event at once
            session = self.session
            if session is None and not self.was_stopped and not self.is_bystander and not is_loader_worker():
                session = self.begin(opens_files=False)
        if session is None or not session.is_running or session.watch is not self.watch:
            return None
        session.move_to_this_thread()
        return session.step

    def after_fork_in_child(self) -> None:
        """Stop recording in a forked child, whose run is its parent's."""
        self.is_silent = True
        self._beginning = threading.RLock()  # a thread that is not here any more may have held it
        # Where the parent trains, its children serve it; where it only waits, a child may be what trains.
        self.is_bystander |= self.watch is not None and self.watch.is_training
        if self.session is not None:
            self.session.after_fork_in_child()
            self.session = None
        self.manual_patches.after_fork_in_child()
        if self.watch is not None:
            self.watch_begin_ns = None
            self.watch.after_fork_in_child()
