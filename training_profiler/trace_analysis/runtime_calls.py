"""The table of runtime calls that copy, wait and allocate, by name.

The prefixes of the runtimes of CUDA and HIP are in the table of backends. Those of XPU are the functions of Unified
Runtime (ur), of its predecessor (pi) and of Level Zero (ze).
"""

import re
from typing import Final

from training_profiler.tables.backends import RUNTIME_CALL

_RUNTIME: Final = rf"^{RUNTIME_CALL}"
_DRIVER: Final = r"^cu"

# Level Zero and Unified Runtime under XPU, and the runtime of MTIA.
_OTHER_COPIES: Final = r"^(ur|pi)\w*(Memcpy|MemBuffer|MemImage|USM\w*Fill)|^zeCommandListAppend(Memory|Image)"
_OTHER_ALLOCATIONS: Final = r"^(ur|piext)USM(Device)?(Alloc|Free)$|^zeMem(AllocDevice|Free)$"
_OTHER_WAITS: Final = r"^(ze|ur|pi)\w*(Synchronize|Wait|Finish)$|^synchronize(Stream)?$"
SYNCHRONIZE: Final = re.compile(rf"{_RUNTIME}\w*Synchronize$|{_DRIVER}(Stream|Ctx|Event)Synchronize|{_OTHER_WAITS}")
# Device memory alone: these calls in steady state mean that the allocator's cache is not enough.
ALLOCATE: Final = re.compile(rf"{_RUNTIME}(Malloc|Free)(Async|Managed|Pitch)?$|{_OTHER_ALLOCATIONS}")
# With pinned host memory and virtual memory: all of them can hold up the host.
ALLOCATE_ANY: Final = re.compile(
    rf"{_RUNTIME}(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|MemCreate|MemMap)|{_OTHER_ALLOCATIONS}"
    r"|^(ur|piext)USM(Host|Shared)Alloc$|^zeMemAlloc"
)
HAS_GRAPHS: Final = re.compile(rf"{_RUNTIME}[A-Z]")  # a call of CUDA or HIP, whose work can be replayed as a graph
COPY_OR_FILL: Final = re.compile(rf"{_RUNTIME}Mem(cpy|set)|{_DRIVER}Memcpy|{_OTHER_COPIES}")
# Backends outside of CUDA copy in an operator of their own, and may record no call of their runtime for it.
COPIES: Final = re.compile(rf"{COPY_OR_FILL.pattern}|^aten::_copy_from(_and_resize)?$")
COPY_OR_WAIT: Final = re.compile(
    rf"{_RUNTIME}(Memcpy|StreamSynchronize|EventSynchronize)|{_OTHER_COPIES}|{_OTHER_WAITS}"
)
LAUNCH_KERNEL: Final = re.compile(
    rf"({_RUNTIME}|{_DRIVER})\w*LaunchKernel|{_RUNTIME}LaunchCooperativeKernel|^zeCommandListAppendLaunchKernel"
    r"|^urEnqueueKernelLaunch"
)
LAUNCH_GRAPH: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})GraphLaunch")
BEGIN_CAPTURE: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})StreamBeginCapture")
END_CAPTURE: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})StreamEndCapture")
WAIT_FOR_EVENT: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})StreamWaitEvent")
FREE: Final = re.compile(rf"{_RUNTIME}Free$")  # waits for all work of the device
