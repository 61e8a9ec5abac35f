"""What one process profiles: its recorder, the session under way, and whether there is to be one at all."""

import threading
from collections.abc import Callable, Mapping

from training_profiler.instrumentation.instrumentation import Instrumentation
from training_profiler.instrumentation.rank_patches import RankPatches
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.health import measure_section_cost_ns
from training_profiler.runtime.session import Session
from training_profiler.runtime.shutdown import is_loader_worker, is_worker
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
        self.session: Session | None = None
        self.settings = usable_settings()  # so that a wrong variable is an error now, and not in the training
        self.is_silent = False  # for good in a forked child; in other workers until they start by name
        self.was_stopped = False
        self.is_bystander = False  # a child of a process that trains
        self.phase = "train"
        self.watch: Instrumentation | None = None
        self.watch_begin_ns: int | None = None
        self.by_hand = RankPatches(recorder)
        self._beginning = threading.RLock()

    def look_for_ranks(self) -> None:
        """See what the program does with other ranks, before its first section: it may be made for them by then."""
        if self.watch is None and not is_worker():
            self.by_hand.install()

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
            self.by_hand.install()
        ranks = self.watch or self.by_hand
        ranks.context.gradient_sync.start_run()
        self.session = Session(self.recorder, self.settings, cost_ns, self.watch, self.watch_begin_ns, ranks)
        self.session.start(opens_files)
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

    def fall_silent(self) -> None:
        """Stop recording in a forked child, whose run is its parent's."""
        self.is_silent = True
        self._beginning = threading.RLock()  # a thread that is not here any more may have held it
        # Where the parent trains, its children serve it; where it only waits, a child may be what trains.
        self.is_bystander |= self.watch is not None and self.watch.is_training
        if self.session is not None:
            self.session.abandon()
            self.session = None
        self.by_hand.after_fork_in_child()
        if self.watch is not None:
            self.watch_begin_ns = None
            self.watch.after_fork_in_child()
