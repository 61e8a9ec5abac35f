"""Steps end without the session where nothing of it is due (tests/runtime/test_quiet_steps.py); here it is asked."""

import pytest

from tests.support.recording import FakeRun
from training_profiler.instrumentation.loop_detection.loader_passes import Passes
from training_profiler.instrumentation.loop_detection.step_detector import StepEnds
from training_profiler.recording.event_codes import EPOCH_BEGIN
from training_profiler.recording.recorder import TrainingProgress


class Iterator:
    pass


ITERATOR = Iterator()


@pytest.mark.parametrize(
    ("happens", "asked"),
    [
        (lambda recorder, passes: None, []),
        (lambda recorder, passes: passes.of(ITERATOR, True), [3_000]),
        (lambda recorder, passes: recorder.mark(EPOCH_BEGIN, 3_500), [3_000]),
        (lambda recorder, passes: recorder.listen(lambda: None), [3_000, 4_000]),
        (lambda recorder, passes: recorder.be_quiet(None), [3_000, 4_000]),
    ],
    ids=["nothing", "another pass", "a later mark", "another session", "no longer quiet"],
)
@pytest.mark.parametrize("watermark_ns", [None, 1_000])
def test_session_is_asked_where_something_is_due(happens, asked, watermark_ns):
    found, recorder, passes, count = [], FakeRun().recorder, Passes(), TrainingProgress()
    recorder.watermark_ns = watermark_ns
    ends = StepEnds(recorder, found.append)
    ends.follow(passes)
    ends(2_000)
    recorder.be_quiet(count, 10**30, 1_000_000)
    happens(recorder, passes)
    for at_ns in (3_000, 4_000):
        ends(at_ns)
    assert found == [2_000, *asked]
    assert count.steps == 2 - len(asked)
    is_held = watermark_ns is not None and 4_000 not in asked
    assert recorder.watermark_ns == (4_000 if is_held else watermark_ns)
