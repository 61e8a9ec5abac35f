"""The table of all treatments, and which are worth trying; those of optimizers, models, DDP and processes; ceilings."""

import functools
import gc
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from ctypes.util import find_library
from importlib.util import find_spec
from typing import Any, Final

from training_profiler.base.backends import CUDA
from training_profiler.base.sections import CHECKPOINTING, VALIDATION_EPOCH
from training_profiler.base.trackers import MLFLOW, TENSORBOARD, WANDB
from training_profiler.diagnosis.compute_fixes import can_fuse
from training_profiler.diagnosis.finding import Change, Finding, Losses
from training_profiler.diagnosis.registry import row_of
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY, HEALTHY
from training_profiler.instrumentation.loop_detection.modules import parameters_within
from training_profiler.instrumentation.patching import Patches, after_import
from training_profiler.model.program import COMPILE, DDP, OPTIMIZER, THREADS, ZERO_GRAD, CallFacts
from training_profiler.model.snapshot import Snapshot
from training_profiler.trials.loader_treatments import TREATMENTS as LOADER_TREATMENTS
from training_profiler.trials.treatment import (
    IS_SET,
    DoesNotApplyError,
    Edit,
    Install,
    ReasonNot,
    Treatment,
    TrialFacts,
    argument_edits,
    argument_of,
    around,
    change_of,
    facts_of,
    statement_edits,
    with_arguments,
)

FETCHED: Final = 4  # batches of a data set that are made before the last of them is used again and again
DEVICE: Final = "next({model}.parameters()).device.type"


def _optimizer_argument(name: str, other: str) -> Treatment:
    """Return the change that makes all optimizers which have it with "fused" or "foreach": only one can be set."""

    def reason_not(facts: TrialFacts) -> str | None:
        optimizer = facts.optimizer
        if optimizer is None:
            return "no optimizer of torch.optim"
        if not getattr(optimizer, f"has_{name}"):
            return f"{optimizer.name} has no such form"
        now = getattr(optimizer, name)
        if now:
            return IS_SET
        if name == "fused":
            return None if can_fuse(optimizer) else "not for these parameters"
        if optimizer.fused:
            return "the optimizer is fused"
        return "is the default on accelerators" if facts.accelerator and now is None else None

    def install(patches: Patches, torch: Any) -> None:
        for kind in {value for value in vars(torch.optim).values() if isinstance(value, type)}:
            if "__init__" in vars(kind) and {"foreach", name} <= inspect.signature(kind).parameters.keys():
                changed = {"foreach": None, "fused": None, name: True}
                patches.replace(kind, "__init__", functools.partial(with_arguments, **changed))

    def edit(calls: Sequence[CallFacts]) -> list[Edit]:
        return [
            Edit(call, (argument_of(name), *([(other, "None")] if now.get(other) == "True" else [])))
            for call in calls
            if call.kind == OPTIMIZER and name in (now := dict(call.arguments))
        ]

    return change_of(name, f"optimizer({name}=True)", install, reason_not=reason_not, edit=edit)


def _drop_gradients(patches: Patches, torch: Any) -> None:
    """Drop gradients instead of filling them with zeros, where the program asks for zeros."""
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        patches.replace(kind, "zero_grad", around(lambda original, owner, set_to_none=True: original(owner)))


def _ddp_argument(name: str, value: bool | int = True) -> Treatment:
    argument, text = argument_of(name)

    def reason_not(facts: TrialFacts) -> str | None:
        calls = [call for call in facts.calls if call.kind == DDP]
        if not calls:
            return "no DistributedDataParallel"
        return IS_SET if all(dict(call.arguments).get(argument) == text for call in calls) else None

    def install(patches: Patches, torch: Any) -> None:
        module = torch.nn.parallel.DistributedDataParallel
        patches.replace(module, "__init__", functools.partial(with_arguments, **{argument: value}))

    return change_of(name, f"DDP({argument}={text})", install, reason_not=reason_not, edit=argument_edits(DDP, name))


def _threads(count: int) -> Treatment:
    statement = f"torch.set_num_threads({count})"

    def install(patches: Patches, torch: Any) -> None:
        before, process = torch.get_num_threads(), os.getpid()
        torch.set_num_threads(count)
        patches.keep(lambda: torch.set_num_threads(before))

        def set_num_threads(original: Any, number: int) -> None:
            if os.getpid() != process:  # a worker of a loader computes with one; the program sets no other number
                original(number)

        patches.replace(torch, "set_num_threads", around(set_num_threads))

    def edit(calls: Sequence[CallFacts]) -> list[Edit]:
        own = [Edit(call, (("0", str(count)),)) for call in calls if call.kind == THREADS]
        return own or statement_edits(statement)(calls)

    return change_of(
        f"num_threads={count}",
        statement,
        install,
        reason_not=lambda facts: IS_SET if facts.threads == count else facts.too_few_cores(count),
        edit=edit,
    )


