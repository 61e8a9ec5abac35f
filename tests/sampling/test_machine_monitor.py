"""The monitor thread: its samples, and its end."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.recording import FakeClock
from training_profiler.aggregation.machine import MachineSums
from training_profiler.recording.recorder import Recorder
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.gpu import GpuReading
from training_profiler.sampling.host import Container, HostReading
from training_profiler.sampling.machine_sampler import MachineReader, MachineSampler
from training_profiler.sampling.run_queue import Faults

NAME = "training_profiler machine"


class FakeHost:
    """A host of four CPUs, two of which are for this process."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.tree_cpu_s: float | None = 100.0
        self.host_cpu_s = (0.0, 0.0)
        self.stolen_s: float | None = None
        self.siblings = 0

    cores, usable_cores, allowed = 4, 2.0, ()

    def read(self) -> HostReading:
        return HostReading(self.tree_cpu_s, 300, 400, self.host_cpu_s, None, self.stolen_s, 1000, 600, self.siblings)

    def work(self, seconds: float, process_s: float, host_s: float) -> None:
        self._clock.advance(seconds)
        self.tree_cpu_s += process_s
        self.host_cpu_s = (self.host_cpu_s[0] + host_s, self.host_cpu_s[1] + 4 * seconds)


class FakeGpus:
    without_counters = ""

    def __init__(self) -> None:
        self.closed = 0

    def read(self) -> list[GpuReading]:
        return [GpuReading(1, "T4", 99, {"allocated_bytes": 7.0})]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def host(clock: FakeClock) -> FakeHost:
    return FakeHost(clock)


@pytest.fixture
def reader(clock: FakeClock, host: FakeHost) -> MachineReader:
    return MachineReader(clock, host, FakeGpus(), Container(None, None, None, None))


@pytest.fixture
def monitor(clock: FakeClock, recorder: Recorder, tmp_path: Path):
    gpus = FakeGpus()
    monitor = MachineSampler(clock, FaultGuard().run, host=lambda: FakeHost(clock), gpus=lambda: gpus, root=tmp_path)
    yield monitor
    monitor.close()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


def test_cpu_use_covers_the_time_since_the_previous_reading(reader, host):
    first = reader.sample().values
    assert not {"cpu_process", "cpu_host"} & first.keys()
    assert (first["ram_own_bytes"], first["ram_process_bytes"], first["ram_host_bytes"]) == (300, 400, 400)
    host.work(2.0, process_s=3.0, host_s=6.0)
    sample = reader.sample()
    assert (sample.values["cpu_process"], sample.values["cpu_host"]) == (1.5, 0.75)
    assert sample.weights["cpu_process"] == 2.0
    host.work(0.05, process_s=0.05, host_s=0.05)
    assert "cpu_process" not in reader.sample().values  # too short a time
    host.work(0.15, process_s=0.0, host_s=0.05)
    assert reader.sample().values["cpu_process"] == pytest.approx(0.25)
    host.work(1.0, process_s=1.0, host_s=1.0)
    before_s, host.tree_cpu_s = host.tree_cpu_s, None
    assert "cpu_process" not in reader.sample().values  # children were not read
    host.tree_cpu_s = before_s
    host.work(1.0, process_s=2.0, host_s=1.0)
    sample = reader.sample()
    assert (sample.values["cpu_process"], sample.weights["cpu_process"]) == (pytest.approx(1.5), pytest.approx(2.0))


def test_with_a_limit_memory_is_a_share_of_it(clock, host, tmp_path):
    (tmp_path / "memory.current").write_text("450\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1000000\n")
    reader = MachineReader(clock, host, FakeGpus(), Container(tmp_path, 500, tmp_path, 1.5))
    reader.sample()
    (tmp_path / "cpu.stat").write_text("usage_usec 4000000\n")
    clock.advance(2.0)
    sample = reader.sample()
    assert (sample.values["ram_share"], sample.values["ram_available_bytes"]) == (0.9, 50)
    assert sample.values["cpu_container"] == 1.5
    assert (sample.facts["ram_limit_bytes"], sample.facts["cores"]) == (500, 1.5)


