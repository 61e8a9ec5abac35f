"""The program's facts as a journal has them: numbers that can be, texts fit for a report."""

from typing import Final

from training_profiler.snapshot.program import CompileFacts, CpuSpeed, OptimizerFacts, ProgramFacts
from training_profiler.text import printable

MOST: Final = 2.0**53  # of any number
MOST_KINDS: Final = 4  # data types and devices


def checked_facts(facts: ProgramFacts) -> ProgramFacts:
    """Return facts read from a journal."""
    return ProgramFacts(
        None if facts.optimizer is None else _optimizer(facts.optimizer),
        None if facts.compiled is None else _compiled(facts.compiled),
        printable(facts.autocast),
        int(_number(facts.kept_graphs)),
        None if facts.cpu is None else _cpu(facts.cpu),
        int(_number(facts.operators)),
    )


def _number(value: float) -> float:
    return min(MOST, max(0.0, value))


def _optimizer(facts: OptimizerFacts) -> OptimizerFacts:
    return facts._replace(
        name=printable(facts.name),
        tensors=int(_number(facts.tensors)),
        dtypes=tuple(map(printable, facts.dtypes[:MOST_KINDS])),
        devices=tuple(map(printable, facts.devices[:MOST_KINDS])),
    )


def _compiled(facts: CompileFacts) -> CompileFacts:
    return CompileFacts(
        int(_number(facts.graphs)),
        _number(facts.seconds),
        int(_number(facts.recompiled)),
        _number(facts.recompiled_s),
        printable(facts.place),
    )


def _cpu(facts: CpuSpeed) -> CpuSpeed:
    return CpuSpeed(printable(facts.dtype), _number(facts.gflops), _number(facts.operator_s))
