"""The subject of a benchmark: a model, its input, its loss and its optimizer, from the factory MODULE:FACTORY."""

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from training_profiler.base.backends import CUDA
from training_profiler.base.errors import BenchmarkError

LEARNING_RATE = 1e-6  # hundreds of updates barely change the model


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with everything that a training step needs."""

    source: str
    model: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    loss: Callable[..., Any] | None = None
    target: Any = None
    optimizer: torch.optim.Optimizer | None = None

    def forward(self) -> Any:
        """Return the output of the model for its input."""
        return self.model(*self.arguments, **self.keywords)

    def loss_of(self, output: Any) -> torch.Tensor | None:
        """Return the loss as a scalar, by default the sum of the outputs' means; None if no output has a gradient.

        Raises:
            BenchmarkError: The loss is not a scalar, or no known loss fits the target.
        """
        if self.loss is not None:
            loss = self.loss(output) if self.target is None else self.loss(output, self.target)
        elif self.target is not None:
            loss = _loss_against(output, self.target)
        else:
            tensors = (tensor for tensor in tensors_in(output) if tensor.requires_grad and tensor.is_floating_point())
            means = [tensor.mean().float() for tensor in tensors]
            return torch.stack(means).sum() if means else None
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
            raise BenchmarkError(
                f"the loss of {self.source} is {given[:80]}; expected a scalar tensor, "
                "example: return model, images, lambda output: output.mean()"
            )
        return loss

    @property
    def loss_in_words(self) -> str:
        """Return the name of the loss."""
        if self.loss is not None:
            return getattr(self.loss, "__name__", type(self.loss).__name__)
        if self.target is None:
            return "sum of the outputs' means"
        return "mean squared error" if self.target.is_floating_point() else "cross entropy"

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the given optimizer, or AdamW."""
        if self.optimizer is not None:
            return self.optimizer
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=LEARNING_RATE)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from tensors_in(inner)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def _loss_against(output: Any, target: torch.Tensor) -> torch.Tensor:
    (*_, out) = [None, *tensors_in(output)][:2]
    if out is not None and target.is_floating_point() and out.shape == target.shape:
        return mse_loss(out, target)
    if out is not None and not target.is_floating_point():
        if out.shape[:-1] == target.shape:  # classes last, as language models have them
            return cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1).long())
        if out.shape[:1] + out.shape[2:] == target.shape:
            return cross_entropy(out, target.long())
    shape = "no tensor" if out is None else f"shape {tuple(out.shape)}"
    raise BenchmarkError(
        f"the target has shape {tuple(target.shape)} and type {target.dtype}, the output {shape}: neither cross "
        "entropy nor mean squared error fits; return a loss as well, "
        "example: return model, images, labels, torch.nn.MultiMarginLoss()"
    )


EXAMPLE = "example: training-profiler benchmark train.py:factory"
RETURNS = "expected (model, input), example: return model, torch.randn(8, 3, 32, 32)"


