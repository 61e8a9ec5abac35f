"""Fixtures of the tests of device time."""

import gc
from collections.abc import Iterator

import pytest

from tests.support.device import DeviceRun, device_run


@pytest.fixture
def run(monkeypatch) -> Iterator[DeviceRun]:
    """A run that stamps its sections on a fake device."""
    gc.freeze()  # what is there by now takes a second to collect
    yield device_run(monkeypatch)
    gc.unfreeze()
