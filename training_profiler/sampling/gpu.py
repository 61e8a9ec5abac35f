"""Memory of accelerators from torch's allocator, and Nvidia's readings from NVML. Initialises no device."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import psutil

from training_profiler.base.backends import Backend, ready_backends

SAMPLES_PER_SEARCH: Final = 10  # between two searches for accelerators that the process did not use before
ENERGY: Final = "energy_j"  # since the driver was loaded; the other readings are of the moment
PROCESSES: Final = "processes"  # that have work or memory on the device
OTHERS: Final = "others_utilization"  # part of the time in which kernels of other programs ran
SAMPLES_PER_READING: Final = 5  # of what each process does, which takes the driver 2 ms; all others take 0.1 ms


class GpuReading(NamedTuple):
    """Readings of one accelerator at one moment."""

    device: int  # torch's index
    name: str
    total_bytes: int | None
    values: dict[str, float]  # by the field of ``GpuStats``


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
            self._modules("pynvml").nvmlShutdown()
        self._has_nvml, self._handles = None, {}

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
        self._samples += 1
        readings = []
        for index, (name, total_bytes) in self._used.items():
            found = {quantity: self._ask(index, quantity, read) for quantity, read in _READ.items()}
            values = read_memory(module, index) | {name: value for name, value in found.items() if value is not None}
            values |= dict(self._of_processes(index))
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
        if self._samples % SAMPLES_PER_READING == 1 or index not in self._others:
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


def _by_uuid(nvml: Any, uuid: str) -> Any:
    if uuid.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID("GPU-" + uuid)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID("MIG-" + uuid)
