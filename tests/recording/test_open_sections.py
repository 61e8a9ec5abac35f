from training_profiler.recording.event_codes import INFERRED, LOADER
from training_profiler.recording.recorder import open_sections


def inside(recorder, before=()):
    return open_sections(recorder.buffer(), recorder.names.names, before)


def test_open_sections_come_outermost_first_with_time_of_the_last(recorder, clock):
    clock.now_ns = 10
    with recorder.section("forward_pass"):
        clock.now_ns = 20
        with recorder.section("attention"):
            assert inside(recorder) == (("forward_pass", "attention"), 20)
        assert inside(recorder) == (("forward_pass",), 10)
    assert inside(recorder) == ((), None)


def test_sections_open_at_the_last_drain_count_until_exit(recorder):
    with recorder.section("forward_pass"):
        recorder.drain()
        assert inside(recorder, (("forward_pass", 700),)) == (("forward_pass",), 700)
    assert inside(recorder, (("forward_pass", 700),)) == ((), None)


def test_inferred_sections_inside_manual_ones_are_left_out(recorder):
    code = recorder.names.id_of("backward_pass")
    events = recorder.buffer().events
    events.extend((5, code | INFERRED))
    assert inside(recorder) == (("backward_pass",), 5)
    del events[:]
    with recorder.section("train"):
        events.extend((6, LOADER | 1, 7, code | INFERRED))
        assert inside(recorder)[0] == ("train",)
