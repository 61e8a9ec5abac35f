"""What the recording itself takes is idle time of no cause in the program: no finding, no saving, no place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import AUTOGRAD, Trace
from training_profiler.cli import main
from training_profiler.trace_analysis.checklist import checks
from training_profiler.trace_analysis.critical_path import critical_path
from training_profiler.trace_analysis.gaps import cut
from training_profiler.trace_analysis.report.critical_path import render_critical_path
from training_profiler.trace_analysis.report.figures import path_data, trace_data
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.rules.recommendations import recommendations
from training_profiler.trace_analysis.timeline import Intervals, covered, union
from training_profiler.trace_analysis.trace import analyse

US = 1000  # ns
FIRST_US, LATER_US = 20_000, 10_000  # of the steps of `captured`


def intervals(*pairs):
    begins, ends = zip(*pairs, strict=True) if pairs else ((), ())
    return union(np.array(begins, np.int64), np.array(ends, np.int64))


@pytest.mark.parametrize(
    ("recording", "pieces"),
    [
        ([], [(0, 100, 0)]),
        ([(0, 40)], [(0, 40, 0), (40, 100, 0)]),
        ([(40, 60)], [(0, 40, 0), (40, 60, 0), (60, 100, 0)]),
        ([(40, 49)], [(0, 100, 0)]),  # too short
        ([(9, 60)], [(0, 60, 0), (60, 100, 0)]),  # what is before it is
        ([(40, 91)], [(0, 40, 0), (40, 100, 0)]),  # what is after it is
        ([(-50, 500)], [(0, 100, 0)]),
    ],
)
def test_idle_time_is_cut_where_the_recording_begins_and_ends(recording, pieces):
    found, of = cut(intervals((0, 100)), intervals(*recording), 10)
    assert list(zip(found.begin_ns.tolist(), found.end_ns.tolist(), of.tolist(), strict=True)) == pieces


SPANS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=8)


@given(SPANS, st.lists(st.integers(10, 60), min_size=1, max_size=5), st.integers(1, 10))
def test_the_pieces_of_an_idle_time_add_up_to_it(recording, lengths, least):
    begins = np.cumsum([0, *lengths[:-1]]) + np.arange(len(lengths))
    idle = Intervals(begins, begins + np.array(lengths))
    pieces, of = cut(idle, intervals(*((at, at + length) for at, length in recording)), least)
    assert np.bincount(of, pieces.end_ns - pieces.begin_ns).tolist() == lengths
    assert covered(pieces, idle.begin_ns, idle.end_ns).tolist() == lengths
    assert (pieces.end_ns - pieces.begin_ns >= least).all()


def step_of(trace, number, begin, us, *, work=0):
    """Add a step that launches one kernel after ``work`` us, which ends with the step."""
    trace.step(number, begin, us).op("aten::mm", begin + work, 100)
    return trace.kernel("gemm", begin + work + 60, us - work - 60, launched=(begin + work + 50, 5))


def captured(stalled_step=0):
    """Return three steps as captures record them: the first begins with 9 ms of the profiler and of CUPTI.

    In ``stalled_step`` one operator takes 8 ms before the first launch, in the first step after these 9 ms.
    """
    trace = Trace().mark("training_profiler.clock 123", -100, 50)
    trace.mark("(profiler)", 0, 500).mark("(profiler)", 600, 8400)
    trace.event("overhead", "Activity Buffer Request", 4000, 2500, tid=0, pid=-1)
    trace.call("cudaStreamIsCapturing", 3990, 5).call("cudaEventQuery", 7000, 5)
    for number, begin, us, work in ((1, 0, FIRST_US, 9000), (2, FIRST_US, LATER_US, 0), (3, 30_000, LATER_US, 0)):
        if number == stalled_step:
            trace.op("aten::sort", begin + work, 8000)
            work += 8000
        step_of(trace, number, begin, us, work=work)
    return trace


def captured_for(us):
    """Return a step of an idle device that begins with so little time of the profiler."""
    return Trace().mark("(profiler)", 0, us).step(1, 0, 1_000_000).op("aten::mm", us, 9).kernel("k", us + 5, 9)


def by_code(found):
    return {finding.code: finding for finding in recommendations(found)}


def causes(places):
    return [(place.gap.cause, place.in_scope_ns / US) for place in places]


def test_the_start_of_a_capture_does_not_fire_a_rule(tmp_path):
    found = captured().analysed(tmp_path)
    assert causes(found.edges) == [("recording", 9000), ("launch-bound", 60)]
    assert by_code(found) == {}


def test_the_parts_of_steps_still_add_up_and_the_recording_is_named(tmp_path):
    found = captured().analysed(tmp_path)
    for step in found.steps:
        assert step.compute_ns + step.exposed_copies_ns + step.exposed_communication_ns + step.idle_ns == step.wall_ns
    idle_us = 9060 + 60 + 60
    assert sum(step.idle_ns for step in found.steps) == idle_us * US
    assert found.utilization_in_steps == pytest.approx(1 - idle_us / 40_000)
    assert found.utilization == pytest.approx(1 - (idle_us - 9000) / (40_000 - 9000))
    text = render_view("overview", found, "host_self")
    assert "GPU utilization: 77.0% of the steps, 99.4% without 9.000 ms of the recording\n  itself\n" in text
    assert "Step time varies by 43.3%, 0.0% without the first step (coefficient of\n  variation)" in text
    assert "  before: 9.000 ms, recording\n  before: 0.055 ms, launch-bound" in render_view("trace", found, "host_self")
    assert trace_data(found)["recording_ms"] == 9.0


def test_page_and_comparison_say_how_busy_the_device_is_without_the_recording(tmp_path, capsys):
    trace = captured().write(tmp_path)
    page = tmp_path / "page.html"
    assert main(["trace", str(trace), "--html", str(page)]) == 0
    busy = "busy for 77.0% of step time, 99.4% without 9.000 ms of the recording itself."
    assert busy in page.read_text("utf-8")
    assert main(["trace", str(trace), "--compare", str(trace)]) == 0
    assert "Before: 99.4% without 9.000 ms of the recording itself\nAfter: 99.4%" in capsys.readouterr().out


def test_the_path_begins_after_the_start_of_the_recording(tmp_path):
    graph = analyse(captured().write(tmp_path)).graph
    path = critical_path(graph)
    assert (path.wall_ns, path.recording_ns) == (31_000 * US, 9000 * US)
    assert "(profiler)" not in {link.name for link in path.links}
    assert "without 9.000 ms of the recording itself: 31.000 ms, 10.333 ms a step" in " ".join(
        render_critical_path(graph).split()
    )
    assert path_data(graph)["recording_ms"] == 9.0


def test_shares_are_of_the_time_without_the_recording(tmp_path):
    trace = captured().mark("enumerate(DataLoader)#_Iter.__next__", 20_000, 6200)
    found = trace.analysed(tmp_path)
    assert (found.scope.wall_ns, found.program_ns) == (40_000 * US, 31_000 * US)
    assert by_code(found)["data-loading-bound"].message.startswith("20.0% of step time")  # 6.2 of 31 ms
    assert {check.what: check.measured for check in checks(found)}["data time"] == "20.0%"


def test_what_a_trace_without_it_shows_does_not_speak_of_the_recording(tmp_path):
    found = step_of(Trace().op("aten::mm", -50, 20), 1, 0, 1000).analysed(tmp_path)
    assert found.recording_ns == 0
    assert "without" not in render_view("overview", captured_for(50).analysed(tmp_path), "host_self")
    assert "recording itself" not in render_view("overview", found, "host_self")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_stall_of_the_program_is_found_also_after_the_start_of_the_recording(step, tmp_path):
    stall = by_code(captured(step).analysed(tmp_path))["host-stall"]
    assert "8.1 ms aten::sort" in stall.message
    assert stall.potential_saving_s == pytest.approx(0.008, abs=0.0002)


@pytest.mark.parametrize(
    ("earlier", "cause"), [(False, "recording"), (True, "host stall")], ids=["starts in it", "started before it"]
)
def test_what_precedes_the_first_event_of_the_program_is_not_known(earlier, cause, tmp_path):
    """Any profiler may start in the first step; the host stalls only where something shows that it was recorded."""
    trace = step_of(Trace(), 1, 0, FIRST_US, work=9000)
    if earlier:
        trace.op("aten::mm", -50, 20)
    found = trace.analysed(tmp_path)
    assert causes(found.edges)[0] == (cause, 9000 if cause == "recording" else 9060)
    assert ("host-stall" in by_code(found)) == earlier


@pytest.mark.parametrize(
    ("name", "cause"),
    [("forward_pass", "recording"), ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data loader")],
)
def test_a_section_that_is_open_at_the_begin_shows_the_program_at_its_end(name, cause, tmp_path):
    trace = step_of(Trace().mark(name, 0, 9000), 1, 0, FIRST_US, work=9000)
    assert causes(trace.analysed(tmp_path).edges)[0][0] == cause


def test_the_longest_idle_time_and_the_main_cause_are_those_of_the_program(tmp_path):
    trace = step_of(Trace().mark("(profiler)", 0, 9000), 1, 0, 11_000, work=10_000)
    trace.op("aten::mul", 9000, 900).step(2, 11_000, 11_000).op("aten::mul", 11_000, 6000)
    trace.kernel("gemm", 17_000, 5000, launched=(16_990, 5))
    for name, ts in (("slow.py:1 in start", 4000), ("train.py:7 in loop", 13_000), ("train.py:7 in loop", 14_000)):
        trace.events.append({"ph": "i", "cat": "training_profiler.line", "name": name, "pid": 7, "tid": 1, "ts": ts})
    found = trace.analysed(tmp_path)
    message = by_code(found)["gpu-idle"].message
    assert message.startswith("The device is busy for 45.7% of the steps")  # 5940 of 13,000 us
    assert "the longest gap, 6.0 ms, is at train.py:7 in loop" in message
    assert "slow.py" not in message + render_view("trace", found, "host_self")


def with_overhead(*begun, name="Activity Buffer Request"):
    """Return a gap of 5 ms that an overhead of 4 ms takes most of; ``begun`` are operators of autograd's thread."""
    trace = Trace().op("aten::mm", 0, 100).kernel("k", 0, 100, launched=(0, 5))
    trace.event("overhead", name, 200, 4000, tid=0, pid=-1)
    for ts in begun:
        trace.op("aten::add", ts, 10, tid=AUTOGRAD)
    return trace.kernel("k", 5100, 10, launched=(5000, 5), tid=AUTOGRAD).op("aten::mm", 5000, 50, tid=AUTOGRAD)


@pytest.mark.parametrize(
    ("trace", "is_recording"),
    [
        (with_overhead(), True),
        (with_overhead(2000), False),  # that thread was not held up
        (with_overhead(name="Lazy Function Loading"), False),  # of CUDA, without a profiler too
    ],
)
def test_a_gap_in_which_cupti_works_for_itself_is_the_recording(trace, is_recording, tmp_path):
    found = trace.analysed(tmp_path)
    assert (found.gaps[0].gap.cause == "recording") == is_recording
    assert bool({"host-stall", "launch-bound"} & set(by_code(found))) == (not is_recording)
