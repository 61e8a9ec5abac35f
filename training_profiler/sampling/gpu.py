"""Memory of accelerators from torch's allocator, and NVML's readings and counters. Initialises no device."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any, Final, NamedTuple

import psutil

from training_profiler.base.backends import Backend, ready_backends

SAMPLES_PER_SEARCH: Final = 10  # between two searches for accelerators that the process did not use before
ENERGY: Final = "energy_j"  # since the driver was loaded; the other readings are of the moment
PROCESSES: Final = "processes"  # that have work or memory on the device
OTHERS: Final = "others_utilization"  # part of the time in which kernels of other programs ran
SAMPLES_PER_READING: Final = 5  # of what takes the driver 2 ms: processes and counters; all others take 0.1 ms
# NVML's counters (GPM) by the field of ``GpuStats``, with what one of its units is.
COUNTERS: Final = {
    "sm_active": ("SM_UTIL", 0.01),
    "tensor_active": ("ANY_TENSOR_UTIL", 0.01),
    "dram_active": ("DRAM_BW_UTIL", 0.01),
    "pcie_rx_bytes_per_s": ("PCIE_RX_PER_SEC", 2.0**20),
    "pcie_tx_bytes_per_s": ("PCIE_TX_PER_SEC", 2.0**20),
    "nvlink_rx_bytes_per_s": ("NVLINK_TOTAL_RX_PER_SEC", 2.0**20),
    "nvlink_tx_bytes_per_s": ("NVLINK_TOTAL_TX_PER_SEC", 2.0**20),
}
COUNTED_S: Final = "counted_s"  # how long the counters of a reading counted
IDLE: Final = 0x1  # a bit of the reasons for the clock, which says nothing while the device has no work
# Bits by the field of ``GpuStats``: software and hardware; the cap; a slowdown for any cause and by the power supply.
REASONS: Final = {"throttled_heat": 0x20 | 0x40, "throttled_power": 0x4, "throttled_hardware": 0x8 | 0x80}
WHY_NOT: Final = {
    3: "this GPU has none (Hopper and newer have)",
    4: "this user may not read them",
    13: "the driver is older than they are",
    15: "the GPU is lost",
}


class GpuReading(NamedTuple):
    """Readings of one accelerator at one moment."""

    device: int  # torch's index
    name: str
    total_bytes: int | None
    values: dict[str, float]  # by the field of ``GpuStats``


class GpuCounters:
    """Counts what units of a device do, from one reading to the next.

    Raises:
        NVMLError, AttributeError: the device, its driver or this pynvml has no counters.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        is_part = nvml.nvmlDeviceIsMigDeviceHandle(handle)
        if is_part or not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._nvml, self._handle = nvml, handle
        self._ids = [getattr(nvml, f"NVML_GPM_METRIC_{name}") for name, _ in COUNTERS.values()]
        self._samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        self._sampled_s = 0.0

    def read(self) -> dict[str, float]:
        """Return what was counted since the last call; nothing of the first one, and of what this device lacks."""
        older, newer = self._samples
        before_s, self._sampled_s = self._sampled_s, perf_counter()
        self._nvml.nvmlGpmSampleGet(self._handle, newer)
        self._samples = [newer, older]
        if not before_s:
            return {}
        nvml, count = self._nvml, len(self._ids)
        request = nvml.c_nvmlGpmMetricsGet_t(nvml.NVML_GPM_METRICS_GET_VERSION, count, older, newer)
        for at, id in enumerate(self._ids):
            request.metrics[at] = nvml.c_nvmlGpmMetric_t(id)
        nvml.nvmlGpmMetricsGet(request)
        metrics = zip(COUNTERS.items(), request.metrics, strict=False)
        found = {
            name: metric.value * unit
            for (name, (_, unit)), metric in metrics
            if metric.nvmlReturn == 0 and math.isfinite(metric.value)
        }
        return found | {COUNTED_S: self._sampled_s - before_s}

    def close(self) -> None:
        """Give the samples back."""
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []


