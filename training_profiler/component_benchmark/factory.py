"""Finds MODULE:FACTORY, calls it, and checks what it returns."""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from training_profiler.base.errors import BenchmarkError
from training_profiler.component_benchmark.subject import Subject

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