def _freeze(patches: Patches, torch: Any) -> None:
    """Leave objects out of garbage collections that were made before the optimizer, where the edit would."""

    def construct(original: Any, *args: Any, **kwargs: Any) -> None:
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
        original(*args, **kwargs)

    patches.replace(torch.optim.Optimizer, "__init__", around(construct))
    patches.keep(gc.unfreeze)


def allocator(name: str, find: Callable[[str], str | None] = find_library) -> Treatment:
    """Return the change to another allocator of the host's memory, which ``find`` finds."""
    return change_of(
        name,
        f"LD_PRELOAD={name}",
        lambda patches, torch: None,
        Change.ALLOCATOR,
        reason_not=lambda facts: None if find(name) else f"lib{name} is not installed",
        environment=lambda: {"LD_PRELOAD": find(name) or ""},
    )


def _statement(name: str, statement: str, install: Install, label: str = "", **parts: Any) -> Treatment:
    return change_of(name, label or statement, install, edit=statement_edits(statement), **parts)


def _why_not_cuda(facts: TrialFacts) -> str | None:
    return None if facts.accelerator == CUDA.kind else "only for devices of CUDA"


def _of_cuda(name: str, statement: str, label: str, install: Install) -> Treatment:
    return _statement(name, statement, install, label, reason_not=_why_not_cuda)


def _set_precision(patches: Patches, torch: Any) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    patches.keep(lambda: torch.set_float32_matmul_precision(before))


def _set_benchmark(patches: Patches, torch: Any) -> None:
    flags = torch.backends.cudnn
    before = flags.benchmark
    flags.set_flags(_benchmark=True)
    patches.keep(lambda: flags.set_flags(_benchmark=before))


def _to_model(change: Callable[[Any, Any], None]) -> Install:
    """Return what calls ``change`` with torch and the outermost module that is called for training, in that call.

    That is the first one which computes gradients of its parameters. Lazy modules get theirs in a call, so the first
    one after that is meant.
    """

    def install(patches: Patches, torch: Any) -> None:
        def before(module: Any, args: Any) -> None:
            parameters = list(parameters_within(module)) if torch.is_grad_enabled() and module.training else []
            if any(map(torch.nn.parameter.is_lazy, parameters)):
                return
            if any(parameter.requires_grad for parameter in parameters):
                handle.remove()  # later calls cost what they did
                change(torch, module)

        handle = torch.nn.modules.module.register_module_forward_pre_hook(before)
        patches.keep(handle.remove)

    return install


def _compiled(name: str, reason_not: ReasonNot = lambda facts: None, **options: Any) -> Treatment:
    """Return the change that compiles the model; where the program compiles, its own compilers get the options."""
    given = [(key, repr(value).replace("'", '"')) for key, value in options.items()]
    words = ", ".join(f"{key}={value}" for key, value in given)

    def install(patches: Patches, torch: Any) -> None:
        has_compiled: list[bool] = []

        def compiler(original: Any, *args: Any, **kwargs: Any) -> Any:
            has_compiled[:] = [True]
            return original(*args, **kwargs | options)

        def compile_forward(torch: Any, module: Any) -> None:
            module = module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module
            if not has_compiled:
                # ``module.compile()`` compiles nothing of a module of torch's own, such as a Sequential.
                vars(module)["forward"] = torch.compile(module.forward)

        patches.replace(torch, "compile", around(compiler))
        _to_model(compile_forward)(patches, torch)

    def edit(calls: Sequence[CallFacts]) -> list[Edit]:
        own = [Edit(call, tuple(given)) for call in calls if call.kind == COMPILE and given]
        of_model = f"torch.compile({', '.join(filter(None, ('{model}.forward', words)))})"
        return own or statement_edits(f"{{model}}.forward = {of_model}")(calls)

    label = f"compile({options.get('mode', words)})" if words else "torch.compile(model)"
    return change_of(name, label, install, Change.COMPILE, reason_not=reason_not, edit=edit)


def _why_not_dynamic(facts: TrialFacts) -> str | None:
    calls = [dict(call.arguments) for call in facts.calls if call.kind == COMPILE]
    return IS_SET if calls and all(given.get("dynamic") == "True" for given in calls) else None


def _channels_last(torch: Any, module: Any) -> None:
    if not any(parameter.dim() == 4 for parameter in parameters_within(module)):
        raise DoesNotApplyError("the model has no convolutions of images")
    module.to(memory_format=torch.channels_last)


