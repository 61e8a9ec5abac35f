"""Records one forward pass with hooks: the modules that were called, their callers and their inputs."""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from training_profiler.base.errors import BenchmarkError
from training_profiler.component_benchmark.subject import Subject, tensors_in
from training_profiler.tables.backends import CUDA

_FLOAT = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+")


@dataclass(frozen=True)
class Surroundings:
    """The gradient mode and autocast of a call, which decide how fast it is."""

    has_gradient: bool
    autocast: tuple[tuple[str, torch.dtype], ...]  # (kind of device, type)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Set the same modes again."""
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.has_gradient))
            for device, dtype in self.autocast:
                # A model casts each weight once a pass. With the cache, it would be cast once for all runs.
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            yield


@dataclass
class Call:
    """A call of a module that can be made again; its tensors are copies."""

    key: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    surroundings: Surroundings


@dataclass
class Node:
    """All equal calls below the same caller."""

    call: Call
    names: list[str] = field(default_factory=list)
    calls: int = 0
    children: dict[str, "Node"] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured:
    """The calls of one forward pass."""

    root: Node
    never_called: tuple[tuple[str, str], ...]  # (name, class)


def capture(subject: Subject) -> Captured:
    """Run the model once and return its calls. Compiled modules run uncompiled.

    Raises:
        BenchmarkError: The model raises.
    """
    recorder = _CallRecorder(subject.model)
    try:
        # torch.compile would compile the hooks too.
        with recorder.hooked(), without_compiler(subject.model):
            subject.forward()
    except Exception as error:
        shapes = shapes_text(subject.arguments, subject.keywords)
        words = " ".join(str(error).split())[:200]
        raise BenchmarkError(
            f"the model of {subject.source} raised {type(error).__name__}: {words} (its input: {shapes})", True
        ) from error
    (root,) = recorder.top.values()
    return Captured(root, tuple(recorder.never_called()))


def is_compiled(model: nn.Module) -> bool:
    """Return whether the model or a module in it is compiled."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def without_compiler(model: nn.Module) -> AbstractContextManager[Any]:
    """Run a compiled model and its compiled modules uncompiled (from torch 2.6 on)."""
    if is_compiled(model) and hasattr(torch.compiler, "set_stance"):
        return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
    return nullcontext()


def shapes_text(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Return the shapes of all tensors given, as 8x128 and 8x128x64."""
    shapes = ["x".join(map(str, tensor.shape)) or "scalar" for tensor in tensors_in((arguments, keywords))]
    return ", ".join(shapes) or "no tensor"


def copied(value: Any, is_leaf: bool = True) -> Any:
    """Return ``value`` with copies of its tensors. A copy requires a gradient if its tensor does.

    Args:
        value: nested tuples, lists and mappings; anything else is returned as it is.
        is_leaf: whether gradients end in the copies; otherwise they go on to ``value``.
    """
    if isinstance(value, torch.Tensor):
        if not is_leaf:
            return value.clone()
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(copied(inner, is_leaf) for inner in value))
    if isinstance(value, (tuple, list)):
        return type(value)(copied(inner, is_leaf) for inner in value)
    if type(value) is dict:
        return {name: copied(inner, is_leaf) for name, inner in value.items()}
    return value


class _CallRecorder:
    def __init__(self, model: nn.Module) -> None:
        self.top: dict[str, Node] = {}
        # Containers such as ModuleList are never called, so they are not components.
        self._modules = {
            module: name for name, module in model.named_modules() if type(module).forward is not nn.Module.forward
        }
        self._kinds: dict[nn.Module, str] = {}
        self._known: dict[str, Call] = {}
        self._stack: list[Node] = []
        self._called: set[nn.Module] = set()

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Record calls while the block runs."""
        with ExitStack() as stack:
            for module in self._modules:
                # First of all hooks: a replay runs the other hooks on the recorded input again.
                enter = module.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True)
                stack.callback(enter.remove)
                stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            yield

    def never_called(self) -> Iterator[tuple[str, str]]:
        """Yield the modules that were not called, without the modules inside them."""
        silent: list[str] = []
        for module, name in self._modules.items():
            if module in self._called or any(name.startswith(parent + ".") for parent in silent):
                continue
            silent.append(name)
            yield name, type(module).__name__

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._called.add(module)
        surroundings = _surroundings()
        key = f"{self._kind(module)}|{_describe(arguments)}|{_describe(keywords)}|{surroundings}"
        given = (arguments, keywords)
        call = self._known.get(key)
        if call is None:
            self._known[key] = Call(key, module, copied(arguments), copied(keywords), surroundings)
        elif _gradients_in(given) > _gradients_in((call.arguments, call.keywords)):
            # The first of many blocks may get the data, which needs no gradient. The later blocks also compute the
            # gradient of their input, which is the typical case.
            call.module, (call.arguments, call.keywords) = module, copied(given)
        level = self._stack[-1].children if self._stack else self.top
        node = level.setdefault(key, Node(self._known[key]))
        node.calls += 1
        if self._modules[module] not in node.names:
            node.names.append(self._modules[module])
        self._stack.append(node)

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._stack.pop()

    def _kind(self, module: nn.Module) -> str:
        if module not in self._kinds:
            self._kinds[module] = _structure(module)
        return self._kinds[module]


def _structure(module: nn.Module) -> str:
    """Return the classes, settings and shapes that equal modules share, without values such as the 0.1 of a dropout."""
    settings = _FLOAT.sub(lambda number: "x" if float(number.group()) else "0", module.extra_repr())
    own = [
        f"{name}:{tuple(getattr(tensor, 'shape', ()))}{tensor.dtype}{tensor.requires_grad}"
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]
        if tensor is not None and not isinstance(tensor, nn.parameter.UninitializedTensorMixin)
    ]
    inner = [f"{name}={_structure(child)}" for name, child in module.named_children()]
    return f"{type(module).__module__}.{type(module).__qualname__}({settings};{own};{module.training};{inner})"


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)}{value.dtype}{value.device}"
    if isinstance(value, Mapping):
        return str({str(name): _describe(inner) for name, inner in value.items()})
    if isinstance(value, (tuple, list)):
        return str([_describe(inner) for inner in value])
    return repr(value) if isinstance(value, (bool, int, str, type(None))) else type(value).__name__


def _gradients_in(value: Any) -> int:
    return sum(tensor.requires_grad for tensor in tensors_in(value))


def _surroundings() -> Surroundings:
    kinds = {"cpu"}
    if torch.accelerator.is_available() if hasattr(torch, "accelerator") else torch.cuda.is_available():
        kinds.add(torch.accelerator.current_accelerator().type if hasattr(torch, "accelerator") else CUDA.kind)
    autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]
    return Surroundings(torch.is_grad_enabled(), tuple(autocast))
