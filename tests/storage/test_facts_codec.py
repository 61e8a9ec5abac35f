import json

import msgspec

from training_profiler.snapshot.program import (
    CallFacts,
    CallSite,
    CompileFacts,
    ConvolutionFacts,
    CpuSpeed,
    ForwardFacts,
    FrozenFacts,
    LongOperators,
    NanChecks,
    OptimizerFacts,
    OutsideModules,
    PassesBefore,
    ProgramFacts,
    RecurrentFacts,
    RowFacts,
    UnusedGradients,
    UnusedGraphs,
)
from training_profiler.storage.facts_codec import checked_facts

FACTS = ProgramFacts(
    OptimizerFacts("Adam", 20, ("float32",), ("cpu",), None, True, True, True),
    CompileFacts(3, 2.5, 1, 0.5, "train.py:3 main"),
    "bfloat16",
    7,
    CpuSpeed("bfloat16", 5.0, 3e-6, 50.0),
    310,
    (CallFacts("loader", "DataLoader", CallSite("train.py", 41, "/w/train.py", 8, ""), (("num_workers", "0"),)),),
    4,
    ForwardFacts(100, 0.5, 0.75, "model.py:10", "GRU"),
    long_forward=LongOperators(3, 0.4, 0.5),
    long_backward=LongOperators(5, 0.6),
    epochs=40,
    outside=OutsideModules(30, 0.2, 0.5, 24),
    created_graphs=9,
    unused_gradients=UnusedGradients(900, 1000, 0.75, 0.25, False, "VGG", "train.py:20"),
    frozen=FrozenFacts(20, 0.5, True, "ResNet", "train.py:21", 0.25, 3),
    recurrent=RecurrentFacts("GRU", 24.0, 0.5, 0.75, True, 20_000, "train.py:21"),
    kept_past_updates=6,
    uncounted=15_000,
    rows=RowFacts(300, 290, 1.0, 768.0, 280, 275, 3, 64.0, 768.0),
    convolutions=ConvolutionFacts(17, 0, True),
    unused_graphs=UnusedGraphs(24, 200, 230, 0.75, "Policy", "train.py:22"),
    passes_before=PassesBefore(2, 1.5),
    nan_checks=NanChecks(90, 0.25, 0.5),
)


def test_facts_read_back_from_json():
    assert checked_facts(msgspec.convert(json.loads(json.dumps(FACTS)), ProgramFacts)) == FACTS
    assert checked_facts(ProgramFacts()) == ProgramFacts()


def test_numbers_and_texts_that_cannot_be_are_mended():
    bad = FACTS._replace(kept_graphs=-1, autocast="\x1b[31m", operators=-5)
    mended = checked_facts(bad)
    assert (mended.kept_graphs, mended.operators) == (0, 0)
    assert "\x1b" not in mended.autocast


def test_calls_are_mended_too():
    site = CallSite("\x1b.py", -3, "/\n", -7, "\x1b")
    (call,) = checked_facts(FACTS._replace(calls=(CallFacts("a", "b", site, (("x", "\x1b"),) * 99),))).calls
    assert "\x1b" not in f"{call}"
    assert (call.site.line, call.site.column, len(call.arguments)) == (0, -1, 32)


def test_facts_of_an_earlier_version_have_no_calls():
    assert checked_facts(msgspec.convert(json.loads(json.dumps(FACTS[:6])), ProgramFacts)) == FACTS._replace(
        calls=(),
        threads=0,
        forward=None,
        long_forward=LongOperators(),
        long_backward=LongOperators(),
        epochs=0,
        outside=OutsideModules(),
        created_graphs=0,
        unused_gradients=None,
        frozen=None,
        recurrent=None,
        kept_past_updates=0,
        uncounted=0,
        rows=None,
        convolutions=None,
        unused_graphs=None,
        passes_before=None,
        nan_checks=NanChecks(),
    )
