"""Where a thread is, from events that are not drained yet."""

import random

import pytest

from tests.support.recording import IMPLEMENTATIONS, implementation_of
from training_profiler.ranks.hang_detector import open_sections
from training_profiler.recording.event_codes import (
    INFERRED,
    LOADER,
    TIME_ONLY,
    discarded_exit,
    is_inferred,
    section_id,
)
from training_profiler.recording.recorder import Recorder


@pytest.fixture(params=IMPLEMENTATIONS)
def recorder(request, clock):
    """Events of the recorder in Python are a list, and those of the one in C an array."""
    return Recorder(clock=clock, implementation=implementation_of(request.param))


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


def one_by_one(events, names, before):
    """Return the same by one event after the other."""
    stack = [(name, at_ns, False) for name, at_ns in before]
    for at_ns, code in zip(events[::2], events[1::2], strict=False):
        name = names.get(section_id(code), "")
        same = [row for row, section in enumerate(stack) if section[0] == name]
        if abs(code) & LOADER:
            continue
        if code > 0:
            stack.append((name, at_ns, is_inferred(code)))
        elif same:
            del stack[same[-1]]
    manual = next((row for row, section in enumerate(stack) if not section[2]), len(stack))
    kept = [section for row, section in enumerate(stack) if row <= manual or not section[2]]
    return tuple(name for name, _, _ in kept), kept[-1][1] if kept else None


@pytest.mark.parametrize("seed", range(200))
def test_leaving_out_what_has_ended_changes_nothing(seed, recorder):
    """Sections of patches and of the user overlap, end twice or never, and loaders change between any two events."""
    draw = random.Random(seed)
    ids = [recorder.names.id_of(name) for name in ("forward_pass", "backward_pass", "mine")]
    events, depth = [], draw.choice([0.3, 0.5, 0.55])
    for at_ns in range(draw.randrange(60)):
        code = draw.choice(ids) | draw.choice([0, INFERRED]) | draw.choice([0, 0, TIME_ONLY])
        exits = [-code, discarded_exit(code)]
        events += [at_ns, LOADER | 1 if draw.random() < 0.1 else code if draw.random() < depth else draw.choice(exits)]
    events += [99] * (seed % 7 == 0)  # the code of the last one is about to be written
    recorder.buffer().events.extend(events)
    before = [("mine", 5), ("forward_pass", 6)][: draw.randrange(3)]
    assert inside(recorder, before) == one_by_one(events, recorder.names.names, before)
