"""Everything about recording holds for the recorder in Python and for the one in C."""

import pytest

from tests.support.recording import IMPLEMENTATIONS, FakeClock, implementation_of
from training_profiler.recording.implementation import Implementation
from training_profiler.recording.recorder import Recorder


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return implementation_of(request.param)


@pytest.fixture
def recorder(clock: FakeClock, implementation: Implementation) -> Recorder:
    return Recorder(clock=clock, implementation=implementation)
