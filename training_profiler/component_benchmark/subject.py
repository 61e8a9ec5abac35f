"""The subject of a benchmark: a model, its input, its loss and its optimizer, from the factory MODULE:FACTORY."""

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

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
        """Return the loss as a scalar, or None if no output has a gradient.

        Raises:
            BenchmarkError: The loss is not a scalar, or no known loss fits the target.
        """
        if self.loss is not None:
            loss = self.loss(output) if self.target is None else self.loss(output, self.target)
        elif self.target is not None:
            loss = _loss_against(output, self.target)
        else:
            return sum_of_means(output)
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


def sum_of_means(output: Any) -> torch.Tensor | None:
    """Return the sum of the means of all outputs that have a gradient, or None."""
    means = [tensor.mean() for tensor in tensors_in(output) if tensor.requires_grad and tensor.is_floating_point()]
    return torch.stack([mean.float() for mean in means]).sum() if means else None


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
        if isinstance(value, torch.optim.Optimizer):
            what = "optimizer"
        elif isinstance(value, torch.Tensor):
            what = "target"
        elif callable(value):
            what = "loss"
        else:
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
