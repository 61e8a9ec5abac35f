"""Recorders on a fake clock: the default recorder, and each of the two for ``test_implementations``."""

import pytest

from tests.support.recording import IMPLEMENTATIONS, FakeClock, implementation_of
from training_profiler.recording.implementation import Implementation
from training_profiler.recording.recorder import Recorder


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return implementation_of(request.param)


@pytest.fixture
def recorder(clock: FakeClock) -> Recorder:
    return Recorder(clock=clock)