def test_limit_above_the_host_memory_is_ignored(clock, host, tmp_path):
    (tmp_path / "memory.current").write_text("450\n")
    sample = MachineReader(clock, host, FakeGpus(), Container(tmp_path, 2000, None, None)).sample()
    assert "ram_limit_bytes" not in sample.facts
    assert sample.values["ram_share"] == 0.4
    assert sample.values["gpu1.allocated_bytes"] == 7.0  # by torch's index
    assert (sample.facts["gpu1.name"], sample.facts["gpu1.total_bytes"]) == ("T4", 99)


def test_a_profiler_of_torch_is_noticed(reader):
    assert reader.sample().values["recorded"] == 0.0
    with torch.autograd.profiler.profile():  # the profiler of torch that starts fastest
        assert reader.sample().values["recorded"] == 1.0
    assert reader.sample().values["recorded"] == 0.0


def test_page_faults_are_rates_and_priced_once_where_they_are_many(clock, host):
    costs = iter([5e-6])
    readings = iter((None, Faults(1_000, 4, 0.5), Faults(4_000, 0, 1.0), Faults(9_000, 0, 1.0)))
    faults: Any = SimpleNamespace(read=lambda: next(readings))
    reader = MachineReader(
        clock, host, FakeGpus(), Container(None, None, None, None), faults=faults, page_cost_s=lambda: next(costs)
    )
    assert "page_faults" not in reader.sample().values
    clock.advance(2.0)
    few = reader.sample()
    assert (few.values["page_faults"], few.values["pages_read"], few.values["cpu_kernel"]) == (500.0, 2.0, 0.25)
    assert few.weights["page_faults"] == 2.0
    assert "page_cost_s" not in few.facts
    for _ in range(2):
        clock.advance(2.0)
        assert reader.sample().facts["page_cost_s"] == 5e-6


def test_short_run_has_a_sample_at_both_ends(monitor):
    monitor.start(3600)
    monitor.close()
    assert len(monitor.pop_samples()) == 2
    assert monitor.pop_samples() == []
    assert monitor.cost().startswith("system monitor: 2 samples, ")


def test_new_interval_takes_effect_at_once(monitor):
    monitor.start(0)
    assert (threads(), monitor.cost()) == ([], None)
    monitor.start(3600)
    thread = monitor._thread
    monitor.start(3600)
    assert monitor._thread is thread
    monitor.start(0.001)
    while monitor.samples < 10:
        sum(range(1000))
    monitor.start(0)
    assert threads() == []


def test_error_disables_only_the_monitor(clock, recorder, tmp_path, caplog):
    class Failing(FakeHost):
        def read(self) -> HostReading:
            raise ZeroDivisionError("no such thing")

    guard = FaultGuard()
    monitor = MachineSampler(clock, guard.run, host=lambda: Failing(clock), gpus=FakeGpus, root=tmp_path)
    monitor.start(3600)
    monitor.close()
    assert guard.disabled == {"system monitor": "ZeroDivisionError: no such thing"}
    assert "system monitor switched off, the training goes on" in caplog.text


def test_energy_of_a_device_adds_up_over_stretches_to_what_its_counter_counted(clock, host):
    class Counting(FakeGpus):
        energy_j = 1_000_000.0  # since the driver was loaded

        def read(self) -> list[GpuReading]:
            return [GpuReading(0, "T4", 99, {"energy_j": self.energy_j})]

    gpus, run = Counting(), MachineSums()
    reader = MachineReader(clock, host, gpus, Container(None, None, None, None))
    for seconds, watts in ((0.0, 0.0), (1.0, 300.0), (1.0, 100.0), (2.0, 400.0)):
        clock.advance(seconds)
        gpus.energy_j += seconds * watts
        stretch = MachineSums()
        stretch.add_samples([reader.sample()])
        run.add(stretch)
    (gpu,) = run.stats().gpus
    assert (gpu.energy_j, gpu.energy_s) == (pytest.approx(1200.0), pytest.approx(4.0))
