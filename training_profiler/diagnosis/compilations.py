"""Rules about torch.compile: what it compiles again and why, where it gives up, and where its graphs end."""

import re
from collections.abc import Sequence
from typing import Final

from training_profiler.base.sections import BACKWARD_PASS, FORWARD_PASS
from training_profiler.base.units import counted, duration_text
from training_profiler.diagnosis.finding import Change, Finding, Fix, joined
from training_profiler.diagnosis.registry import RULES, Saving, cost_of_run, found
from training_profiler.model.program import (
    BREAK,
    COMPILE,
    LENGTH,
    LIMIT,
    OTHER_GUARD,
    SHAPE,
    STATE,
    VALUE,
    CompileReason,
)
from training_profiler.model.snapshot import Snapshot

SAID: Final = 3  # reasons
LOGS: Final = Fix(
    "Set TORCH_LOGS=recompiles, which prints what differs each time: pad batches to few shapes, drop_last=True, "
    "mark changing sizes with torch._dynamo.mark_dynamic or dynamic=True, and pass changing numbers as tensors",
    (Change.OTHER_BATCHES,),
)
ON_PURPOSE: Final = re.compile(r"graph_break\(\)|compiler\.disable|disable[d(]")
# The kind -> what happened to what is named, and the edit.
_CHANGED: Final[dict[str, tuple[str, str]]] = {
    SHAPE: (
        "dimension {1} of {0} changed",
        "Call torch._dynamo.maybe_mark_dynamic({0}, {1}) before the compiled code, or torch.compile(..., dynamic=True)",
    ),
    VALUE: (
        "{0} changed",
        "Make {0} a tensor if it is a number, or use it outside of compiled code: it is a constant of the graph",
    ),
    LENGTH: (
        "the length of {0} changed",
        "Keep {0} at one length, or make it a tensor: each length has a graph of its own",
    ),
    OTHER_GUARD: ("{0} no longer held", LOGS),
}
_LEFT: Final = ("a value that left the graph changed", "Move that line, such as an item, out of the compiled function")


def _texts(reason: CompileReason) -> tuple[str, str]:
    """Return what happened, and the edit."""
    names = reason.what.rsplit(", ", 1) if reason.kind == SHAPE else [reason.what]
    happened, edit = _LEFT if reason.what.startswith("___stack") else _CHANGED[reason.kind]
    return happened.format(*names), edit.format(*names)


def _reason_text(reason: CompileReason) -> str:
    at = f" at {reason.place}" if reason.place else ""
    return f"{_texts(reason)[0]}{at} ({counted(reason.times, 'time')}, {duration_text(reason.seconds)})"


def _avoidable(snapshot: Snapshot) -> list[CompileReason]:
    """Return the reasons that an edit removes; training and evaluation need a graph each."""
    compiled = snapshot.program.compiled
    return [each for each in (() if compiled is None else compiled.reasons) if each.kind in _CHANGED and each.times]


def _fix(snapshot: Snapshot, reasons: Sequence[CompileReason]) -> Fix:
    if not reasons:
        return LOGS
    calls = [dict(call.arguments) for call in snapshot.program.calls if call.kind == COMPILE]
    fixes = []
    for reason in {each.kind: each for each in reversed(reasons)}.values():
        edit = _texts(reason)[1]
        if reason.kind == SHAPE and any(given.get("dynamic") == "False" for given in calls):
            edit = "Leave dynamic=False out of torch.compile, or pad batches to few shapes"
        fixes.append(Fix(edit, (Change.OTHER_BATCHES if reason.kind == OTHER_GUARD else Change.COMPILE,)))
    return joined(fixes[::-1])


def _of_kind(snapshot: Snapshot, kind: str) -> list[CompileReason]:
    compiled = snapshot.program.compiled
    return [] if compiled is None else [each for each in compiled.reasons if each.kind == kind]


def _gave_up_text(snapshot: Snapshot) -> str:
    functions = dict.fromkeys(each.place or "a function" for each in _of_kind(snapshot, LIMIT))
    return f"torch.compile gave up on {', '.join(functions)}, which runs uncompiled since" if functions else ""


def _call(finding: Finding) -> str:
    return COMPILE if "dynamic" in finding.fix else ""


@RULES.rule(
    "recompiles",
    threshold=0.03,  # of the run
    saving=Saving.RUN,
    claims=(FORWARD_PASS, BACKWARD_PASS),
    saves=(0.7, 1.2),
    call=_call,
    try_=("compile_dynamic",),
    explains_idle=True,
    is_of_host=True,
)
def recompiles(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag torch.compile that compiled the same code again and again, for over 3 % of the run.

    Where torch records reasons, two shapes of a batch, or a training and an evaluation, are no such case.
    """
    compiled, reasons = snapshot.program.compiled, _avoidable(snapshot)
    if compiled is None or compiled.recompiled < 2:
        return None
    seconds, times = compiled.recompiled_s, compiled.recompiled
    if any(each.kind in (*_CHANGED, STATE) for each in compiled.reasons):
        seconds, times = min(seconds, sum(each.seconds for each in reasons)), sum(each.times for each in reasons)
    if times < 2:
        return None
    cost = cost_of_run(snapshot, threshold, seconds)
    where = f", mostly at {compiled.place}" if compiled.place else ""
    because = "; ".join([*map(_reason_text, reasons[:SAID]), *filter(None, (_gave_up_text(snapshot),))])
    return cost.finding(
        f"torch.compile compiled code again {times} times, for {duration_text(seconds)}{where} ({compiled.graphs} "
        f"compilations, {duration_text(compiled.seconds)} in all)" + (f": {because}" if because else ""),
        _fix(snapshot, reasons),
        recompiled=times,
        recompiled_s=seconds,
        compiled=compiled.graphs,
        place=compiled.place,
    )


@RULES.rule("compile-limit", 1, saving=Saving.UNKNOWN, label="COMPILES NO MORE", call=_call, is_risk=True)  # functions
def compile_limit(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag functions that torch.compile runs uncompiled since it compiled them 8 times; None where that took long."""
    reached = _of_kind(snapshot, LIMIT)
    if len(reached) < threshold or not reached or recompiles(snapshot, snapshot.thresholds) is not None:
        return None
    reasons = _avoidable(snapshot)
    because = "; ".join(map(_reason_text, reasons[:SAID]))
    return found(
        _gave_up_text(snapshot) + (f": {because}" if because else ""),
        {"functions": len(reached), "threshold": threshold},
        _fix(snapshot, reasons),
    )


@RULES.rule("graph-breaks", 1, saving=Saving.UNKNOWN, changes=(Change.COMPILE,), is_harmless=True)  # lines
def graph_breaks(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Report lines of the user's at which a compiled graph ends, but for those that ask for it."""
    ends = [each for each in _of_kind(snapshot, BREAK) if each.place and not ON_PURPOSE.search(each.what)]
    breaks = list({each.place: each for each in reversed(ends)}.values())[::-1]
    if len(breaks) < threshold or not breaks:
        return None
    lines = "; ".join(f"{each.place}{each.what and f' ({each.what})'}" for each in breaks[:SAID])
    return found(
        f"A graph of torch.compile ends at {counted(len(breaks), 'line')}, and Python runs in between: {lines}",
        {"breaks": len(breaks), "threshold": threshold, "seconds": sum(each.seconds for each in ends)},
        "Move these lines out of compiled code, such as print, item() and branches on a tensor's value; "
        "torch.compile(..., fullgraph=True) raises at the first one that is left",
    )