def read_subject(source: str) -> Subject:
    """Return the subject from the factory that ``source`` names.

    Raises:
        BenchmarkError: The factory does not exist, raises or returns something else.
    """
    place, colon, name = source.rpartition(":")
    if not (colon and place and name):
        raise BenchmarkError(f"{source!r} is not MODULE:FACTORY; {EXAMPLE}")
    module = _import(place)
    factory = getattr(module, name, None)
    if factory is None:
        near = difflib.get_close_matches(name, [word for word in vars(module) if not word.startswith("__")], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BenchmarkError(f"{place} has no {name!r}{hint}; {EXAMPLE}")
    if isinstance(factory, nn.Module) or not callable(factory):
        raise BenchmarkError(f"{source} is {_kind(factory)}, not a function; {RETURNS}")
    _check_arguments(source, factory)
    try:
        returned = factory()
    except (Exception, SystemExit) as error:
        raise BenchmarkError(f"{source} raised {_in_words(error)}", shows_cause=True) from error
    return subject_of(source, returned)


def subject_of(source: str, returned: Any) -> Subject:
    """Return ``returned`` as a subject.

    Raises:
        BenchmarkError: It is not (model, input), optionally followed by a loss, a target and an optimizer.
    """
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 5:
        raise BenchmarkError(f"{source} returned {_kind(returned)}; {RETURNS}")
    model, given, *rest = returned
    if not isinstance(model, nn.Module):
        raise BenchmarkError(f"{source} returned {_kind(model)} as the model; {RETURNS}")
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(given, torch.Tensor):
        arguments = (given,)
    elif isinstance(given, (tuple, list)):
        arguments = tuple(given)
    elif isinstance(given, Mapping):
        keywords = dict(given)
    else:
        raise BenchmarkError(f"{source} returned {_kind(given)} as the input, not a tensor, tuple or dict; {RETURNS}")
    further: dict[str, Any] = {}
    for value in rest:
        if value is None:
            continue
        kinds = {"optimizer": torch.optim.Optimizer, "target": torch.Tensor, "loss": Callable}
        what = next((name for name, kind in kinds.items() if isinstance(value, kind)), None)
        if what is None:
            raise BenchmarkError(
                f"{source} returned {_kind(value)} beside model and input; expected a loss (a callable), a target "
                "(a tensor) or an optimizer, example: return model, images, labels"
            )
        if what in further:
            raise BenchmarkError(f"{source} returned two values for the {what}; expected at most one")
        further[what] = value
    return Subject(source, model, arguments, keywords, **further)


def _import(place: str) -> ModuleType:
    # `python -m` does this, the installed command does not.
    if sys.path[:1] not in ([""], [os.getcwd()]):
        sys.path.insert(0, os.getcwd())
    is_path = place.endswith(".py") or os.sep in place or "/" in place
    if is_path and not Path(place).is_file():
        raise BenchmarkError(f"there is no file {place}; {EXAMPLE}")
    try:
        return _import_file(Path(place)) if is_path else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not is_path and error.name and (place == error.name or place.startswith(error.name + ".")):
            raise BenchmarkError(
                f"there is no module {place!r} (searched {os.getcwd()} first, then the path of Python); {EXAMPLE}"
            ) from None
        raise BenchmarkError(f"importing {place} raised {_in_words(error)}", shows_cause=True) from error
    except SystemExit as error:
        raise BenchmarkError(
            f"importing {place} ended the program ({_in_words(error)}); put the code of a script under "
            'if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise BenchmarkError(f"importing {place} raised {_in_words(error)}", shows_cause=True) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file by its dotted name if it is in a package below here, otherwise as a separate module."""
    path = path.resolve()
    here = Path.cwd().resolve()
    inside = path.parent.is_relative_to(here) and path.parent != here
    folders = path.parent.relative_to(here).parts if inside else ()
    if folders and all((here.joinpath(*folders[: i + 1]) / "__init__.py").is_file() for i in range(len(folders))):
        return importlib.import_module(".".join([*folders, path.stem]))
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as for a script
    name = path.stem if path.stem not in sys.modules else f"_benchmarked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _check_arguments(source: str, factory: Any) -> None:
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise BenchmarkError(
            f"{source} cannot be called without arguments ({error}); example: def factory(): return Model(), input"
        ) from None
    except ValueError:  # a callable without a signature
        return


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _in_words(error: BaseException) -> str:
    return ": ".join(filter(None, [type(error).__name__, " ".join(str(error).split())[:200]]))


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


def capture(subject: Subject) -> tuple[Node, tuple[tuple[str, str], ...]]:
    """Run the model once, uncompiled; return its calls, and the names and classes of modules that were never called.

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
    return root, tuple(recorder.never_called())


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
        kinds = {"cpu"}
        if torch.accelerator.is_available() if hasattr(torch, "accelerator") else torch.cuda.is_available():
            kinds.add(torch.accelerator.current_accelerator().type if hasattr(torch, "accelerator") else CUDA.kind)
        autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]
        surroundings = Surroundings(torch.is_grad_enabled(), tuple(autocast))
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
