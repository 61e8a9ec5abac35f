"""The kinds of accelerators, one row each, and the accelerator that a training uses.

torch is never imported here, and no accelerator is initialised: asking one that is not in use yet would allocate memory
on it, and its driver would not survive a fork.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class Description(NamedTuple):
    """A device: its name, its memory, and the id that other libraries know it by."""

    name: str
    total_bytes: int | None
    uuid: str | None = None


def _is_initialized(torch: Any, module: Any) -> bool:
    is_initialized = getattr(module, "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())  # also False in a child forked after initialisation


def _describe(module: Any, index: int) -> Description:
    properties = module.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return Description(properties.name, int(properties.total_memory), None if uuid is None else str(uuid))


def _read_allocator(module: Any, index: int) -> dict[str, float]:
    stats = module.memory_stats(index)
    keys = {
        "allocated_bytes": "allocated_bytes.all.current",
        "reserved_bytes": "reserved_bytes.all.current",
        "alloc_retries": "num_alloc_retries",
    }
    return {quantity: float(stats[key]) for quantity, key in keys.items() if key in stats}


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of accelerator. A field left out is something that its torch module does not offer."""

    kind: str
    """The type of ``torch.device``, and the name of the module ``torch.<kind>``."""
    profiler_activity: str | None = None
    """Its member of ``torch.profiler.ProfilerActivity``."""
    read_memory: Callable[[Any, int], dict[str, float]] | None = None
    """Returns bytes of a device and what its allocator counts, by the field of ``GpuStats``.

    Arguments: ``torch.<kind>`` and the index.
    """
    describe: Callable[[Any, int], Description] = _describe
    """Returns the name and the size of a device. Arguments: ``torch.<kind>`` and the index."""
    has_nvml: bool = False
    """Whether NVML measures its utilization, temperature and power."""
    is_ready: Callable[[Any, Any], bool] = _is_initialized
    """Returns whether it can be asked without being initialised. Arguments: torch and ``torch.<kind>``."""
    is_used: Callable[[Any], bool] = lambda _: True
    """Returns whether the training uses it, if being ready does not show that. Argument: ``torch.<kind>``."""
    find_kind: Callable[[Any], str | None] | None = None
    """Returns the kind, if the backend chooses it. Argument: torch."""
    runtime_prefixes: tuple[str, ...] = ()
    """How names of its runtime's functions begin in traces: ``cuda`` as in ``cudaLaunchKernel``."""
    computes_in_tf32: bool = False
    """Whether float32 may be computed in tf32."""


def _is_metal_available(torch: Any, module: Any) -> bool:
    # Metal has nothing to initialise. Every torch has torch.mps, but some lack backends.mps.is_available.
    backend = getattr(getattr(torch, "backends", None), "mps", None)
    return backend is not None and bool(backend.is_available())


def _read_metal(module: Any, index: int) -> dict[str, float]:
    return {
        "allocated_bytes": float(module.current_allocated_memory()),
        "reserved_bytes": float(module.driver_allocated_memory()),
    }


def _describe_metal(module: Any, index: int) -> Description:
    limit = getattr(module, "recommended_max_memory", None)
    return Description(MPS.kind, None if limit is None else int(limit()))


def _read_gaudi(module: Any, index: int) -> dict[str, float]:
    stats = module.memory_stats(index)
    return {"allocated_bytes": float(stats["InUse"])} if "InUse" in stats else {}


def _describe_gaudi(module: Any, index: int) -> Description:
    limit = module.memory_stats(index).get("Limit")
    return Description(str(module.get_device_name(index)), None if limit is None else int(limit))


def _name_of_private_use(torch: Any) -> str | None:
    name = getattr(getattr(torch, "_C", None), "_get_privateuse1_backend_name", None)  # private: may be missing
    return None if name is None else str(name())


# ROCm is CUDA to torch; its runtime's functions begin with hip.
CUDA: Final = Backend(
    "cuda",
    profiler_activity="CUDA",
    read_memory=_read_allocator,
    has_nvml=True,
    runtime_prefixes=("cuda", "hip"),
    computes_in_tf32=True,
)
XPU: Final = Backend("xpu", profiler_activity="XPU", read_memory=_read_allocator)
MTIA: Final = Backend("mtia", profiler_activity="MTIA")
# Intel Gaudi, by the documentation of its torch.hpu.memory_stats; not tested on a device yet.
HPU: Final = Backend("hpu", profiler_activity="HPU", read_memory=_read_gaudi, describe=_describe_gaudi)
# A backend outside torch, by the name that it has registered.
PRIVATE_USE: Final = Backend("privateuse1", profiler_activity="PrivateUse1", find_kind=_name_of_private_use)
MPS: Final = Backend(
    "mps",
    read_memory=_read_metal,
    describe=_describe_metal,
    is_ready=_is_metal_available,
    is_used=lambda module: bool(module.current_allocated_memory() > 0),
)

# The first that is in use counts.
BACKENDS: tuple[Backend, ...] = (CUDA, XPU, MTIA, HPU, PRIVATE_USE, MPS)

RUNTIME_CALL: Final = f"({'|'.join(prefix for backend in BACKENDS for prefix in backend.runtime_prefixes)})"


class ReadyBackend(NamedTuple):
    """A backend that can be asked: its row, its kind in this process, and ``torch.<kind>``."""

    backend: Backend
    kind: str
    module: Any


def ready_backends(torch: Any) -> Iterator[ReadyBackend]:
    """Yield the backends of ``torch`` that are ready, in the order of the table."""
    for backend in BACKENDS:
        kind = backend.kind if backend.find_kind is None else backend.find_kind(torch)
        module = None if kind is None else getattr(torch, kind, None)
        if kind is not None and module is not None and backend.is_ready(torch, module):
            yield ReadyBackend(backend, kind, module)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The kind of device in use. Of several devices, the current one counts."""

    backend: Backend
    kind: str  # the type of torch.device
    name: str  # of the current device; "" if it has none
    make_event: Callable[[], Any]  # returns a ``torch.Event`` with timing, which no call but ``synchronize`` waits for
    current_index: Callable[[], int]
    is_capturing: Callable[[], bool]  # whether the current stream records a graph instead of executing the work
    synchronize: Callable[[], None]  # waits for all work of the current device


def find_accelerator() -> Accelerator | None:
    """Return the accelerator in use; None if there is none yet."""
    torch: Any = sys.modules.get("torch")
    used = next((ready for ready in ready_backends(torch) if ready.backend.is_used(ready.module)), None)
    if used is None:
        return None
    backend, kind, module = used
    # torch.accelerator exists from torch 2.6 on; before that torch.Event does not support every kind.
    if hasattr(torch, "accelerator"):
        synchronize = torch.accelerator.synchronize

        def make_event() -> Any:
            return torch.Event(device=kind, enable_timing=True)
    else:
        synchronize = module.synchronize

        def make_event() -> Any:
            return module.Event(enable_timing=True)

    has_index = module.device_count() != 1 and hasattr(module, "current_device")
    return Accelerator(
        backend=backend,
        kind=kind,
        name=str(module.get_device_name()) if hasattr(module, "get_device_name") else "",
        make_event=make_event,
        current_index=module.current_device if has_index else lambda: 0,
        is_capturing=getattr(module, "is_current_stream_capturing", lambda: False),
        synchronize=synchronize,
    )
