"""Whether a step's FLOPs can be counted: nothing in it may break under a dispatch mode, or bypass it."""

import importlib
import sys
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.modules import modules_within

DEFAULT_DEVICE: Final = "DeviceContext"  # the class behind torch.set_default_device and "with torch.device(...)"


def plain_classes(torch: Any) -> tuple[type, ...]:
    """Return the tensor classes without behaviour of their own."""
    return (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))


def mode_stack() -> list[Any]:
    """Return the active dispatch modes of this thread, outermost first."""
    stack: list[Any] = importlib.import_module("torch.utils._python_dispatch")._get_current_dispatch_mode_stack()
    return stack


def is_profiled(torch: Any) -> bool:
    """Return whether torch's own profiler is active; it would record each operation twice."""
    return bool(torch.autograd.profiler._is_profiler_enabled or torch._C._autograd._profiler_enabled())


def is_watched(torch: Any) -> bool:
    """Return whether the program watches the operations of this thread, by a profiler or a mode of torch.

    It would see those of ours. A default device is a mode, too, which only chooses where new tensors are.
    """
    if is_profiled(torch) or mode_stack():
        return True
    functions = range(torch._C._len_torch_function_stack())
    return any(type(torch._C._get_function_stack_at(at)).__name__ != DEFAULT_DEVICE for at in functions)


def why_not_counted(torch: Any, module: Any = None) -> str | None:
    """Return what would break under a dispatch mode, or bypass it; None for nothing."""
    if mode_stack():
        return "another dispatch mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func is in use"
    if _has_compiled():
        return "torch.compile is in use"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None if module is None else _why_not_module(torch, module)


def _has_compiled() -> bool:
    frames = sys.modules.get("torch._dynamo.eval_frame")  # private: any of this may be gone
    if frames is None:
        return False
    backends = getattr(frames, "cached_backends", None)
    return backends is None or any(backend is not None for backend in backends.values())


def _why_not_module(torch: Any, module: Any) -> str | None:
    plain = plain_classes(torch)
    for inner in modules_within(module):
        if isinstance(inner, torch.jit.ScriptModule):
            return "it calls modules compiled by torch.jit"
        if isinstance(inner, torch.nn.DataParallel):
            return "DataParallel computes on other threads"
        if inner._compiled_call_impl is not None:
            return "the model is compiled"
        for tensor in (*inner._parameters.values(), *inner._buffers.values()):
            if tensor is not None and type(tensor) not in plain:
                return f"it uses tensors of class {type(tensor).__name__}"
    return None
