"""The table of all treatments, and which of them are worth trying on a program."""

from collections.abc import Iterable
from typing import Any, Final

from training_profiler.diagnosis.registry import row_of
from training_profiler.diagnosis.rules import COMPUTES_SLOWLY, HEALTHY
from training_profiler.findings.finding import Finding
from training_profiler.findings.losses import Change, Losses
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.trials.treatments import ceilings, loader, optimizer, statements
from training_profiler.trials.treatments.treatment import Edit, Treatment, TrialFacts, facts_of


def _row(kind: Any, name: str, label: str, *rest: Any, change: Change | None = None, **more: Any) -> Any:
    """Return a treatment; the change that it is an example of says what it does to the losses."""
    family = name.partition("=")[0]
    change = change or Change[family.upper()]
    return kind(name, family, label, change.losses, *rest, effect=change.text, **more)


def _loader(kind: Any, name: str, *rest: Any) -> Any:
    return _row(kind, name, f"DataLoader({name if '=' in name else name + '=True'})", *rest)


def _statement(kind: Any, name: str, statement: str, *rest: Any, label: str = "") -> Any:
    return _row(kind, name, label or statement, statement, statement.partition(".")[0], *rest)


def _model(kind: Any, name: str, label: str, statement: str) -> Any:
    return _row(kind, name, label, statement, "torch")


def _ceiling(kind: Any, name: str, label: str) -> Any:
    losses = Losses.CHANGES if kind is ceilings.OneBatch else Losses.EXACT
    return kind(name, name, label, losses, ceiling=True, effect=losses.value)


TO_CHANNELS_LAST: Final = "{model}.to(memory_format=torch.channels_last)"
DEVICE: Final = "next({model}.parameters()).device.type"
UNDER_AUTOCAST: Final = f"{{model}}.forward = torch.autocast({DEVICE}, dtype=torch.bfloat16)({{model}}.forward)"
TREATMENTS: Final[tuple[Treatment, ...]] = (
    *(_loader(loader.Workers, f"num_workers={count}", count) for count in (0, 1, 2, 4, 8, 16)),
    _loader(loader.KeepWorkers, "persistent_workers"),
    *(_loader(loader.Prefetch, f"prefetch_factor={factor}", factor) for factor in (4, 8)),
    _loader(loader.PinnedMemory, "pin_memory"),
    _row(loader.WholeBatches, "batched", "DataLoader(sampler=BatchSampler(...))"),
    _row(optimizer.OptimizerArgument, "fused", "optimizer(fused=True)"),
    _row(optimizer.OptimizerArgument, "foreach", "optimizer(foreach=True)"),
    _row(optimizer.ClearedGradients, "set_to_none", "zero_grad(set_to_none=True)"),
    *(_statement(statements.Threads, f"num_threads={n}", f"torch.set_num_threads({n})", n) for n in (1, 2, 4, 8, 16)),
    _statement(statements.FrozenObjects, "gc_freeze", "gc.freeze()"),
    *(
        _row(statements.Allocator, name, f"LD_PRELOAD={name}", name, change=Change.ALLOCATOR)
        for name in ("jemalloc", "tcmalloc")
    ),
    _model(statements.ChannelsLast, "channels_last", "model.to(channels_last)", TO_CHANNELS_LAST),
    _model(statements.Compiled, "compile", "model.compile()", "{model}.compile()"),
    _statement(
        statements.CudnnBenchmark,
        "cudnn_benchmark",
        "torch.backends.cudnn.benchmark = True",
        label="cudnn.benchmark = True",
    ),
    _statement(
        statements.MatmulPrecision,
        "matmul_precision",
        'torch.set_float32_matmul_precision("high")',
        label='set_float32_matmul_precision("high")',
    ),
    _model(statements.Autocast, "autocast", "autocast(bfloat16)", UNDER_AUTOCAST),
    _row(optimizer.DdpArgument, "gradient_as_bucket_view", "DDP(gradient_as_bucket_view=True)"),
    _row(optimizer.DdpArgument, "static_graph", "DDP(static_graph=True)"),
    _row(optimizer.DdpArgument, "bucket_cap_mb=100", "DDP(bucket_cap_mb=100)", 100),
    _ceiling(ceilings.OneBatch, "one_batch", "one batch again and again"),
    _ceiling(ceilings.NoCheckpoints, "no_checkpoints", "no checkpoints"),
    _ceiling(ceilings.OneBatchOfValidation, "no_validation", "one batch of each validation"),
    _ceiling(ceilings.NoScalars, "no_scalars", "no logging of numbers"),
)
# Only one of these can be in effect.
EXCLUSIVE: Final = (("fused", "foreach"), ("jemalloc", "tcmalloc"))
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
