"""Finding the accelerator in use, without initialising one; adding a kind of accelerator."""

import sys
from types import SimpleNamespace

import pytest

from tests.support.device import FakeDevice
from tests.support.recording import FakeClock
from tests.support.versions import needs_torch
from training_profiler.base import backends
from training_profiler.base.backends import BACKENDS, Backend, Description, find_accelerator
from training_profiler.sampling.gpu import GpuReading, Gpus
from training_profiler.torch_capture.window import Window


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice(FakeClock())
    monkeypatch.setitem(sys.modules, "torch", fake.torch())
    return fake


def test_no_accelerator_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert find_accelerator() is None


def test_accelerator_in_use_is_found_without_a_driver_call_and_an_uninitialised_one_is_left_alone(device):
    found = find_accelerator()
    assert (found.kind, found.name) == ("cuda", "NVIDIA Fake")
    device.is_initialized = False
    assert find_accelerator() is None
    assert device.calls == []


def test_torch_without_accelerator_module_uses_events_of_the_backend(device, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", device.torch(has_accelerator=False))
    found = find_accelerator()
    found.make_event().record()
    found.synchronize()
    assert device.calls == ["make event", "record", "synchronize"]


@pytest.mark.parametrize(("count", "index"), [(1, 0), (8, 5)])
def test_current_one_of_several_devices_counts_and_for_a_single_one_the_driver_is_not_asked(device, count, index):
    device.count, device.index = count, 5
    assert find_accelerator().current_index() == index


def test_backend_outside_torch_is_found_by_its_registered_name(device, monkeypatch):
    torch = device.torch()
    torch.npu, torch.cuda = torch.cuda, SimpleNamespace(is_initialized=lambda: False)
    torch._C = SimpleNamespace(_get_privateuse1_backend_name=lambda: "npu")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert find_accelerator().kind == "npu"


@pytest.mark.parametrize(("allocated_bytes", "kind"), [(0, None), (4096, "mps")])
def test_metal_is_in_use_once_memory_is_allocated(device, monkeypatch, allocated_bytes, kind):
    torch = device.torch()
    torch.mps = SimpleNamespace(current_allocated_memory=lambda: allocated_bytes, device_count=lambda: 1)
    torch.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True))
    del torch.cuda
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = find_accelerator()
    assert (found and found.kind) == kind
    assert found is None or (found.name, found.current_index(), found.is_capturing()) == ("", 0, False)


def test_unavailable_metal_is_never_asked_for_its_memory(device, monkeypatch):
    torch = device.torch()
    torch.mps = SimpleNamespace(current_allocated_memory=lambda: pytest.fail("asked a device that is not there"))
    torch.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
    device.is_initialized = False
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert find_accelerator() is None


@pytest.fixture
def new_backend(device, monkeypatch):
    """A torch whose only accelerator is a kind that the table has got one row for."""
    row = Backend(
        "zpu",
        profiler_activity="ZPU",
        read_memory=lambda module, index: {"allocated_bytes": 100.0 + index},
        describe=lambda module, index: Description("Z1", 1000),
    )
    torch = device.torch()
    torch.zpu = torch.cuda
    del torch.cuda
    torch.profiler = SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU="CPU", CUDA="CUDA", ZPU="ZPU"),
        supported_activities=lambda: {"CPU", "CUDA", "ZPU"},
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(backends, "BACKENDS", (*BACKENDS, row))
    return torch


def test_new_row_is_enough_for_device_timing(new_backend, device):
    found = find_accelerator()
    assert found.kind == "zpu"
    begin, end = found.make_event(), found.make_event()
    begin.record()
    device.queue(0.5)
    end.record()
    device.clock.advance(1)
    assert begin.elapsed_time(end) == 500.0


def test_new_row_is_enough_for_capture_and_without_its_activity_the_host_is_captured(new_backend, monkeypatch):
    assert Window(new_backend, FakeClock(), 5, 8)._activities() == ["CPU", "ZPU"]
    monkeypatch.setattr(backends, "BACKENDS", (Backend("zpu"),))
    assert Window(new_backend, FakeClock(), 5, 8)._activities() == ["CPU"]
    assert Gpus({"torch": new_backend}.get).read() == []  # nor has it memory figures


def test_gaudi_is_read_by_its_own_memory_figures(device):
    torch = device.torch()
    torch.hpu = torch.cuda
    torch.hpu.get_device_name = lambda index: "GAUDI2"
    torch.hpu.memory_stats = lambda index: {"Limit": 1000, "InUse": 250, "MaxInUse": 300}
    del torch.cuda
    assert Gpus({"torch": torch}.get).read() == [GpuReading(0, "GAUDI2", 1000, {"allocated_bytes": 250.0})]


@needs_torch(2, 5, "2.4 has no activity of HPU")
def test_every_profiler_activity_exists_in_torch():
    torch = pytest.importorskip("torch")
    named = {row.profiler_activity for row in BACKENDS if row.profiler_activity}
    assert named - set(dir(torch.profiler.ProfilerActivity)) == set()
