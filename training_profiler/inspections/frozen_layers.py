"""Times the frozen layers of a trained module within one of its calls."""

import contextlib
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from training_profiler.inspections.repeated_forward import generator_state
from training_profiler.instrumentation.loop_detection.modules import parameters_within


class InnerCalls:
    """Hooks of torch for all modules, for the time of one call.

    A layer counts until a trained one has been called: what comes later may depend on that.

    Args:
        generator: the state of torch's generators before the call.
        is_frozen: whether a module is frozen in a call with gradients, or without.
        follow: remembers a frozen module; returns False if there are too many.
    """

    def __init__(
        self,
        generator: tuple[Any, ...],
        is_frozen: Callable[[Any, bool], bool],
        follow: Callable[[Any, bool], bool],
    ) -> None:
        self._generator = generator
        self._is_frozen = is_frozen
        self._follow = follow
        self._thread = get_ident()
        self._handles: list[Any] = []
        self._open: Any = None  # the frozen module under way
        self._began_ns = 0
        self._is_over = False
        self.spent_ns: dict[int, int] = {}  # by the id of the module

    def begin(self) -> None:
        """Add the hooks. Does not raise."""
        with contextlib.suppress(Exception):
            module = sys.modules["torch"].nn.modules.module
            self._handles.append(module.register_module_forward_pre_hook(self._begins))
            self._handles.append(module.register_module_forward_hook(self._ends))

    def end(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _begins(self, module: Any, inputs: tuple[Any, ...]) -> None:
        if self._is_over or self._open is not None or get_ident() != self._thread:
            return
        with contextlib.suppress(Exception):  # of modules with methods of their own
            if _is_function(module) or any(getattr(value, "requires_grad", False) for value in inputs):
                return
            has_grad = sys.modules["torch"].is_grad_enabled()
            if self._is_frozen(module, has_grad) and self._follow(module, has_grad):
                self._is_over = generator_state() != self._generator
                self._open, self._began_ns = module, perf_counter_ns()

    def _ends(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        now_ns = perf_counter_ns()
        if self._is_over or get_ident() != self._thread or not (self._open is None or self._open is module):
            return
        try:
            if self._open is None:
                self._is_over = not _is_function(module)
            else:
                self._open = None
                self._is_over = generator_state() != self._generator or _needs_gradient(output)
                if not self._is_over:
                    self.spent_ns[id(module)] = self.spent_ns.get(id(module), 0) + now_ns - self._began_ns
        except Exception:  # of modules with methods of their own
            self._is_over = True


def _is_function(module: Any) -> bool:
    """Return whether a module only computes something of its input, such as an activation."""
    return next(parameters_within(module), None) is None and not (module.training and module._buffers)


def _needs_gradient(output: Any) -> bool:
    values = output if isinstance(output, (list, tuple)) else [output]
    return any(getattr(value, "requires_grad", False) for value in values)
