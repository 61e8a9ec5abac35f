"""One module of DistributedDataParallel, and what it says of its latest exchange of gradients."""

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from training_profiler.record.exchange import Exchanged


class Figures(NamedTuple):
    """What one module said at one time."""

    exchanged: Exchanged
    begin_ns: int  # of the exchange that was seen, by the wall clock
    end_ns: int
    key: str  # the same on all ranks
    is_first: bool  # it is the first module, and of all ranks


class DdpModule:
    """One DDP module."""

    def __init__(self, module: Any, number: int, backwards: int | None) -> None:
        self.reference: Callable[[], Any] = weakref.ref(module)
        self.is_on_host = module.device.type == "cpu"
        self._number = number
        self._is_of_world = module.process_group.size() == sys.modules["torch"].distributed.get_world_size()
        self._iteration = 0
        self._begin_ns = 0
        self._backwards = backwards
        if self.is_on_host and hasattr(module, "_set_ddp_runtime_logging_sample_rate"):
            # By default it looks at one iteration of a hundred. On an accelerator each look waits for the device.
            module._set_ddp_runtime_logging_sample_rate(1)

    def read(self, backwards: int | None) -> Figures | None:
        """Return what was exchanged since this was called last; None where nothing was."""
        module = self.reference()
        data = {"iteration": 0} if module is None else module._get_ddp_logging_data()  # private
        iteration = data["iteration"]  # forward passes that asked for an exchange; it may be that none followed
        if iteration < 1 or iteration == self._iteration:
            return None
        passes, self._iteration = iteration - self._iteration, iteration
        if backwards is not None and self._backwards is not None:  # some forward passes may share one
            passes = min(passes, backwards - self._backwards)
        self._backwards = backwards
        begin_ns, begin_before_ns = data["backward_comm_time_start"], self._begin_ns
        self._begin_ns = begin_ns
        end_ns = data["backward_comm_time_end"]
        if not begin_ns or begin_ns == begin_before_ns:  # it shows the one that is counted already
            return None
        if self.is_on_host:
            total_ns, hidden_ns = end_ns - begin_ns, data["backward_compute_time_end"] - begin_ns
        else:  # these are by the device's clock
            total_ns, hidden_ns = data["backward_comm_time"], data["backward_compute_comm_overlap_time"]
        if total_ns < 0:  # begin and end are of two exchanges
            return None
        count, hidden_ns = max(1, passes), min(max(0, hidden_ns), total_ns)
        exchanged = Exchanged(count, 1, count * total_ns, count * hidden_ns, self.is_on_host)
        key = f"ddp{self._number}:{iteration}"
        return Figures(exchanged, begin_ns, end_ns, key, self._is_of_world and not self._number)
