"""What the tests of device time share."""

import pytest
from fakes_device import DeviceRun, device_run


@pytest.fixture
def run(monkeypatch) -> DeviceRun:
    """A run that stamps its sections on a fake device."""
    return device_run(monkeypatch)
