"""The stand-in for NVML has the names, numbers and structures of the package nvidia-ml-py."""

import pytest

from tests.support import nvml as fake
from training_profiler.sampling import gpu

pynvml = pytest.importorskip("pynvml")
pytestmark = pytest.mark.integrations


def test_names_and_numbers_are_those_of_the_package():
    assert {name: getattr(pynvml, name) for name in fake.CONSTANTS} == fake.CONSTANTS
    functions = {*fake.H200, *(name[1:] for name in vars(fake.FakeNvml) if name.startswith("_nvml"))}
    assert [name for name in functions if not callable(getattr(pynvml, name, None))] == []
    assert pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION).value == fake.NO_PERMISSION
    names = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "GPU_IS_LOST")
    assert [getattr(pynvml, f"NVML_ERROR_{name}") for name in names] == list(gpu.WHY_NOT)
    reasons = ("SwThermalSlowdown", "HwThermalSlowdown", "SwPowerCap", "HwSlowdown", "HwPowerBrakeSlowdown")
    bits = [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in ("GpuIdle", *reasons)]
    assert sum(bits) == gpu.IDLE + sum(gpu.REASONS.values())


def test_a_request_has_the_fields_of_the_structure():
    sample = pynvml.c_nvmlGpmSample_t()
    request, ours = pynvml.c_nvmlGpmMetricsGet_t(1, 7, sample, sample), fake.FakeNvml().c_nvmlGpmMetricsGet_t()
    assert {name for name, _ in request._fields_} == set(vars(ours))
    assert len(request.metrics) == len(ours.metrics) or len(request.metrics) > max(fake.H200_COUNTERS)
    request.metrics[0] = pynvml.c_nvmlGpmMetric_t(5)
    assert (request.numMetrics, request.metrics[0].metricId) == (7, 5)
    assert [name for name, _ in request._fields_] == list(vars(ours))
    assert vars(ours.metrics[0]).keys() <= {name for name, _ in request.metrics[0]._fields_}
