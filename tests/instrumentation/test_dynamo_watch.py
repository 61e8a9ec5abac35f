"""What may not be traced stands aside before dynamo traces for the first time."""

import types

import pytest

from training_profiler.instrumentation.fronts import DynamoWatch
from training_profiler.instrumentation.patching import Patches


class Watched:
    """A watch, what it asked of sections and of others, and a tracer that notes what was asked when it began."""

    def __init__(self, has_traced=False):
        self.asked, self.traced = [], []
        noted = self

        class InstructionTranslator:
            def __init__(self, code, *, fails=False):
                noted.traced.append((code, list(noted.asked)))
                if fails:
                    raise ValueError(code)

        self.tracer = types.SimpleNamespace(InstructionTranslator=InstructionTranslator)
        self.watch, self.patches = DynamoWatch(self.asked.append, lambda: None), Patches()
        self.watch.begin(self.tracer, self.patches, has_traced)


def test_first_trace_is_announced_before_it_begins():
    watched = Watched()
    assert (watched.asked, watched.watch.is_idle) == ([False], True)
    watched.tracer.InstructionTranslator("f")
    watched.tracer.InstructionTranslator("g")
    assert watched.traced == [("f", [False, True]), ("g", [False, True])]
    assert not watched.watch.is_idle


def test_sections_go_on_asking_where_dynamo_has_traced_before():
    watched = Watched(has_traced=True)
    watched.tracer.InstructionTranslator("f")
    assert (watched.asked, watched.watch.is_idle) == ([True], False)


def test_sections_ask_again_before_the_watch_ends():
    watched = Watched()
    original = watched.tracer.InstructionTranslator.__init__.__wrapped__
    watched.patches.undo()
    assert watched.asked == [False, True]
    assert watched.tracer.InstructionTranslator.__init__ is original
    assert not watched.watch.is_idle


def test_error_of_dynamo_is_passed_on_without_our_frames():
    watched = Watched()
    with pytest.raises(ValueError, match="f") as caught:
        watched.tracer.InstructionTranslator("f", fails=True)
    assert "fronts" not in {entry.path.stem for entry in caught.traceback}
