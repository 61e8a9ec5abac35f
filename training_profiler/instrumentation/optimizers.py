"""What optimizers of torch are set to, also one that takes the place of the first, as after a learning-rate finder."""

import contextlib
from typing import Any, Final

from training_profiler.snapshot.program import OptimizerFacts

MOST_KINDS: Final = 4  # data types and devices that are listed
MOST_READ: Final = 64  # optimizers made in the training: some programs make one a step


class LaterOptimizers:
    """The optimizer that was made last after the first update, and whether it makes most of all updates."""

    def __init__(self) -> None:
        self._read = 0
        self._latest: tuple[int, int, OptimizerFacts] | None = None  # its id, updates before it, what it is set to
        self.main: OptimizerFacts | None = None  # None: another one made most updates, or it is not known

    def made(self, optimizer: Any, updates: int) -> None:
        """Read an optimizer that has just been made, after so many updates. Does not raise."""
        if not updates or self._read >= MOST_READ:
            return
        self._read += 1
        with contextlib.suppress(Exception):  # one that has other attributes is not described
            self._latest = id(optimizer), updates, optimizer_facts(optimizer)

    def find_main(self, primary: int, updates: int) -> None:
        """Decide whether the latest makes most of all ``updates``: those since then, where its id is the primary's."""
        if self._latest is not None:
            latest, before, facts = self._latest
            self.main = facts if latest == primary and updates > 2 * before else None


def optimizer_facts(optimizer: Any) -> OptimizerFacts:
    """Return what an optimizer of torch is set to."""
    defaults = optimizer.defaults
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def of_groups(name: str) -> bool | None:
        values = {group.get(name) for group in optimizer.param_groups}
        return True if values == {True} else False if values == {False} else None

    return OptimizerFacts(
        type(optimizer).__name__,
        len(parameters),
        tuple(sorted({dtype_name(parameter.dtype) for parameter in parameters})[:MOST_KINDS]),
        tuple(sorted({str(parameter.device.type) for parameter in parameters})[:MOST_KINDS]),
        of_groups("foreach"),
        of_groups("fused"),
        "foreach" in defaults,
        "fused" in defaults,
        sum(parameter.numel() for parameter in parameters),
        any(group.get("momentum", 0) != 0 for group in optimizer.param_groups),
    )


def dtype_name(dtype: Any) -> str:
    """Return the name of a data type of torch, such as "float32"."""
    return str(dtype).removeprefix("torch.")
