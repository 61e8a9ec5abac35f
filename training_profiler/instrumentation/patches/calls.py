"""Patch: calls whose arguments decide how fast a training is, made a few times: loaders, compilers, threads."""

import functools
from collections.abc import Callable
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.recording.tracebacks import hide_our_frames
from training_profiler.snapshot.program import ANOMALY, COMPILE, THREADS

# Private: may be gone. ``torch.compile`` makes one of them; it stays itself, because dynamo knows it by its identity.
COMPILERS: Final = {
    "_TorchCompileInductorWrapper": ("mode", "options", "dynamic"),
    "_TorchCompileWrapper": ("backend", "mode", "options", "dynamic"),
}

ANOMALY_CONTEXTS: Final = ("detect_anomaly", "set_detect_anomaly")


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Remember where the calls are made, and with which arguments. Optimizers and DDP have patches of their own."""
    patches.replace(torch.utils.data.DataLoader, "__init__", functools.partial(_making_loader, context))
    patches.replace(torch, "set_num_threads", functools.partial(_setting_threads, context))
    for name in ANOMALY_CONTEXTS:
        owner = getattr(getattr(torch, "autograd", None), name, None)
        if owner is not None:
            patches.replace(owner, "__init__", functools.partial(_finding_anomalies, context, name))
    for name, arguments in COMPILERS.items():
        if hasattr(torch, name):
            patches.replace(getattr(torch, name), "__init__", functools.partial(_compiling, context, arguments))


def _then(observe: Callable[..., None], original: Any) -> Any:
    """Return ``original``, a function that returns nothing, with a call of ``observe`` after each of it."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            original(*args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise
        observe(*args, **kwargs)

    return call


def _making_loader(context: PatchContext, original: Any) -> Any:
    return hidden_from_warnings(_then(lambda loader, *args, **kwargs: context.calls.add_loader(loader), original))


def _setting_threads(context: PatchContext, original: Any) -> Any:
    def observe(*args: Any, **kwargs: Any) -> None:
        if not context.is_compiling():
            context.calls.add(THREADS, "torch.set_num_threads", {"threads": args[0]} if args else {})

    return _then(observe, original)


def _finding_anomalies(context: PatchContext, name: str, original: Any) -> Any:
    def observe(*args: Any, **kwargs: Any) -> None:
        mode = kwargs.get("mode", args[1] if len(args) > 1 else True)
        if name == "detect_anomaly" or mode:
            context.calls.add(ANOMALY, f"torch.autograd.{name}", {})

    return hidden_from_warnings(_then(observe, original))


def _compiling(context: PatchContext, names: tuple[str, ...], original: Any) -> Any:
    def observe(compiler: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        is_set = {name: given[name] for name in names if given.get(name) is not None}
        context.calls.add(COMPILE, "torch.compile", is_set)

    return hidden_from_warnings(_then(observe, original))
