import json

import msgspec

from tests.support.every_field import filled
from training_profiler.snapshot.program import CallFacts, CallSite, LongOperators, ProgramFacts
from training_profiler.storage.journal_lines import checked_facts

FACTS = msgspec.convert(filled(ProgramFacts), ProgramFacts)


def test_facts_read_back_from_json():
    facts = checked_facts(FACTS)
    assert checked_facts(msgspec.convert(json.loads(json.dumps(facts)), ProgramFacts)) == facts
    assert checked_facts(ProgramFacts()) == ProgramFacts()


def test_numbers_and_texts_that_cannot_be_are_mended():
    site = CallSite("\x1b.py", -3, "/\n", -7, "\x1b")
    calls = (CallFacts("a", "b", site, (("x", "\x1b"),) * 99),)
    mended = checked_facts(FACTS._replace(kept_graphs=-1, autocast="\x1b[31m", operators=-5, calls=calls))
    (call,) = mended.calls
    assert (mended.kept_graphs, mended.operators) == (0, 0)
    assert "\x1b" not in f"{mended.autocast}{call}"
    assert (call.site.line, call.site.column, len(call.arguments)) == (0, -1, 32)


def test_facts_of_an_earlier_version_lack_what_came_later():
    read = checked_facts(msgspec.convert(json.loads(json.dumps(FACTS[:6])), ProgramFacts))
    assert (read.operators, read.calls, read.long_forward, read.forward) == (
        checked_facts(FACTS).operators,
        (),
        LongOperators(),
        None,
    )