def _autocast(torch: Any, module: Any) -> None:
    device = next(parameters_within(module)).device.type
    vars(module)["forward"] = torch.autocast(device, dtype=torch.bfloat16)(module.forward)


def _why_not_autocast(facts: TrialFacts) -> str | None:
    if facts.autocast:
        return f"autocast to {facts.autocast} is on already"
    is_float32 = facts.optimizer is None or "float32" in facts.optimizer.dtypes
    return None if is_float32 else "no parameters in float32"


def _ceiling(
    name: str, label: str, install: Install, reason_not: ReasonNot, losses: Losses = Losses.EXACT
) -> Treatment:
    """Return what cannot be had by an edit, but bounds what an edit can bring."""
    return Treatment(name, label, losses, losses.value, install, reason_not, ceiling=True)


def _one_batch(patches: Patches, torch: Any) -> None:
    """Let each pass with gradients yield one of its first batches again and again, as many as before."""
    # By the id of the data set, which outlives its passes.
    kept: dict[int, Any] = {}
    made: Counter[int] = Counter()

    def next_batch(original: Any, iterator: Any) -> Any:
        data_set = id(iterator._dataset)
        if made[data_set] < FETCHED or not torch.is_grad_enabled():
            batch = original(iterator)
            if torch.is_grad_enabled():
                kept[data_set] = batch
                made[data_set] += 1
            return batch
        try:
            length = len(iterator._index_sampler)
        except (TypeError, NotImplementedError):  # of an iterable data set: it ends with the trial
            length = None
        if length is not None and iterator._num_yielded >= length:
            raise StopIteration
        vars(iterator).update(_num_yielded=iterator._num_yielded + 1)
        return kept[data_set]

    patches.replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", around(next_batch))


