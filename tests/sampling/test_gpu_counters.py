"""NVML's counters and reasons for the clock are read where a device has them; what is unknown is left out."""

from types import SimpleNamespace

import pytest

from tests.sampling.test_gpu import FakeCuda
from tests.support import nvml as fake
from tests.support.nvml import FakeNvml
from training_profiler.aggregation.machine import MachineSums
from training_profiler.base.units import NS_PER_S
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling import gpu
from training_profiler.sampling.gpu import COUNTED_S, COUNTERS, SAMPLES_PER_READING, Gpus
from training_profiler.sampling.machine_sampler import MachineSample, MachineSampler

MIB = 2.0**20
FEW = SAMPLES_PER_READING + 1  # samples until the counters have counted


def readings(nvml, number=FEW):
    gpus = Gpus({"torch": SimpleNamespace(cuda=FakeCuda([100], ["a"])), "pynvml": nvml}.get)
    return gpus, [gpus.read()[0].values for _ in range(number)]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    now = iter(range(10, 1000))
    monkeypatch.setattr(gpu, "perf_counter", lambda: float(next(now)))


def test_counters_are_those_between_two_samples():
    nvml = FakeNvml()
    nvml.counters[60] = float("nan")
    gpus, seen = readings(nvml)
    assert [index for index, values in enumerate(seen) if COUNTERS.keys() & values] == [SAMPLES_PER_READING]
    expected = {"sm_active": 0.96, "tensor_active": 0.93, "dram_active": 0.17}
    expected |= {"pcie_rx_bytes_per_s": 2 * MIB, "pcie_tx_bytes_per_s": MIB / 2, COUNTED_S: 1.0}
    assert {name: seen[-1][name] for name in expected} == pytest.approx(expected)
    assert not {"nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"} & seen[-1].keys()  # a card without links
    assert nvml.samples == 2
    gpus.close()
    assert (nvml.samples, gpus.without_counters) == (0, "")
    assert nvml.calls[-1] == "nvmlShutdown"


WITHOUT = {
    "before Hopper": (FakeNvml(nvmlGpmQueryDeviceSupport=SimpleNamespace(isSupportedDevice=0)), "this GPU has none"),
    "a part of a GPU": (FakeNvml(nvmlDeviceIsMigDeviceHandle=1), "this GPU has none"),
    "no rights": (FakeNvml({"nvmlGpmSampleGet": fake.NO_PERMISSION}), "this user may not read them"),
    "an old driver": (FakeNvml({"nvmlGpmQueryDeviceSupport": fake.FUNCTION_NOT_FOUND}), "the driver is older"),
    "an old library": (FakeNvml({"nvmlGpmQueryDeviceSupport": None}), "nvidia-ml-py is older"),
    "lost": (FakeNvml({"nvmlGpmMetricsGet": fake.GPU_IS_LOST}), "the GPU is lost"),
    "another error": (FakeNvml({"nvmlGpmSampleAlloc": 20}), "error 20"),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_a_device_without_counters_has_one_line_and_all_other_figures(case):
    nvml, why = WITHOUT[case]
    gpus, seen = readings(nvml, 2 * FEW)
    assert gpus.without_counters.startswith(why)
    assert not any(COUNTERS.keys() & values for values in seen)
    assert seen[-1]["utilization"] == 1.0
    assert nvml.calls.count("nvmlGpmQueryDeviceSupport") <= 1  # not asked again


def test_a_device_that_is_lost_keeps_what_torch_says():
    nvml = FakeNvml(dict.fromkeys(fake.H200, fake.GPU_IS_LOST))
    _, seen = readings(nvml)
    assert set(seen[-1]) == {"allocated_bytes", "reserved_bytes", "alloc_retries"}


EVENTS, THROTTLE = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
REASONS = {
    "a power limit": ({EVENTS: 0x4}, {}, (0.0, 1.0, 0.0)),
    "heat, by software": ({EVENTS: 0x20}, {}, (1.0, 0.0, 0.0)),
    "heat, by hardware": ({EVENTS: 0x48}, {}, (1.0, 0.0, 1.0)),
    "clocks of the user": ({EVENTS: 0x2}, {}, (0.0, 0.0, 0.0)),
    "idle": ({EVENTS: 0x1}, {}, None),
    "an old library": ({THROTTLE: 0x40}, {EVENTS: None}, (1.0, 0.0, 0.0)),
    "an old driver": ({THROTTLE: 0x40}, {EVENTS: fake.FUNCTION_NOT_FOUND}, (1.0, 0.0, 0.0)),
    "neither": ({}, {EVENTS: fake.NOT_SUPPORTED, THROTTLE: fake.NOT_SUPPORTED}, None),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_clock_is_held_down_for_reasons_while_there_is_work(case):
    answers, errors, expected = REASONS[case]
    _, (seen,) = readings(FakeNvml(errors, **answers), 1)
    names = ("throttled_heat", "throttled_power", "throttled_hardware")
    assert tuple(seen[name] for name in names if name in seen) == (expected or ())


def test_faults_are_read_seldom():
    nvml = FakeNvml(nvmlDeviceGetTotalEccErrors=3, nvmlDeviceGetRemappedRows=(0, 9, 0, 1))
    _, seen = readings(nvml, 2 * SAMPLES_PER_READING)
    assert nvml.calls.count("nvmlDeviceGetTotalEccErrors") == 2
    found = [values for values in seen if "ecc_errors" in values]
    assert (found[0]["ecc_errors"], found[0]["rows_to_remap"], found[0]["pcie_width"]) == (3.0, 1.0, 16.0)


def test_counters_are_those_of_settled_steps_weighted_by_their_time():
    def sample(at_s, part, counted_s):
        facts = {"gpu0.name": "H200"}
        return MachineSample(at_s * NS_PER_S, {"gpu0.sm_active": part}, {"gpu0.sm_active": counted_s}, facts)

    sums = MachineSums()
    sums.add_samples([sample(5, 0.9, 4.0)], loop_begin_ns=0, settled_ns=2 * NS_PER_S)  # began before
    sums.add_samples([sample(10, 0.2, 3.0), sample(11, 0.6, 1.0)], loop_begin_ns=0, settled_ns=2 * NS_PER_S)
    (stats,) = sums.stats().gpus
    assert stats.sm_active.mean == pytest.approx(0.3)
    assert stats.tensor_active is None


def test_a_driver_that_does_not_respond_is_said_in_one_line():
    now = [0]
    sampler = MachineSampler(lambda: now[0], FaultGuard())
    sampler.samples, sampler._begun_ns, now[0] = 7, 1, 30 * NS_PER_S
    assert sampler.cost() == "system monitor: no figures for 30.0 s, a driver or disk does not respond"
    sampler._begun_ns = 0
    sampler._reader = SimpleNamespace(gpus=SimpleNamespace(without_counters="the GPU is lost"))
    assert sampler.cost().endswith("; no GPU counters: the GPU is lost")
