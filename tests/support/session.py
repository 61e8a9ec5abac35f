"""Sessions of a fake run, in which no patch of torch is installed."""

from typing import Any

from tests.support.recording import FakeRun
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.runtime.parts import RunContext
from training_profiler.runtime.session import Session
from training_profiler.settings.settings import Settings


def session_of(run: FakeRun, settings: Settings, opens_files: bool = True, **context: Any) -> Session:
    """Return a session of ``run`` that has not started."""
    instrumentation = Instrumentation(run.recorder, lambda: None)
    return Session(settings, RunContext(run.recorder, 0.0, run.clock(), opens_files, instrumentation, **context))
