import json

import msgspec

from training_profiler.snapshot.program import CompileFacts, CpuSpeed, OptimizerFacts, ProgramFacts
from training_profiler.storage.facts_codec import checked_facts

FACTS = ProgramFacts(
    OptimizerFacts("Adam", 20, ("float32",), ("cpu",), None, True, True, True),
    CompileFacts(3, 2.5, 1, 0.5, "train.py:3 main"),
    "bfloat16",
    7,
    CpuSpeed("float32", 50.0, 3e-6),
    310,
)


def test_facts_read_back_from_json():
    assert checked_facts(msgspec.convert(json.loads(json.dumps(FACTS)), ProgramFacts)) == FACTS
    assert checked_facts(ProgramFacts()) == ProgramFacts()


def test_numbers_and_texts_that_cannot_be_are_mended():
    bad = FACTS._replace(kept_graphs=-1, autocast="\x1b[31m", operators=-5)
    mended = checked_facts(bad)
    assert (mended.kept_graphs, mended.operators) == (0, 0)
    assert "\x1b" not in mended.autocast
