"""Sessions of a fake run, in which no patch of torch is installed."""

from pathlib import Path
from typing import Any

from tests.support.recording import FakeRun
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.runtime.pipeline import RunContext
from training_profiler.runtime.session import Session
from training_profiler.settings.settings import Settings


def session_of(run: FakeRun, settings: Settings, opens_files: bool = True, **context: Any) -> Session:
    """Return a session of ``run`` that has not started."""
    instrumentation = Instrumentation(run.recorder, lambda: None)
    return Session(settings, RunContext(run.recorder, 0.0, run.clock(), opens_files, instrumentation, **context))


class FakeTraining:
    """A session that has started, on a fake clock, with settings of the test's; nothing is sampled."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.run = FakeRun()
        self.clock = self.run.clock
        self.session = session_of(self.run, Settings(dir=str(folder), sample_hz=0, monitor_s=0.0, **settings))
        self.session.start()