def _no_checkpoints(patches: Patches, torch: Any) -> None:
    """Let ``torch.save`` and safetensors write a small file; loading it again gives what was saved."""
    saved: dict[str, Any] = {}

    def save(original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            saved[os.path.abspath(f)] = obj
        return original({}, f, *args, **kwargs)

    def load(original: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        path = os.path.abspath(f) if isinstance(f, (str, os.PathLike)) else ""
        return saved[path] if path in saved else original(f, *args, **kwargs)

    def save_file(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return original({}, *args, **kwargs)

    for owner in (torch, torch.serialization):
        patches.replace(owner, "save", around(save))
        patches.replace(owner, "load", around(load))
    _once_imported(patches, "safetensors.torch", lambda module: patches.replace(module, "save_file", around(save_file)))


def _no_validation(patches: Patches, torch: Any) -> None:
    """End each pass without gradients after its first batch, if it begins after a gradient was computed."""
    has_trained: list[bool] = []

    def backward(original: Any, *args: Any, **kwargs: Any) -> Any:
        has_trained[:] = [True]
        return original(*args, **kwargs)

    def next_batch(original: Any, iterator: Any) -> Any:
        if has_trained and iterator._num_yielded and not torch.is_grad_enabled():
            raise StopIteration
        return original(iterator)

    patches.replace(torch.autograd, "backward", around(backward))
    patches.replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", around(next_batch))


def _why_not_validation(facts: TrialFacts) -> str | None:
    if VALIDATION_EPOCH not in facts.sections:
        return "no validation was seen"
    return None if facts.validates_by_loader else "its data does not come from a DataLoader of torch"


LOGS: Final = {
    "torch.utils.tensorboard.writer": ("SummaryWriter", ("add_scalar", "add_scalars")),
    "wandb.sdk.wandb_run": ("Run", ("log",)),
    "mlflow.tracking.fluent": ("", ("log_metric", "log_metrics")),  # where mlflow takes them from
}


def _no_scalars(patches: Patches, torch: Any) -> None:
    """Let calls that log numbers to a tracker do nothing, once its module is imported."""

    def silence(owner: str, functions: tuple[str, ...], module: Any) -> None:
        for function in functions:
            patches.replace(
                getattr(module, owner) if owner else module, function, lambda original: lambda *args, **kwargs: None
            )

    for name, (owner, functions) in LOGS.items():
        _once_imported(patches, name, functools.partial(silence, owner, functions))


def _once_imported(patches: Patches, name: str, act: Callable[[Any], None]) -> None:
    if name in sys.modules:
        act(sys.modules[name])
    else:
        patches.keep(after_import(name, lambda: act(sys.modules[name])))


def _why_not_scalars(facts: TrialFacts) -> str | None:
    is_any = any(find_spec(tracker.needs) for tracker in (TENSORBOARD, WANDB, MLFLOW) if tracker.needs)
    return None if is_any else "no tracker is installed"


TREATMENTS: Final = (
    *LOADER_TREATMENTS,
    _optimizer_argument("fused", other="foreach"),
    _optimizer_argument("foreach", other="fused"),
    change_of(
        "set_to_none",
        "zero_grad(set_to_none=True)",
        _drop_gradients,
        reason_not=lambda facts: (
            None if any(call.kind == ZERO_GRAD for call in facts.calls) else "no zero_grad(set_to_none=False)"
        ),
        edit=argument_edits(ZERO_GRAD, "set_to_none"),
    ),
    *map(_threads, (1, 2, 4, 8, 16)),
    _statement("gc_freeze", "gc.freeze()", _freeze),
    *map(allocator, ("jemalloc", "tcmalloc")),
    _statement(
        "channels_last",
        "{model}.to(memory_format=torch.channels_last)",
        _to_model(_channels_last),
        "model.to(channels_last)",
    ),
    _compiled("compile", lambda facts: "the program compiles already" if facts.is_compiled else None),
    _compiled("compile_mode=reduce-overhead", _why_not_cuda, mode="reduce-overhead"),  # the default without CUDA graphs
    _compiled("compile_mode=max-autotune-no-cudagraphs", mode="max-autotune-no-cudagraphs"),
    _compiled("compile_dynamic", _why_not_dynamic, dynamic=True),
    _of_cuda("cudnn_benchmark", "torch.backends.cudnn.benchmark = True", "cudnn.benchmark = True", _set_benchmark),
    _of_cuda(
        "matmul_precision",
        'torch.set_float32_matmul_precision("high")',
        'set_float32_matmul_precision("high")',
        _set_precision,
    ),
    _statement(
        "autocast",
        f"{{model}}.forward = torch.autocast({DEVICE}, dtype=torch.bfloat16)({{model}}.forward)",
        _to_model(_autocast),
        "autocast(bfloat16)",
        reason_not=_why_not_autocast,
    ),
    _ddp_argument("gradient_as_bucket_view"),
    _ddp_argument("static_graph"),
    _ddp_argument("bucket_cap_mb=100", 100),
    _ceiling(
        "one_batch",
        "one batch again and again",
        _one_batch,
        lambda facts: "no DataLoader of torch" if facts.loader is None else None,
        Losses.CHANGES,
    ),
    _ceiling(
        "no_checkpoints",
        "no checkpoints",
        _no_checkpoints,
        lambda facts: None if CHECKPOINTING in facts.sections else "no checkpoint was saved",
    ),
    _ceiling("no_validation", "one batch of each validation", _no_validation, _why_not_validation),
    _ceiling("no_scalars", "no logging of numbers", _no_scalars, _why_not_scalars),
)
# Only one of these can be in effect.
EXCLUSIVE: Final = (
    ("fused", "foreach"),
    ("jemalloc", "tcmalloc"),
    ("compile", "compile_mode", "compile_dynamic"),
)
FAMILIES: Final = tuple(dict.fromkeys(treatment.family for treatment in TREATMENTS))

_ANY: Final = ("fused", "num_threads", "gc_freeze", "compile", "channels_last")
_SAFEST_FIRST: Final = tuple(Losses)


def worth_trying(finding: Finding) -> tuple[str, ...]:
    """Return the families of what may help against a finding."""
    return _ANY if finding.code in (HEALTHY, COMPUTES_SLOWLY) else row_of(finding).try_


def edits_of(names: Iterable[str], snapshot: Snapshot) -> list[Edit]:
    """Return the edits of the changes, or kinds of changes, of these names for the program of a run."""
    calls, wanted = facts_of(snapshot).calls, set(names)
    return [edit for each in TREATMENTS if {each.name, each.family} & wanted for edit in each.edit(calls)]


def suggested(findings: Iterable[Finding], facts: TrialFacts) -> list[Treatment]:
    """Return the treatments worth trying where a run had these findings: those that apply, the safest first.

    Ceilings come last, and after them the families of which none applies, to be named with the reason. Findings that
    no change is known for, such as a busy machine, leave those that may help any program.
    """
    families = {family for finding in findings for family in worth_trying(finding)} or set(_ANY)
    worth = [each for each in TREATMENTS if each.family in families]
    chosen = [each for each in worth if each.reason_not(facts) is None]
    applying = {each.family for each in chosen}
    chosen.sort(key=lambda each: (each.ceiling, _SAFEST_FIRST.index(each.losses)))
    return [*chosen, *(each for each in worth if each.family not in applying)]
