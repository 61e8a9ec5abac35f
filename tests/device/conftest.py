"""Fixtures of the tests of device time."""

import pytest

from tests.support.device import DeviceRun, device_run


@pytest.fixture
def run(monkeypatch) -> DeviceRun:
    """A run that stamps its sections on a fake device."""
    return device_run(monkeypatch)