class Gpus:
    """Reads the accelerators that this process uses; ``modules`` are those the program has imported."""

    def __init__(
        self, modules: Callable[[str], Any] = sys.modules.get, is_own: Callable[[int], bool] | None = None
    ) -> None:
        self._modules = modules
        self._is_own = is_own or _is_own_process
        # Index -> of the processes on it: id -> whether it is this one, or started by it.
        self._owners: dict[int, dict[int, bool]] = {}
        self._others: dict[int, tuple[float, int]] = {}  # index -> read last, and the driver's time of that, in us
        self._used: dict[int, tuple[str, int | None]] = {}  # index -> name, bytes
        self._handles: dict[int, Any] = {}  # of NVML
        self._of_smi: dict[int, Any] = {}  # handles of AMD SMI
        self._counters: dict[int, GpuCounters | None] = {}  # by index; None of a device without
        self.without_counters = ""  # why a device has none
        self._unsupported: set[tuple[int, str]] = set()
        self._has_nvml: bool | None = None  # not known yet
        self._samples = 0

    def read(self) -> list[GpuReading]:
        """Return the readings of the accelerators in use; none if the program has initialised none."""
        torch = self._modules("torch")
        if torch is None:
            return []
        for backend, _, module in ready_backends(torch):
            if backend.read_memory is not None:
                return self._read(backend, backend.read_memory, module)
        return []

    def close(self) -> None:
        """Shut NVML down."""
        if self._has_nvml:
            for counters in filter(None, self._counters.values()):
                counters.close()
            self._modules("pynvml").nvmlShutdown()
        self._has_nvml, self._handles, self._counters = None, {}, {}

    def _read(
        self, backend: Backend, read_memory: Callable[[Any, int], dict[str, float]], module: Any
    ) -> list[GpuReading]:
        if self._samples % SAMPLES_PER_SEARCH == 0 or not self._used:
            for index in range(module.device_count() if hasattr(module, "device_count") else 1):
                if index not in self._used and any(read_memory(module, index).values()):
                    device = backend.describe(module, index)
                    self._used[index] = (device.name, device.total_bytes)
                    if backend.has_nvml:
                        self._find_handle(index, device.uuid)
                        self._find_amd(index, module.get_device_properties(index))
        self._samples += 1
        readings = []
        for index, (name, total_bytes) in self._used.items():
            read_now = _READ | (_READ_SELDOM if self._is_due else {})
            found = {quantity: self._ask(index, quantity, read) for quantity, read in read_now.items()}
            values = read_memory(module, index) | {name: value for name, value in found.items() if value is not None}
            values |= dict(self._of_processes(index)) | self._of_reasons(index)
            values |= self._of_counters(index) if self._is_due else {}
            values |= self._of_amd(index) if index in self._of_smi else {}
            readings.append(GpuReading(index, name, total_bytes, values))
        return readings

    def _find_handle(self, index: int, uuid: str | None) -> None:
        """Find the device by its UUID: torch and NVML number devices differently."""
        nvml = self._modules("pynvml")  # torch imports it where it is installed
        if nvml is None or self._has_nvml is False:
            return
        try:
            if self._has_nvml is None:
                nvml.nvmlInit()  # takes 1 ms and raises without a driver
                self._has_nvml = True
            if uuid is not None:
                self._handles[index] = _by_uuid(nvml, uuid)
            elif nvml.nvmlDeviceGetCount() == 1:
                self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(0)
        except nvml.NVMLError:
            self._has_nvml = bool(self._has_nvml)

    def _find_amd(self, index: int, device: Any) -> None:
        """Find the device by its PCI address. A part of a card has another size; nothing is known of it alone."""
        smi = self._modules("amdsmi")  # torch imports it where it is installed
        if smi is None:
            return
        with suppress(smi.AmdSmiException, *_NO_VALUE):
            smi.amdsmi_init()
            address = f"{device.pci_domain_id:04x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"
            handle = smi.amdsmi_get_processor_handle_from_bdf(address)
            total_bytes = smi.amdsmi_get_gpu_vram_usage(handle)["vram_total"] << 20
            if math.isclose(total_bytes, device.total_memory, rel_tol=0.05):
                self._of_smi[index] = handle

    def _of_amd(self, index: int) -> dict[str, float]:
        """Return what AMD SMI says of a device, without what this one does not support."""
        smi, found = self._modules("amdsmi"), {}
        for quantity, read in _AMD.items():
            with suppress(smi.AmdSmiException, *_NO_VALUE):
                found[quantity] = float(read(smi, self._of_smi[index]))
        return found

    def _ask(self, index: int, quantity: str, read: Callable[[Any, Any], Any]) -> Any:
        """Return what NVML says of a device; None where that, or an older pynvml, does not support the quantity."""
        handle, nvml = self._handles.get(index), self._modules("pynvml")
        if handle is None or (index, quantity) in self._unsupported:
            return None
        try:
            return read(nvml, handle)
        except (nvml.NVMLError, AttributeError):
            self._unsupported.add((index, quantity))
            return None

    @property
    def _is_due(self) -> bool:
        return self._samples % SAMPLES_PER_READING == 1

    def _of_reasons(self, index: int) -> dict[str, float]:
        """Return which reasons hold the clock down, 1 or 0 each; nothing while the device is idle."""
        reasons = self._ask(index, "reasons", _clock_reasons)
        known = reasons is not None and not reasons & IDLE
        return {name: float(bool(reasons & bits)) for name, bits in REASONS.items()} if known else {}

    def _of_counters(self, index: int) -> dict[str, float]:
        handle, nvml = self._handles.get(index), self._modules("pynvml")
        if handle is None or self._counters.get(index, 0) is None:
            return {}
        try:
            if index not in self._counters:
                self._counters[index] = GpuCounters(nvml, handle)
            counters = self._counters[index]
            return {} if counters is None else counters.read()
        except (nvml.NVMLError, AttributeError) as error:
            self._counters[index] = None
            old = "nvidia-ml-py is older than they are" if isinstance(error, AttributeError) else ""
            self.without_counters = old or WHY_NOT.get(getattr(error, "value", 0), str(error))
            return {}

    def _of_processes(self, index: int) -> Iterator[tuple[str, float]]:
        """Yield how many processes use the device, and how much of its time others take, if any others are known."""
        running = self._ask(index, PROCESSES, lambda nvml, handle: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        found = {process.pid for process in running or ()}
        if not found:  # those of other namespaces are hidden
            return
        yield PROCESSES, float(len(found))
        if os.getpid() not in found:  # numbered by another namespace: which of them is this one is not known
            return
        known = self._owners.get(index, {})
        owners = self._owners[index] = {pid: known[pid] if pid in known else self._is_own(pid) for pid in found}
        others = {pid for pid, is_own in owners.items() if not is_own}
        if not others:
            yield OTHERS, 0.0
            return
        if self._is_due or index not in self._others:
            _, since_us = self._others.pop(index, (0.0, 0))
            busy = self._ask(index, OTHERS, lambda nvml, handle: _busy_with(others, nvml, handle, since_us))
            if busy is None:
                return
            self._others[index] = busy
        yield OTHERS, self._others[index][0]


def _is_own_process(pid: int) -> bool:
    """Return whether a process is this one, or was started by it."""
    try:
        return pid == os.getpid() or any(parent.pid == os.getpid() for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _busy_with(others: set[int], nvml: Any, handle: Any, since_us: int) -> tuple[float, int]:
    """Return for how much of the time kernels of these processes ran, 0 to 1, and the driver's time of that, in us.

    That is their part of the utilization. What the driver says of processes that have a device in turns adds up
    to less: of two on an H200 that was always busy, 34 and 16 %. To the second, steps became 2.8 times as long by that.

    Raises:
        NVMLError, AttributeError: the device, or this pynvml, has no such figures.
    """
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == getattr(nvml, "NVML_ERROR_NOT_FOUND", 0):  # no process has run since
            return 0.0, since_us
        raise
    samples = sorted(samples, key=lambda sample: sample.timeStamp)
    newest = {sample.pid: sample.smUtil for sample in samples}
    of_all, of_others = sum(newest.values()), sum(part for pid, part in newest.items() if pid in others)
    busy = _READ["utilization"](nvml, handle) * of_others / of_all if of_all else 0.0
    return busy, max([since_us, *(sample.timeStamp for sample in samples)])


_READ: Final[dict[str, Callable[[Any, Any], float]]] = {
    "used_bytes": lambda nvml, handle: float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
    "utilization": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "temperature_c": lambda nvml, handle: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "clock_mhz": lambda nvml, handle: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    ENERGY: lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
}


_NO_VALUE: Final = (AttributeError, LookupError, TypeError, ValueError, StopIteration)  # "N/A", or another version
_AMD: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "used_bytes": lambda smi, handle: smi.amdsmi_get_gpu_vram_usage(handle)["vram_used"] * 2.0**20,
    "utilization": lambda smi, handle: smi.amdsmi_get_gpu_activity(handle)["gfx_activity"] / 100,
    "temperature_c": lambda smi, handle: smi.amdsmi_get_temp_metric(
        handle, smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
    ),
    "power_w": lambda smi, handle: next(  # some cards have only one of them
        watts
        for of in ("current", "average")
        if (watts := smi.amdsmi_get_power_info(handle)[f"{of}_socket_power"]) != "N/A"
    ),
    "clock_mhz": lambda smi, handle: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["clk"],
}
_READ_SELDOM: Final[dict[str, Callable[[Any, Any], float]]] = {
    "ecc_errors": lambda nvml, handle: float(
        nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    ),
    "rows_to_remap": lambda nvml, handle: float(any(nvml.nvmlDeviceGetRemappedRows(handle)[2:])),
    "pcie_width": lambda nvml, handle: float(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
    "pcie_most_width": lambda nvml, handle: float(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
    "pcie_generation": lambda nvml, handle: float(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
    "pcie_most_generation": lambda nvml, handle: float(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
}


def _clock_reasons(nvml: Any, handle: Any) -> int:
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # the name since driver 535
    try:
        return int((newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))
    except nvml.NVMLError:  # a library that is newer than the driver
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _by_uuid(nvml: Any, uuid: str) -> Any:
    if uuid.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID("GPU-" + uuid)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID("MIG-" + uuid)
