import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import nvml
from training_profiler.sampling.gpu import GpuReading, Gpus

NAME = "NVIDIA H200"


class FakeCuda:
    """The part of torch.cuda that is used. None of it resets or initialises anything."""

    def __init__(self, reserved_bytes: list[int], uuids: list[str | None]) -> None:
        self.reserved_bytes, self.uuids = reserved_bytes, uuids
        self.is_begun = True

    def is_initialized(self) -> bool:
        return self.is_begun

    def device_count(self) -> int:
        return len(self.reserved_bytes)

    def memory_stats(self, index: int) -> dict[str, int]:
        reserved = self.reserved_bytes[index]
        sizes = {"allocated_bytes.all.current": reserved // 2, "reserved_bytes.all.current": reserved}
        return sizes | {"num_alloc_retries": 3 if reserved else 0, "num_ooms": 1}

    def get_device_properties(self, index: int) -> Any:
        found = {"name": NAME, "total_memory": 1000}
        return SimpleNamespace(**found, **({"uuid": self.uuids[index]} if self.uuids[index] else {}))


class FakeNvml(nvml.FakeNvml):
    """A driver that says what processes do, and nothing of the power."""

    def __init__(self, uuids: tuple[str, ...] = ("GPU-a", "GPU-b"), has_driver: bool = True) -> None:
        answers = {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=85)}
        super().__init__({"nvmlDeviceGetPowerUsage": 3} | ({} if has_driver else {"nvmlInit": 9}), **answers)
        self.uuids = uuids
        self.pids: list[int] = []  # that use a device
        self.busy: list[tuple[int, int, int]] = []  # what the driver has kept: process, percent, time in us
        self.busy_asked: list[int] = []  # since when

    def _nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.uuids[index]

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.uuids:
            raise self.NVMLError(6)
        return uuid

    def _nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used={"GPU-a": 700, "GPU-b": 800, "MIG-a": 90}[handle])

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def _nvmlDeviceGetProcessUtilization(self, handle: str, since_us: int) -> Any:
        self.busy_asked.append(since_us)
        found = [SimpleNamespace(pid=pid, smUtil=part, timeStamp=us) for pid, part, us in self.busy if us > since_us]
        if not found:
            raise self.NVMLError(self.NVML_ERROR_NOT_FOUND)
        return found


def gpus_of(cuda: Any, driver: Any = None) -> Gpus:
    return Gpus({"torch": SimpleNamespace(cuda=cuda), "pynvml": driver}.get)


def test_a_device_that_the_program_has_not_initialised_is_left_alone():
    assert Gpus({}.get).read() == []  # nor torch
    cuda = FakeCuda([100], [None])
    cuda.is_begun = False
    assert gpus_of(cuda, FakeNvml()).read() == []


def test_without_a_uuid_only_a_single_device_is_known_for_sure():
    (one,) = gpus_of(FakeCuda([100], [None]), FakeNvml(uuids=("GPU-a",))).read()
    (of_two,) = gpus_of(FakeCuda([100], [None]), FakeNvml()).read()
    assert one.values["used_bytes"] == 700
    assert "used_bytes" not in of_two.values


OWN, WORKER, OTHER = os.getpid(), 77_000_001, 77_000_002


def shared(driver: Any) -> Gpus:
    return Gpus(
        {"torch": SimpleNamespace(cuda=FakeCuda([100], ["a"])), "pynvml": driver}.get, is_own=lambda pid: pid != OTHER
    )


OTHERS = {
    # Of all, the driver says 85 %; of each, less than its part of these.
    "the latest time of another": ([(OWN, 16, 1000), (OTHER, 90, 1000), (OTHER, 34, 2000)], OTHER, 0.85 * 34 / 50),
    "own processes are no others and the driver is not asked": ([(WORKER, 90, 1000)], WORKER, 0),
    "processes that rest take no time": ([(OWN, 0, 5), (OTHER, 0, 5)], OTHER, 0),
}


@pytest.mark.parametrize("claim", OTHERS)
def test_processes_of_a_device_and_the_time_of_others(claim):
    driver = FakeNvml()
    driver.busy, beside, expected = OTHERS[claim]
    driver.pids = [OWN, beside]
    (seen,) = shared(driver).read()
    assert (seen.values["processes"], seen.values["others_utilization"]) == (2, expected)
    assert bool(driver.busy_asked) == (beside == OTHER)


def test_what_others_do_is_read_at_each_fifth_sample_and_since_the_last():
    driver = FakeNvml()
    gpus = shared(driver)
    driver.pids, driver.busy = [OWN, OTHER], [(OWN, 61, 2000), (OTHER, 61, 2000)]
    seen = [gpus.read()[0].values["others_utilization"] for _ in range(6)]
    assert seen == [0.425] * 5 + [0]  # nothing has run since
    assert driver.busy_asked == [0, 2000]


@pytest.mark.parametrize("pids", [[], [OTHER], [OTHER, 9]])
def test_in_a_container_that_numbers_processes_itself_none_is_taken_for_another(pids):
    driver = FakeNvml()
    driver.pids, driver.busy = pids, [(OTHER, 61, 2000)]
    (seen,) = shared(driver).read()
    assert "others_utilization" not in seen.values
    assert seen.values.get("processes", 0) == len(pids)


def test_children_are_own_processes():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        driver = FakeNvml()
        ended = 2**22 + 5  # beyond the kernel's largest id; it counts as another
        driver.pids = [OWN, child.pid, os.getppid(), ended]
        driver.busy = [(child.pid, 90, 5), (os.getppid(), 20, 5), (ended, 30, 5)]
        (seen,) = gpus_of(FakeCuda([100], ["a"]), driver).read()
        assert seen.values["others_utilization"] == pytest.approx(0.85 * 50 / 140)
    finally:
        child.communicate(b"\n")


def test_memory_of_metal_devices():
    mps = SimpleNamespace(
        current_allocated_memory=lambda: 5, driver_allocated_memory=lambda: 9, recommended_max_memory=lambda: 100
    )
    torch = SimpleNamespace(mps=mps, backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)))
    assert Gpus({"torch": torch}.get).read() == [
        GpuReading(0, "mps", 100, {"allocated_bytes": 5.0, "reserved_bytes": 9.0})
    ]


@pytest.mark.parametrize(("uuid", "of_nvml", "used_bytes"), [("b", ("GPU-a", "GPU-b"), 800), ("a", ("MIG-a",), 90)])
def test_a_device_or_a_part_of_one_is_found_by_its_uuid(uuid, of_nvml, used_bytes):
    # CUDA_VISIBLE_DEVICES=1: torch's device 0 is NVML's device 1.
    driver = FakeNvml(of_nvml)
    gpus = gpus_of(FakeCuda([100], [uuid]), driver)
    seen = [gpus.read()[0].values for _ in range(3)][-1]
    assert (seen["used_bytes"], seen["utilization"], seen["temperature_c"]) == (used_bytes, 0.85, 64)
    assert seen["energy_j"] == 7000.5
    assert ("power_w" in seen, driver.calls.count("nvmlDeviceGetPowerUsage")) == (
        False,
        1,
    )  # not supported, and not asked for again
    gpus.close()
    assert (driver.calls.count("nvmlInit"), driver.calls.count("nvmlShutdown")) == (1, 1)


def test_a_device_used_later_is_found_later():
    cuda = FakeCuda([100, 0], ["a", "b"])
    gpus = gpus_of(cuda)
    assert [seen.device for seen in gpus.read()] == [0]
    cuda.reserved_bytes[1] = 10
    assert [[seen.device for seen in gpus.read()] for _ in range(10)][-1] == [0, 1]
