"""Recorders on a fake clock: the one that is installed, and in ``test_implementations`` each of both."""

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
