"""The timeline for Perfetto and the stacks of line samples."""

import json
from array import array

import pytest

from training_profiler.model.location import Location
from training_profiler.reports.exports import NOT_YOURS, collapsed, placed_steps, speedscope, stacks_of, timeline_trace
from training_profiler.snapshot.series import EpochSpan, Lane, RankSeries, Span, StepLanes, Stretch

MS = 1_000_000


def stretch(begin_ms, end_ms, steps_ms, first=0, *, outside_ms=0, epoch_ms=None, loop_ms=None, levels=None):
    times = array("q", (ms * MS for ms in steps_ms))
    return Stretch(
        begin_ms * MS,
        end_ms * MS,
        first,
        times,
        (),
        1,
        {"forward_pass": tuple(times)},
        outside_ms * MS,
        levels or {},
        None if loop_ms is None else loop_ms * MS,
        None if epoch_ms is None else epoch_ms * MS,
    )


def series(*stretches, rank=0, wall_ns=0, epochs=(), samples=None, parents=None, recorded=()):
    return RankSeries(rank, "node", wall_ns, 0, stretches, epochs, parents or {}, samples or {}, recorded)


def positions(*stretches):
    return [(step.number, step.begin_ns / MS, step.later_by_ns / MS) for step in placed_steps(series(*stretches))]


def test_steps_follow_the_begin_of_their_epoch_exactly():
    assert positions(stretch(100, 190, [30, 40], epoch_ms=100)) == [(1, 100, 0), (2, 130, 0)]


def test_steps_follow_the_begin_of_the_loop_over_stretches():
    found = positions(stretch(0, 100, [30, 40], loop_ms=20), stretch(100, 200, [50], 2))
    assert found == [(1, 20, 0), (2, 50, 0), (3, 90, 0)]


def test_time_outside_steps_makes_positions_uncertain_by_as_much():
    assert positions(stretch(100, 195, [30, 40], epoch_ms=100, outside_ms=10)) == [(1, 100, 10), (2, 130, 10)]


def test_without_a_begin_the_ends_of_the_stretch_are_the_bounds():
    assert positions(stretch(100, 200, [40, 50])) == [(1, 60, 50), (2, 100, 50)][1:]


def test_steps_that_may_be_anywhere_are_not_placed():
    assert positions(stretch(0, 10_000, [30, 40])) == []


def test_a_journal_that_contradicts_itself_places_nothing():
    assert positions(stretch(100, 110, [30, 40], epoch_ms=100)) == []


def events(*ranks):
    return json.loads(timeline_trace(ranks))["traceEvents"]


def test_ranks_are_processes_placed_by_wall_clocks():
    one = series(stretch(0, 100, [30], loop_ms=0), wall_ns=5_000 * MS)
    other = series(stretch(0, 100, [30], loop_ms=0), rank=1, wall_ns=5_007 * MS)
    begins = {each["pid"]: each["ts"] for each in events(one, other) if each["name"] == "step 1" and each["tid"] == 1}
    assert begins == {0: 0.0, 1: 7000.0}


def test_sections_and_machine_are_counters_of_each_stretch():
    found = events(series(stretch(0, 100, [30, 50], levels={"cpu_host": 0.5, "ram_process_bytes": 2**21})))
    counters = {each["name"]: each["args"] for each in found if each["ph"] == "C"}
    assert counters == {
        "sections, mean ms in a step": {"forward_pass": 40.0},
        "cpu_host": {"mean": 0.5},
        "ram_process_bytes (MiB)": {"mean": 2.0},
    }


def test_epochs_are_slices():
    (epoch,) = [
        each
        for each in events(series(stretch(0, 100, [30]), epochs=(EpochSpan(3, 10 * MS, None),)))
        if each["name"] == "epoch 3"
    ]
    assert (epoch["ts"], epoch["dur"], epoch["args"]) == (10_000.0, 90_000.0, {"is_complete": False})


def recorded(number=7, **others):
    spans = (Span("attention", 10_003_000, 10_006_000), Span("forward_pass", 10_003_000, 10_009_000))
    lanes = (Lane("MainThread", spans), Lane("reader", (Span("prefetch", 9_000_000, 10_005_000),)))
    return StepLanes(number, "slow", 10_000_000, 10_010_000, 9_000, 3, lanes, **others)


def test_recorded_steps_have_their_spans_on_the_lanes_of_their_threads():
    found = events(series(recorded=(recorded(),)))
    lanes = {each["tid"]: each["args"]["name"] for each in found if each["name"] == "thread_name"}
    slices = [(lanes[each["tid"]], each["name"], each["ts"], each["dur"]) for each in found if each["ph"] == "X"]
    assert slices == [
        ("recorded steps", "step 7", 10_000.0, 10.0),
        ("MainThread", "forward_pass", 10_003.0, 6.0),
        ("MainThread", "attention", 10_003.0, 3.0),
        ("reader", "prefetch", 9_000.0, 1_005.0),
    ]
    (step,) = [each for each in found if each["name"] == "step 7"]
    assert step["args"] == {"why": "slow", "step_ms": 0.009, "spans_left_out": 3}


LINE = Location("train.py", 7, "loss", "item", "lib/a.py:3 f > lib/b.py:4 g", "callback on_step_end")


def sampled(**options):
    return series(
        samples={"validation_epoch/forward_pass": {LINE: 2, None: 1}},
        parents={"validation_epoch/forward_pass": "validation_epoch"},
        **options,
    )


def test_a_stack_has_sections_then_the_line_then_what_it_called():
    assert stacks_of(sampled()) == {
        (
            "validation_epoch",
            "validation_epoch/forward_pass",
            "train.py:7 loss",
            "lib/a.py:3 f",
            "lib/b.py:4 g",
            "callback on_step_end",
            "item() waits for the device",
        ): 2,
        ("validation_epoch", "validation_epoch/forward_pass", NOT_YOURS): 1,
    }


def test_a_circle_of_parents_ends():
    circle = series(samples={"a": {None: 1}}, parents={"a": "b", "b": "a"})
    assert list(stacks_of(circle)) == [("b", "a", NOT_YOURS)]


def test_collapsed_stacks_are_one_line_each_with_the_rank_if_there_are_several():
    hostile = series(samples={"a;b 3": {Location("x;y.py", 1, "f"): 4}})
    assert collapsed([hostile]) == "a,b 3;x,y.py:1 f 4\n"
    assert collapsed([sampled(), sampled(rank=1)]).splitlines()[-1].startswith("rank 1;validation_epoch;")


def test_speedscope_has_a_profile_per_rank_with_valid_frames():
    found = json.loads(speedscope([sampled(), sampled(rank=1)], "train.py"))
    assert [profile["name"] for profile in found["profiles"]] == ["rank 0", "rank 1"]
    frames = found["shared"]["frames"]
    for profile in found["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"]) == 2
        assert profile["endValue"] == sum(profile["weights"]) == 3
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)


@pytest.mark.parametrize("text", ["\ud800", "\x1b[31m", "\u202e"])
def test_names_of_any_text_are_json(text):
    assert json.loads(timeline_trace([RankSeries(0, text, 0, 0, (), (), {}, {})]))["traceEvents"]
