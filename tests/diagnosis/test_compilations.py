"""Rules about torch.compile: what it compiles again, where it gives up, and where its graphs end."""

from tests.diagnosis.test_program_rules import ADAM, run_with
from training_profiler.model.program import (
    BREAK,
    COMPILE,
    LENGTH,
    LIMIT,
    OTHER_GUARD,
    SHAPE,
    STATE,
    VALUE,
    CallFacts,
    CallSite,
    CompileFacts,
    CompileReason,
    ProgramFacts,
)
from training_profiler.model.snapshot import Snapshot

AT = "model.py:8 forward"
SIZES = CompileReason(SHAPE, "x, 1", AT, 5, 3.0)
COUNTER = CompileReason(VALUE, "self.n", AT, 7, 3.5)
PARTS = CompileReason(LENGTH, "batch['parts']", AT, 3, 1.0)
MODES = CompileReason(STATE, "GLOBAL_STATE changed", "train.py:9 main", 4, 3.0)
GAVE_UP = CompileReason(LIMIT, "self.n", AT, 1)
ITEM = CompileReason(BREAK, "Unsupported Tensor.item() call", AT, 1, 0.5)
ASKED = CompileReason(BREAK, "Call to `torch._dynamo.graph_break()`", "model.py:9 forward", 1, 0.5)
STATIC = CallFacts(COMPILE, "torch.compile", CallSite("train.py", 3), (("dynamic", "False"),))


def compiling(*facts: object, reasons: tuple[CompileReason, ...] = (), calls: tuple[CallFacts, ...] = ()) -> Snapshot:
    compiled = CompileFacts(*facts, reasons=reasons)  # type: ignore[arg-type]
    return run_with(ProgramFacts(ADAM, compiled=compiled, calls=calls))


def because(*reasons: CompileReason, recompiled_s: float = 4.0, calls: tuple[CallFacts, ...] = ()) -> Snapshot:
    times = sum(each.times for each in reasons if each.kind != BREAK)
    return compiling(8, 5.0, times, recompiled_s, "train.py:31 main", reasons=reasons, calls=calls)


SAYS = {
    "recompiles": {
        "its line": compiling(8, 5.0, 7, 4.0, "train.py:31 main"),
        "sizes": because(SIZES),
        "sizes with a graph each, as asked": because(SIZES, calls=(STATIC,)),
        "a counter and a list, until it gave up": because(COUNTER, PARTS, GAVE_UP),
        "beside an evaluation": because(SIZES, MODES, recompiled_s=6.0),
        "a value of a broken graph": because(CompileReason(VALUE, "___stack2", AT, 7, 3.0), ITEM),
        "a guard of another kind": because(CompileReason(OTHER_GUARD, "not ___dict_contains('a', kw)", AT, 2, 3.0)),
    },
    "compile-limit": {"a quick one": because(COUNTER._replace(seconds=0.1), GAVE_UP, recompiled_s=0.1)},
    "graph-breaks": {"an item": because(ITEM, ASKED, ITEM._replace(what="print"))},
}
SILENT = {
    "recompiles": {
        "once": compiling(3, 5.0),
        "one again": compiling(8, 5.0, 1, 4.0),
        "short": compiling(9, 1.0, 8, 0.1),
        "two shapes": because(SIZES._replace(times=1)),
        "training and evaluation": because(MODES),
        "two shapes, and an evaluation": because(SIZES._replace(times=1), MODES),
    },
    "compile-limit": {"said with the compilations": because(COUNTER, GAVE_UP), "none": because(COUNTER)},
    "graph-breaks": {"asked for": because(ASKED), "in a library": because(ITEM._replace(place=""))},
}
