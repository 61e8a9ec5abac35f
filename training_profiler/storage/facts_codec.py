"""The program's facts as a journal has them: numbers that can be, texts fit for a report."""

from typing import Final

from training_profiler.snapshot.program import (
    CallFacts,
    CallSite,
    CompileFacts,
    ConvolutionFacts,
    CpuSpeed,
    EmbeddingFacts,
    ForwardFacts,
    FrozenFacts,
    KeptGraphs,
    LongOperators,
    NanChecks,
    OptimizerFacts,
    OutsideModules,
    PassesBefore,
    ProgramFacts,
    RecurrentFacts,
    RepeatFacts,
    RowFacts,
    SliceFacts,
    UnusedGradients,
    UnusedGraphs,
)
from training_profiler.text import printable

MOST: Final = 2.0**53  # of any number
MOST_KINDS: Final = 4  # data types and devices
MOST_CALLS: Final = 32
MOST_ARGUMENTS: Final = 8


def checked_facts(facts: ProgramFacts) -> ProgramFacts:
    """Return facts read from a journal."""
    return ProgramFacts(
        None if facts.optimizer is None else _optimizer(facts.optimizer),
        None if facts.compiled is None else _compiled(facts.compiled),
        printable(facts.autocast),
        int(_number(facts.kept_graphs)),
        None if facts.cpu is None else _cpu(facts.cpu),
        int(_number(facts.operators)),
        tuple(map(_call, facts.calls[:MOST_CALLS])),
        int(_number(facts.threads)),
        None if facts.forward is None else _forward(facts.forward),
        None if facts.repeats is None else _repeats(facts.repeats),
        None if facts.graphs is None else _graphs(facts.graphs),
        facts.finds_anomalies,
        None if facts.embedding is None else _embedding(facts.embedding),
        None if facts.slices is None else _slices(facts.slices),
        _long(facts.long_forward),
        _long(facts.long_backward),
        int(_number(facts.epochs)),
        _outside(facts.outside),
        int(_number(facts.created_graphs)),
        int(_number(facts.unclear_after)),
        None if facts.unused_gradients is None else _unused(facts.unused_gradients),
        None if facts.frozen is None else _frozen(facts.frozen),
        None if facts.recurrent is None else _recurrent(facts.recurrent),
        int(_number(facts.kept_past_updates)),
        int(_number(facts.uncounted)),
        None if facts.rows is None else _rows(facts.rows),
        None if facts.convolutions is None else _convolutions(facts.convolutions),
        None if facts.unused_graphs is None else _unused_graphs(facts.unused_graphs),
        None if facts.passes_before is None else _passes_before(facts.passes_before),
        _nan_checks(facts.nan_checks),
    )


def _number(value: float) -> float:
    return min(MOST, max(0.0, value))


def _optimizer(facts: OptimizerFacts) -> OptimizerFacts:
    return facts._replace(
        name=printable(facts.name),
        tensors=int(_number(facts.tensors)),
        numbers=int(_number(facts.numbers)),
        dtypes=tuple(map(printable, facts.dtypes[:MOST_KINDS])),
        devices=tuple(map(printable, facts.devices[:MOST_KINDS])),
    )


def _call(call: CallFacts) -> CallFacts:
    site = call.site
    return CallFacts(
        printable(call.kind),
        printable(call.function),
        CallSite(
            printable(site.file),
            int(_number(site.line)),
            printable(site.path),
            max(-1, int(min(MOST, site.column))),
            printable(site.inside),
        ),
        tuple((printable(name), printable(value)) for name, value in call.arguments[:MOST_ARGUMENTS]),
    )


def _compiled(facts: CompileFacts) -> CompileFacts:
    return CompileFacts(
        int(_number(facts.graphs)),
        _number(facts.seconds),
        int(_number(facts.recompiled)),
        _number(facts.recompiled_s),
        printable(facts.place),
    )


def _forward(facts: ForwardFacts) -> ForwardFacts:
    return ForwardFacts(
        int(_number(facts.operators)),
        _number(facts.operators_s),
        _number(facts.calls_s),
        printable(facts.place),
        printable(facts.layer),
    )


