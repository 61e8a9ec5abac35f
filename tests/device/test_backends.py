"""What is found to be in use, and that nothing is initialised for it."""

import sys
from types import SimpleNamespace

import pytest

from tests.support.device import FakeDevice
from tests.support.recording import FakeClock
from training_profiler.device.backends import find_accelerator


@pytest.fixture
def device(monkeypatch):
    one = FakeDevice(FakeClock())
    monkeypatch.setitem(sys.modules, "torch", one.torch())
    return one


def test_without_torch_there_is_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert find_accelerator() is None


def test_torch_on_a_machine_without_one_has_none(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert find_accelerator() is None


def test_one_that_is_not_initialised_is_left_alone(device):
    device.is_initialized = False
    assert find_accelerator() is None
    assert device.calls == []


def test_one_in_use_is_found_without_a_call_of_its_driver(device):
    found = find_accelerator()
    assert (found.kind, found.name) == ("cuda", "NVIDIA Fake")
    assert device.calls == []


def test_its_events_can_be_timed(device):
    found = find_accelerator()
    begin, end = found.make_event(), found.make_event()
    begin.record()
    device.queue(0.25)
    end.record()
    device.clock.advance(1)
    assert begin.elapsed_time(end) == 250.0


def test_torch_before_it_had_accelerators_has_its_own_events(device, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", device.torch(has_accelerator=False))
    found = find_accelerator()
    found.make_event().record()
    found.synchronize()
    assert device.calls == ["make event", "record", "synchronize"]


def test_of_a_single_device_the_driver_is_not_asked_which(device):
    device.index = 5
    assert find_accelerator().current_index() == 0


def test_of_several_devices_the_current_one_counts(device):
    device.count, device.index = 8, 5
    assert find_accelerator().current_index() == 5


def test_a_backend_that_is_no_part_of_torch_is_found_by_its_own_name(device, monkeypatch):
    torch = device.torch()
    torch.npu, torch.cuda = torch.cuda, SimpleNamespace(is_initialized=lambda: False)
    torch._C = SimpleNamespace(_get_privateuse1_backend_name=lambda: "npu")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert find_accelerator().kind == "npu"


@pytest.mark.parametrize(("allocated_bytes", "kind"), [(0, None), (4096, "mps")])
def test_metal_is_in_use_once_something_lies_on_it(device, monkeypatch, allocated_bytes, kind):
    torch = device.torch()
    torch.mps = SimpleNamespace(current_allocated_memory=lambda: allocated_bytes, device_count=lambda: 1)
    torch.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True))
    del torch.cuda
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = find_accelerator()
    assert (found and found.kind) == kind
    assert found is None or (found.name, found.current_index(), found.is_capturing()) == ("", 0, False)


def test_a_torch_whose_metal_module_cannot_say_whether_it_is_there_has_none(device, monkeypatch):
    torch = device.torch()
    torch.mps = SimpleNamespace(current_allocated_memory=lambda: pytest.fail("asked a device that is not there"))
    torch.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
    device.is_initialized = False
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert find_accelerator() is None
