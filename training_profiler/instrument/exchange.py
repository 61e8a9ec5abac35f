"""Seam: DistributedDataParallel's exchange of gradients, which happens in C++ and is known from its own statistics."""

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any

from training_profiler.instrument.patching import Patches
from training_profiler.record.exchange import Exchanged

if TYPE_CHECKING:
    from training_profiler.instrument.watch import Watch


class Exchange:
    """What the DDP modules of this process say about themselves, in ns; read before they are gone."""

    def __init__(self) -> None:
        self._alive: list[weakref.ref[Any]] = []
        self._latest: dict[int, tuple[int, int, int]] = {}  # id -> (iterations, exchange an iteration, overlapped)

    def watch(self, module: Any) -> None:
        """Read the statistics of ``module`` from now on."""
        self._alive.append(weakref.ref(module))

    def read(self) -> None:
        """Take the statistics as they are now."""
        for reference in self._alive:
            module = reference()
            if module is not None:
                data = module._get_ddp_logging_data()  # private: times in ns, averages over the iterations it samples
                self._latest[id(module)] = (
                    int(data.get("iteration", 0)),  # the last sampled: each of the first ten, then every hundredth
                    int(data.get("avg_backward_comm_time", 0)),
                    int(data.get("avg_backward_compute_comm_overlap_time", 0)),
                )

    def take(self) -> Exchanged:
        """Return what was exchanged since this was called last."""
        return Exchanged()

    def take_steps(self) -> list[tuple[int, int]]:
        """Return (step counted from 0, ns by which exchange made its backward pass longer), where it was read."""
        return []

    def total_ns(self) -> int:
        """Return the time of all exchanges, from the average over the sampled ones."""
        return sum(iterations * exchange_ns for iterations, exchange_ns, _ in self._latest.values())

    def note(self) -> str | None:
        """Return a sentence about it; None where nothing was exchanged."""
        total_ns = self.total_ns()
        iterations = sum(one for one, _, _ in self._latest.values())
        if not total_ns or not iterations:
            return None
        overlapped_ns = sum(iterations * ns for iterations, _, ns in self._latest.values())
        return (
            f"DDP exchanged gradients for {total_ns / iterations / 1e6:.3f} ms an iteration, "
            f"{min(1.0, overlapped_ns / total_ns):.0%} of it while gradients were computed "
            f"(its own statistics, averages over the iterations it samples)"
        )


def install(patches: Patches, watch: "Watch", torch: Any) -> None:
    """Note the modules as they are made; read them before their process group goes."""
    if not torch.distributed.is_available():
        return

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            watch.exchange.watch(self)

        return __init__

    def make_destroy(original: Any) -> Any:
        @functools.wraps(original)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            watch.guarded(watch.exchange.read)
            return original(*args, **kwargs)

        return destroy_process_group

    module = importlib.import_module("torch.distributed.distributed_c10d")
    patches.replace(torch.nn.parallel.DistributedDataParallel, "__init__", make)
    patches.replace(module, "destroy_process_group", make_destroy)
    patches.repeat(module, torch.distributed, "destroy_process_group")