def _recurrent(facts: RecurrentFacts) -> RecurrentFacts:
    return RecurrentFacts(
        printable(facts.kind),
        _number(facts.calls),
        min(1.0, _number(facts.part)),
        min(1.0, _number(facts.loop)),
        bool(facts.is_known),
        int(_number(facts.work)),
        printable(facts.place),
    )


def _convolutions(facts: ConvolutionFacts) -> ConvolutionFacts:
    return facts._replace(
        channels_first=int(_number(facts.channels_first)), channels_last=int(_number(facts.channels_last))
    )


def _rows(facts: RowFacts) -> RowFacts:
    return RowFacts(
        int(_number(facts.calls)),
        int(_number(facts.few)),
        _number(facts.rows),
        _number(facts.elements),
        int(_number(facts.batches)),
        int(_number(facts.few_batches)),
        int(_number(facts.most)),
        _number(facts.training_rows),
        _number(facts.training_elements),
    )


def _passes_before(facts: PassesBefore) -> PassesBefore:
    return PassesBefore(int(_number(facts.passes)), _number(facts.seconds))


def _long(facts: LongOperators) -> LongOperators:
    return LongOperators(int(_number(facts.operators)), _number(facts.seconds), _number(facts.all_s))


def _nan_checks(facts: NanChecks) -> NanChecks:
    return NanChecks(int(_number(facts.operators)), _number(facts.seconds), _number(facts.all_s))


def _outside(facts: OutsideModules) -> OutsideModules:
    operators, of_parameters = (int(_number(count)) for count in (facts.operators, facts.of_parameters))
    return OutsideModules(operators, _number(facts.seconds), _number(facts.all_s), of_parameters)


def _repeats(facts: RepeatFacts) -> RepeatFacts:
    return RepeatFacts(
        int(_number(facts.steps)),
        int(_number(facts.calls)),
        _number(facts.seconds),
        int(_number(facts.without_grad)),
        int(_number(facts.after_update)),
        int(_number(facts.random)),
        printable(facts.place),
        int(_number(facts.steps_with)),
    )


def _embedding(facts: EmbeddingFacts) -> EmbeddingFacts:
    shares = (min(1.0, _number(share)) for share in (facts.used, facts.part))
    return EmbeddingFacts(printable(facts.kind), int(_number(facts.rows)), *shares)


def _slices(facts: SliceFacts) -> SliceFacts:
    steps, slices, of_rows = (int(_number(count)) for count in (facts.steps, facts.slices, facts.of_rows))
    return SliceFacts(steps, slices, _number(facts.rows), of_rows, printable(facts.place))


def _unused(facts: UnusedGradients) -> UnusedGradients:
    numbers, of = (int(_number(count)) for count in (facts.numbers, facts.of))
    part, passed_on = (min(1.0, _number(share)) for share in (facts.part, facts.passed_on))
    texts = printable(facts.module), printable(facts.place)
    return UnusedGradients(min(numbers, of), of, part, min(part, passed_on), facts.is_whole, *texts)


def _unused_graphs(facts: UnusedGraphs) -> UnusedGraphs:
    steps, calls, of = (max(1, int(_number(count))) for count in (facts.steps, facts.calls, facts.of))
    part = min(1.0, _number(facts.part))
    return UnusedGraphs(steps, min(calls, of), of, part, printable(facts.module), printable(facts.place))


def _frozen(facts: FrozenFacts) -> FrozenFacts:
    batches, part = int(_number(facts.batches)), min(1.0, _number(facts.part))
    texts = printable(facts.module), printable(facts.place)
    return FrozenFacts(batches, part, facts.has_grad, *texts, _number(facts.seconds), int(_number(facts.modules)))


def _graphs(facts: KeptGraphs) -> KeptGraphs:
    steps, kept, after = (int(_number(count)) for count in (facts.steps, facts.kept, facts.after))
    return KeptGraphs(steps, kept, after, printable(facts.place), printable(facts.backward))


def _cpu(facts: CpuSpeed) -> CpuSpeed:
    return CpuSpeed(printable(facts.dtype), *map(_number, facts[1:]))
