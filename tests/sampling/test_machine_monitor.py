"""The monitor thread: what its looks hold, and that it leaves nothing behind."""

import threading
from pathlib import Path

import pytest

from tests.support.recording import FakeClock
from training_profiler.recording.recorder import Recorder
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.cgroup import Container
from training_profiler.sampling.gpu import GpuReading
from training_profiler.sampling.host import HostReading
from training_profiler.sampling.machine_sampler import MachineReader, MachineSampler

NAME = "training_profiler machine"


class FakeHost:
    """A host of four CPUs, two of which are for this process."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.tree_cpu_s: float | None = 100.0
        self.host_cpu_s = (0.0, 0.0)

    def cores(self) -> float:
        return 2.0

    def host_cores(self) -> int:
        return 4

    def read(self) -> HostReading:
        return HostReading(self.tree_cpu_s, 300, 400, self.host_cpu_s, 1000, 600)

    def work(self, seconds: float, process_s: float, host_s: float) -> None:
        self._clock.advance(seconds)
        self.tree_cpu_s += process_s
        self.host_cpu_s = (self.host_cpu_s[0] + host_s, self.host_cpu_s[1] + 4 * seconds)


class FakeGpus:
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
def eyes(clock: FakeClock, host: FakeHost) -> MachineReader:
    return MachineReader(clock, host, FakeGpus(), Container(None, None, None, None))


@pytest.fixture
def monitor(clock: FakeClock, recorder: Recorder, tmp_path: Path):
    gpus = FakeGpus()
    monitor = MachineSampler(clock, FaultGuard().run, lambda: FakeHost(clock), lambda: gpus, tmp_path)
    yield monitor
    monitor.close()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


def test_the_first_look_knows_no_cpu_use(eyes):
    values = eyes.look().values
    assert not {"cpu_process", "cpu_host"} & values.keys()
    assert (values["ram_own_bytes"], values["ram_process_bytes"], values["ram_host_bytes"]) == (300, 400, 400)


def test_cpu_use_is_what_was_used_since_the_look_before(eyes, host):
    eyes.look()
    host.work(2.0, process_s=3.0, host_s=6.0)
    look = eyes.look()
    assert (look.values["cpu_process"], look.values["cpu_host"]) == (1.5, 0.75)
    assert look.weights["cpu_process"] == 2.0


def test_cpu_use_over_too_short_a_time_waits_for_more(eyes, host):
    eyes.look()
    host.work(0.05, process_s=0.05, host_s=0.05)
    assert "cpu_process" not in eyes.look().values
    host.work(0.05, process_s=0.0, host_s=0.05)
    assert eyes.look().values["cpu_process"] == pytest.approx(0.5)


def test_a_look_without_the_children_leaves_cpu_use_to_the_next(eyes, host):
    eyes.look()
    host.work(1.0, process_s=1.0, host_s=1.0)
    before_s, host.tree_cpu_s = host.tree_cpu_s, None
    assert "cpu_process" not in eyes.look().values
    host.tree_cpu_s = before_s
    host.work(1.0, process_s=2.0, host_s=1.0)
    look = eyes.look()
    assert (look.values["cpu_process"], look.weights["cpu_process"]) == (1.5, 2.0)


def test_without_a_container_memory_is_a_share_of_the_host(eyes):
    values = eyes.look().values
    assert (values["ram_share"], values["ram_available_bytes"]) == (0.4, 600)
    assert "ram_container_bytes" not in values


def test_with_a_limit_memory_is_a_share_of_it(clock, host, tmp_path):
    (tmp_path / "memory.current").write_text("450\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1000000\n")
    eyes = MachineReader(clock, host, FakeGpus(), Container(tmp_path, 500, tmp_path, 1.5))
    eyes.look()
    (tmp_path / "cpu.stat").write_text("usage_usec 4000000\n")
    clock.advance(2.0)
    look = eyes.look()
    assert (look.values["ram_share"], look.values["ram_available_bytes"]) == (0.9, 50)
    assert look.values["cpu_container"] == 1.5
    assert (look.facts["ram_limit_bytes"], look.facts["cores"]) == (500, 1.5)


def test_a_limit_beyond_the_host_is_none(clock, host, tmp_path):
    (tmp_path / "memory.current").write_text("450\n")
    look = MachineReader(clock, host, FakeGpus(), Container(tmp_path, 2000, None, None)).look()
    assert "ram_limit_bytes" not in look.facts
    assert look.values["ram_share"] == 0.4


def test_accelerators_go_by_torchs_index(eyes):
    look = eyes.look()
    assert look.values["gpu1.allocated_bytes"] == 7.0
    assert (look.facts["gpu1.name"], look.facts["gpu1.total_bytes"]) == ("T4", 99)


def test_a_run_that_is_shorter_than_the_wait_has_a_look_at_its_begin_and_one_at_its_end(monitor):
    monitor.start(3600)
    monitor.close()
    assert len(monitor.take()) == 2
    assert monitor.take() == []
    assert monitor.cost(0).startswith("machine monitor: 2 looks, 0.0")


def test_none_a_second_starts_no_thread(monitor):
    monitor.start(0)
    assert threads() == []
    assert monitor.cost(10) is None


def test_the_thread_ends_with_the_run_and_lets_go_of_the_devices(monitor):
    monitor.start(3600)
    assert threads() == [NAME]
    monitor.close()
    assert threads() == []
    assert monitor._eyes.gpus.closed == 1


def test_another_time_between_looks_takes_effect_at_once(monitor):
    monitor.start(3600)
    monitor.start(0.001)
    while monitor.looks < 10:
        sum(range(1000))
    monitor.start(0)
    assert threads() == []


def test_the_same_time_again_goes_on_with_the_same_thread(monitor):
    monitor.start(3600)
    thread = monitor._thread
    monitor.start(3600)
    assert monitor._thread is thread


def test_what_fails_switches_the_monitor_off_alone(clock, recorder, tmp_path, caplog):
    class Failing(FakeHost):
        def read(self) -> HostReading:
            raise ZeroDivisionError("no such thing")

    guard = FaultGuard()
    monitor = MachineSampler(clock, guard.run, lambda: Failing(clock), FakeGpus, tmp_path)
    monitor.start(3600)
    monitor.close()
    assert guard.disabled == {"machine monitor": "ZeroDivisionError: no such thing"}
    assert "machine monitor switched off, the training goes on" in caplog.text


def test_a_package_that_is_not_installed_is_named(clock, recorder, tmp_path):
    def missing() -> FakeHost:
        raise ModuleNotFoundError("No module named 'psutil'", name="psutil")

    monitor = MachineSampler(clock, FaultGuard().run, missing, FakeGpus, tmp_path)
    monitor.start(1)
    assert monitor.cost(10) == "machine monitor: package psutil is not installed; pip install psutil"
    assert threads() == []
