"""Reads in the first steps what the program has set: its optimizer, and autocast."""

import contextlib
import sys
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.modules import parameters_within
from training_profiler.snapshot.program import OptimizerFacts, ProgramFacts

READ_UNTIL: Final = 1  # complete steps; an optimizer that is used less often is not worth a change
MOST_KINDS: Final = 4  # data types and devices that are listed


class ProgramReader:
    """Shadows two methods of the loop detector during the first steps, so that later ones cost nothing."""

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._detector: LoopDetector | None = None
        self._optimizer: OptimizerFacts | None = None
        self._autocast = ""
        self._is_done = False

    def step_ended(self, steps: int) -> None:
        """Handle the end of a step; ``steps`` are complete. Called on the training thread."""
        if steps >= READ_UNTIL:
            self.stop()
        elif not self._is_done and self._detector is None and self._context.detector is not None:
            self._begin(self._context.detector)

    def _begin(self, detector: LoopDetector) -> None:
        self._detector, torch = detector, sys.modules["torch"]
        update_ends, call_ends = detector.update_ends, detector.call_ends

        def reading_update_ends(optimizer: Any, has_updated: bool = True) -> None:
            with contextlib.suppress(Exception):  # an optimizer that has other attributes is not described
                self._read_optimizer(optimizer)
            update_ends(optimizer, has_updated)

        def reading_call_ends(call: Any, module: Any) -> None:
            if call.has_grad and not self._autocast:
                with contextlib.suppress(Exception):
                    self._read_autocast(torch, module)
            call_ends(call, module)

        vars(detector).update(
            update_ends=reading_update_ends,
            call_ends=reading_call_ends,
            fast_path_call_begins=lambda module, caller: None,
        )

    def stop(self) -> None:
        """Restore the detector."""
        detector, self._detector, self._is_done = self._detector, None, True  # a later thread's is not shadowed
        if detector is not None:
            for name in ("update_ends", "call_ends", "fast_path_call_begins"):
                vars(detector).pop(name, None)

    def _read_optimizer(self, optimizer: Any) -> None:
        facts = optimizer_facts(optimizer)
        if self._optimizer is None or facts.tensors > self._optimizer.tensors:
            self._optimizer = facts

    def _read_autocast(self, torch: Any, module: Any) -> None:
        parameter = next(parameters_within(module), None)
        if parameter is not None and torch.is_autocast_enabled(parameter.device.type):
            self._autocast = _name(torch.get_autocast_dtype(parameter.device.type))

    def facts(self) -> ProgramFacts:
        """Return the facts of the program so far."""
        return ProgramFacts(optimizer=self._optimizer, autocast=self._autocast, kept_graphs=self._context.kept_graphs)


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
        tuple(sorted({_name(parameter.dtype) for parameter in parameters})[:MOST_KINDS]),
        tuple(sorted({str(parameter.device.type) for parameter in parameters})[:MOST_KINDS]),
        of_groups("foreach"),
        of_groups("fused"),
        "foreach" in defaults,
        "fused" in defaults,
    )


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
