"""A stand-in for ``pynvml`` with the names, structures and error codes of nvidia-ml-py, as a driver's table of answers.

``tests/integrations/test_nvml_names.py`` compares it with the package. Figures of ``H200`` were recorded on one, with
driver 580: a product of matrices in bfloat16, which reaches the power limit.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 13, 15
CONSTANTS = {
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_ERROR_NOT_SUPPORTED": NOT_SUPPORTED,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_GPM_METRICS_GET_VERSION": 1,
    "NVML_GPM_METRIC_SM_UTIL": 2,
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL": 5,
    "NVML_GPM_METRIC_DRAM_BW_UTIL": 10,
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC": 20,
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC": 21,
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC": 60,
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC": 61,
}
H200: Mapping[str, Any] = {
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=700),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100),
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetTemperature": 64,
    "nvmlDeviceGetPowerUsage": 692_000,
    "nvmlDeviceGetClockInfo": 1470,
    "nvmlDeviceGetTotalEnergyConsumption": 7_000_500,
    "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
    "nvmlGpmSampleGet": None,
}
H200_COUNTERS: Mapping[int, float | None] = {2: 96.0, 5: 93.0, 10: 17.0, 20: 0.5, 21: 2.0, 60: None, 61: None}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """A driver with one device. A number in ``errors`` is the error of that function; None: the library lacks it."""

    NVMLError = NVMLError

    def __init__(self, errors: Mapping[str, int | None] = {}, **answers: Any) -> None:
        self.errors, self.answers = dict(errors), {**H200, **answers}
        self.counters = dict(H200_COUNTERS)
        self.calls: list[str] = []
        self.samples = 0  # allocated and not given back
        for name, value in CONSTANTS.items():
            setattr(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        error = own["errors"].get(name, 0)
        if error is None:
            raise AttributeError(f"module 'pynvml' has no attribute '{name}'")

        def call(*given: Any) -> Any:
            own["calls"].append(name)
            if error:
                raise NVMLError(error)
            work = getattr(type(self), f"_{name}", None)
            return own["answers"].get(name) if work is None else work(self, *given)

        return call

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def c_nvmlGpmMetric_t(self, id: int = 0) -> Any:
        return SimpleNamespace(metricId=id, nvmlReturn=0, value=0.0)

    def c_nvmlGpmMetricsGet_t(self, version: int = 0, number: int = 0, older: Any = None, newer: Any = None) -> Any:
        metrics = [self.c_nvmlGpmMetric_t() for _ in range(477)]
        return SimpleNamespace(version=version, numMetrics=number, sample1=older, sample2=newer, metrics=metrics)

    def _nvmlGpmSampleAlloc(self) -> Any:
        self.samples += 1
        return SimpleNamespace(number=self.samples)

    def _nvmlGpmSampleFree(self, sample: Any) -> None:
        self.samples -= 1

    def _nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.version == 1
        assert request.sample1 is not request.sample2
        for metric in request.metrics[: request.numMetrics]:
            value = self.counters[metric.metricId]
            metric.value, metric.nvmlReturn = value or 0.0, NOT_SUPPORTED if value is None else 0
        return request
