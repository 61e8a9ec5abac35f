"""Where in the code: modules, lines and sections with the time of the host, of the device and of gaps."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import assert_answers
from tests.support.traces import LOOP, QUICK, Trace
from training_profiler.base.sections import CLOCK_MARK
from training_profiler.torch_capture.trace_file import WrittenSpan, write_trace
from training_profiler.trace_analysis.code_places import TracedLine as CodeLine
from training_profiler.trace_analysis.code_places import line_of
from training_profiler.trace_analysis.report_views import render_view
from training_profiler.trace_analysis.trace import analyse

US = 1000


def frame(trace, name, ts, dur, tid=LOOP):
    return trace.event("python_function", name, ts, dur, tid=tid)


def test_lines_are_of_the_program_not_of_torch_or_python():
    assert_answers("frames_of_traces", line_of)
    assert line_of("") == ""


FRAMES = st.lists(
    st.tuples(st.sampled_from("ABC"), st.integers(0, 30), st.integers(1, 30), st.sampled_from([1, 2])), max_size=9
)
WORKS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 90), st.integers(1, 40), st.integers(0, 1)), max_size=6)


@QUICK
@given(FRAMES, WORKS)
def test_parts_add_up_whatever_overlaps(tmp_path, frames, works):
    trace = Trace().op("aten::mm", 0, 1)
    for name, begin, length, tid in frames:
        frame(trace, f"nn.Module: {name}", begin, length, tid=tid)
    for launch, begin, length, device in works:
        trace.kernel("k", launch + begin, length, launched=(launch, 1), device=device)
    found = trace.analysed(tmp_path)
    modules = found.code.modules
    open_us = Counter()
    for _, begin, length, tid in frames:
        open_us.update((tid, moment) for moment in range(begin, begin + length))
    assert sum(place.host_self_ns for place in modules.rows) == len(open_us) * US
    for place in modules.rows:
        assert place.host_total_ns <= sum(length for name, _, length, _ in frames if name == place.name) * US
        assert place.device_self_ns <= place.device_total_ns
    busy_ns = sum(device.device.busy.total_ns for device in found.devices)
    assert sum(place.device_self_ns for place in modules.rows) <= busy_ns
    if modules.rows:
        idle_ns = sum(place.idle_ns for place in modules.rows) + modules.elsewhere_idle_ns
        assert idle_ns == sum(gap.length_ns for gap in found.gaps)


def test_lines_that_a_capture_sampled_name_its_gaps(tmp_path):
    trace = Trace().kernel("a", 0, 10, launched=(0, 2)).kernel("b", 1000, 100, launched=(900, 10))
    trace.mark(f"{CLOCK_MARK} 0", 0, 0.01).mark(f"{CLOCK_MARK} 2000000", 2000, 0.01)
    lines = [(5, "train.py:1 in main"), (300, "data.py:8 in load"), (500, "data.py:8 in load"), (950, "late.py:1 in x")]
    added = [WrittenSpan("forward_pass", 0, 100_000), *(WrittenSpan(line, at * US, None) for at, line in lines)]
    marks = [[(0, 10)], [(2_000_000, 2_000_010)]]
    trace.top["traceName"] = "x"
    path = tmp_path / "step1-1-rank0.pt.trace.json.gz"
    write_trace(trace.write(tmp_path, "raw"), path, added, marks, 1e6, lambda: False)
    found = analyse(path)
    (gap,) = found.gaps
    assert gap.line == "data.py:8 in load"
    assert found.code.sampled[0] == CodeLine("data.py:8 in load", samples=2, in_gaps=2)
    # The one at 950 us is after the launch: the gap no longer waits for the host.
    assert {row.name: row.in_gaps for row in found.code.sampled[1:]} == dict.fromkeys(
        ("train.py:1 in main", "late.py:1 in x"), 0
    )
    assert [place.name for place in found.code.sections.rows] == ["forward_pass"]
    assert "4 samples" in render_view("code", found, "host_self")


def test_view_without_places_says_how_to_record_them(tmp_path):
    text = render_view("code", Trace().op("aten::mm", 0, 5).analysed(tmp_path), "host_self")
    assert "with_stack=True" in text
