from training_profiler.aggregation.span_matching import read_events
from training_profiler.aggregation.step_timeline import OUTSIDE, StepTimeline
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END, LOOP_BEGIN, STEP_END


def cut_pieces(timeline, marks, until_ns, first_section_ns=None):
    return timeline.cut(read_events([ns for kind, at_ns in marks for ns in (at_ns, kind)]), first_section_ns, until_ns)


def cut(timeline, marks, until_ns, first_section_ns=None):
    cuts = cut_pieces(timeline, marks, until_ns, first_section_ns)
    return list(zip(cuts.ends_ns.tolist(), cuts.steps.tolist(), strict=True))


def test_without_marks_all_time_is_outside():
    assert cut(StepTimeline(), [], 100) == [(100, OUTSIDE)]


def test_the_first_step_begins_with_the_first_section():
    assert cut(StepTimeline(), [(STEP_END, 50)], 100, first_section_ns=20) == [(20, OUTSIDE), (50, 0), (100, 1)]


def test_the_first_step_begins_with_its_epoch():
    marks = [(EPOCH_BEGIN, 10), (STEP_END, 50)]
    assert cut(StepTimeline(), marks, 100, first_section_ns=20) == [(10, OUTSIDE), (50, 0), (100, 1)]


def test_a_step_without_sections_is_a_step():
    assert cut(StepTimeline(), [(STEP_END, 50), (STEP_END, 70)], 100) == [(50, 0), (70, 1), (100, 2)]


def test_time_after_the_last_step_of_an_epoch_is_outside():
    timeline = StepTimeline()
    cuts = cut_pieces(timeline, [(EPOCH_BEGIN, 10), (STEP_END, 50), (EPOCH_END, 60)], 100)
    assert cuts.not_steps == [2]
    assert cuts.steps.tolist() == [OUTSIDE, 0, 1, OUTSIDE]
    assert timeline.steps == 1


def test_steps_continue_in_the_next_batch():
    timeline = StepTimeline()
    cut(timeline, [(EPOCH_BEGIN, 10), (STEP_END, 50)], 100)
    assert cut(timeline, [(STEP_END, 150)], 200) == [(150, 1), (200, 2)]


def test_the_next_epoch_continues_the_count():
    timeline = StepTimeline()
    cut(timeline, [(EPOCH_BEGIN, 10), (STEP_END, 50), (EPOCH_END, 60)], 100)
    assert cut(timeline, [(EPOCH_BEGIN, 110), (STEP_END, 150)], 200) == [(110, OUTSIDE), (150, 1), (200, 2)]


def test_the_loop_may_begin_again_before_the_first_step_ends():
    timeline = StepTimeline()
    cuts = cut_pieces(timeline, [(LOOP_BEGIN, 10), (LOOP_BEGIN, 40), (STEP_END, 50)], 100)
    assert cuts.ends_ns.tolist() == [10, 40, 50, 100]
    assert (cuts.steps.tolist(), cuts.not_steps) == ([OUTSIDE, 0, 0, 1], [1])
    assert timeline.begun_ns == 40


def test_the_loop_may_begin_again_after_a_drain():
    timeline = StepTimeline()
    cut(timeline, [], 30, first_section_ns=10)
    cuts = cut_pieces(timeline, [(LOOP_BEGIN, 40), (STEP_END, 50)], 60)
    assert (cuts.steps.tolist(), cuts.not_steps, timeline.begun_ns) == ([0, 0, 1], [0], 40)


def test_an_epoch_keeps_its_begin():
    timeline = StepTimeline()
    cuts = cut_pieces(timeline, [(EPOCH_BEGIN, 10), (LOOP_BEGIN, 40), (STEP_END, 50)], 60)
    assert (cuts.steps.tolist(), cuts.not_steps, timeline.begun_ns) == ([OUTSIDE, 0, 0, 1], [], 10)
    assert cut_pieces(timeline, [(LOOP_BEGIN, 80)], 90).not_steps == []
