"""Patches of what is called a few times: loaders, compilers, threads, and the hook for an uncaught exception."""

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.model.program import ANOMALY, COMPILE, THREADS
from training_profiler.recording.tracebacks import hide_all_our_frames

# Private: may be gone. ``torch.compile`` makes one of them; it stays itself, because dynamo knows it by its identity.
COMPILERS: Final = {
    "_TorchCompileInductorWrapper": ("mode", "options", "dynamic"),
    "_TorchCompileWrapper": ("backend", "mode", "options", "dynamic"),
}

MAX_CHAIN: Final = 100  # causes and contexts of an exception
ANOMALY_CONTEXTS: Final = ("detect_anomaly", "set_detect_anomaly")


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Remember where the calls are made, and with which arguments. Optimizers and DDP have patches of their own."""
    calls = context.calls

    def making_loader(loader: Any, *args: Any, **kwargs: Any) -> None:
        calls.add_loader(loader)

    def setting_threads(*args: Any, **kwargs: Any) -> None:
        calls.add(THREADS, "torch.set_num_threads", {"threads": args[0]} if args else {})

    def finding_anomalies(name: str, *args: Any, **kwargs: Any) -> None:
        if name == "detect_anomaly" or kwargs.get("mode", args[1] if len(args) > 1 else True):
            calls.add(ANOMALY, f"torch.autograd.{name}", {})

    def compiling(names: tuple[str, ...], compiler: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        is_set = {name: given[name] for name in names if given.get(name) is not None}
        calls.add(COMPILE, "torch.compile", is_set)

    def observed(observe: Callable[..., None], original: Any) -> Any:
        """Return ``original`` with a call of ``observe`` after each of it."""

        def end(call: tuple[tuple[Any, ...], dict[str, Any]], has_failed: bool) -> None:
            if not has_failed:
                observe(*call[0], **call[1])

        return context.between(original, lambda *call: call, end)

    def hidden(observe: Callable[..., None], original: Any) -> Any:
        return hidden_from_warnings(observed(observe, original))

    found: list[tuple[Any, Callable[..., None]]] = [(torch.utils.data.DataLoader, making_loader)]
    found += [
        (getattr(getattr(torch, "autograd", None), name, None), functools.partial(finding_anomalies, name))
        for name in ANOMALY_CONTEXTS
    ]
    found += [
        (getattr(torch, name, None), functools.partial(compiling, arguments)) for name, arguments in COMPILERS.items()
    ]
    for owner, observe in found:
        if owner is not None:
            patches.replace(owner, "__init__", functools.partial(hidden, observe))
    patches.replace(torch, "set_num_threads", functools.partial(observed, setting_threads))


def install_excepthook(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Print an uncaught exception as it would be without us, unless the program has a hook of its own.

    Patches remove their frames from the exceptions that pass through them. What remains are exceptions raised in our
    code, such as by Ctrl-C.
    """
    if sys.excepthook is not sys.__excepthook__:
        return

    def make(original: Any) -> Any:
        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            cause: BaseException | None = error
            for _ in range(MAX_CHAIN):
                if cause is None:
                    break
                hide_all_our_frames(cause)
                cause = cause.__context__ if cause.__cause__ is None else cause.__cause__  # not `or`: may be false
            original(kind, error, error.__traceback__)

        return excepthook

    patches.replace(sys, "excepthook", make)
