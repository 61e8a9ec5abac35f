"""Where in the code: modules, lines and sections with the time of the host, of the device and of gaps."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.traces import AUTOGRAD, LOOP, Trace
from training_profiler.tables.sections import CLOCK_MARK
from training_profiler.torch_capture.trace_file import SampledLine, WrittenSpan, write_trace
from training_profiler.trace_analysis.code_places import TracedLine as CodeLine
from training_profiler.trace_analysis.code_places import line_of, shortened_line
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.rules.recommendations import recommendations
from training_profiler.trace_analysis.trace import analyse

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
US = 1000


def frame(trace, name, ts, dur, tid=LOOP):
    return trace.event("python_function", name, ts, dur, tid=tid)


def by_name(places):
    return {place.name: place for place in places.rows}


def test_a_gap_belongs_to_the_innermost_module_and_line_of_the_program(tmp_path):
    trace = Trace().kernel("a", 0, 10, launched=(0, 2))
    frame(trace, "train.py(9): main", 0, 900)
    frame(trace, "nn.Module: Net_0", 100, 700)
    frame(trace, "model/net.py(41): forward", 110, 680)
    frame(trace, "nn.Module: Linear_0", 200, 500)
    frame(trace, "torch/nn/modules/linear.py(114): forward", 210, 480)
    frame(trace, "<built-in function linear>", 220, 400)
    trace.kernel("b", 650, 100, launched=(640, 10))
    found = trace.analysed(tmp_path)
    (gap,) = found.gaps
    assert (gap.module, gap.line) == ("Linear_0", "model/net.py:41 in forward")
    assert gap.where == "in Linear_0 (model/net.py:41 in forward)"
    modules, lines = by_name(found.code.modules), by_name(found.code.lines)
    assert modules["Net_0"].host_self_ns == 200 * US
    assert modules["Net_0"].host_total_ns == 700 * US
    assert modules["Net_0"].device_total_ns == modules["Linear_0"].device_self_ns == 100 * US
    # The gap from 10 to 650 is of no module until 100, and of the inner one from 200 on.
    assert (modules["Net_0"].idle_ns, modules["Linear_0"].idle_ns) == (100 * US, 450 * US)
    assert found.code.modules.elsewhere_idle_ns == 90 * US
    assert lines["train.py:9 in main"].host_self_ns == 220 * US
    assert set(lines) == {"train.py:9 in main", "model/net.py:41 in forward"}


def test_time_after_the_launch_belongs_to_the_place_of_the_launch(tmp_path):
    trace = Trace().kernel("a", 0, 10, launched=(0, 2))
    frame(trace, "nn.Module: Early_0", 0, 100)
    frame(trace, "nn.Module: Late_0", 100, 900)
    found = trace.kernel("b", 500, 10, launched=(50, 10)).analysed(tmp_path)
    assert by_name(found.code.modules)["Early_0"].idle_ns == 490 * US
    assert by_name(found.code.modules)["Late_0"].idle_ns == 0


def test_recursion_counts_once(tmp_path):
    trace = Trace()
    for depth in range(4):
        frame(trace, "nn.Module: Tree_0", 10 * depth, 100 - 20 * depth)
    (tree,) = trace.analysed(tmp_path).code.modules.rows
    assert (tree.calls, tree.host_self_ns, tree.host_total_ns) == (4, 100 * US, 100 * US)


def test_kernels_that_overlap_count_each_moment_once(tmp_path):
    trace = Trace()
    frame(trace, "nn.Module: A_0", 0, 10)
    frame(trace, "nn.Module: B_0", 10, 10)
    trace.kernel("a", 20, 100, launched=(2, 2), stream=7).kernel("b", 50, 20, launched=(12, 2), stream=9)
    found = trace.analysed(tmp_path)
    times = {name: place.device_self_ns for name, place in by_name(found.code.modules).items()}
    assert times == {"A_0": 80 * US, "B_0": 20 * US}
    assert sum(times.values()) == found.device.busy.total_ns


def test_work_of_autograds_thread_belongs_to_the_line_that_waits_for_it(tmp_path):
    trace = Trace().step(1, 0, 200)
    frame(trace, "train.py(12): step", 0, 100)
    trace.op("MmBackward0", 20, 10, tid=AUTOGRAD).kernel("k", 30, 40, launched=(22, 5), tid=AUTOGRAD)
    (line,) = trace.analysed(tmp_path).code.lines.rows
    assert (line.name, line.device_self_ns) == ("train.py:12 in step", 40 * US)


def test_call_stacks_of_operators_name_the_line_that_ran(tmp_path):
    stack = "/opt/lib/python3.8/site-packages/torch/_ops.py(4): mm;/home/me/net.py(31): forward;train.py(5): <module>"
    trace = Trace().mark("Optimizer.step#SGD.step", 0, 100, **{"Call stack": "train.py(7): <module>"})
    trace.op("aten::add_", 10, 20, **{"Call stack": "torch/optim/sgd.py(80): step;train.py(7): <module>"})
    trace.op("aten::mm", 200, 50, **{"Call stack": stack}).step(1, 0, 300)
    trace.events[-1]["args"]["Call stack"] = "train.py(9): <module>"  # the line that ended the step before
    lines = by_name(trace.analysed(tmp_path).code.lines)
    assert lines["/home/me/net.py:31 in forward"].host_self_ns == 50 * US
    optimizer = lines["train.py:7 in <module>"]
    assert (optimizer.calls, optimizer.host_self_ns, optimizer.host_total_ns) == (2, 100 * US, 100 * US)
    assert "train.py:9 in <module>" not in lines


def test_modules_of_torchscript_are_read_from_operators(tmp_path):
    trace = Trace().op("aten::mm", 0, 50, **{"Module Hierarchy": "top(Net)::forward.fc(Linear)::forward"})
    trace.op("aten::add", 60, 5, **{"Module Hierarchy": ""})
    (module,) = trace.analysed(tmp_path).code.modules.rows
    assert (module.name, module.host_self_ns) == ("top(Net)::forward.fc(Linear)::forward", 50 * US)


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ("train.py(41): main", "train.py:41 in main"),
        ("D:\\net\\train.py(41): main", "D:/net/train.py:41 in main"),
        ("transformers/trainer.py(2): step", "transformers/trainer.py:2 in step"),
        ("torch/nn/modules/module.py(1): _call_impl", ""),
        ("/venv/lib/python3.11/site-packages/torch/_ops.py(3): __call__", ""),
        ("/usr/lib/python3.11/threading.py(4): run", ""),
        ("threading.py(4): run", ""),
        ("multiprocessing/process.py(4): run", ""),
        ("<frozen importlib._bootstrap>(4): _find", ""),
        ("training_profiler/instrumentation/patches/module_call.py(9): call", ""),
        ("<built-in function len>", ""),
        ("nn.Module: Linear_0", ""),
        ("", ""),
    ],
)
def test_lines_are_of_the_program_not_of_torch_or_python(frame, line):
    assert line_of(frame) == line


def test_a_shortened_line_keeps_its_number():
    assert shortened_line("/home/me/project/model/net.py:41 in forward") == "model/net.py:41 in forward"
    assert shortened_line("net.py:41 in forward") == "net.py:41 in forward"


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
        assert idle_ns == sum(gap.gap.length_ns for gap in found.gaps)


def test_the_order_of_events_in_the_file_does_not_matter(tmp_path):
    trace = Trace().kernel("a", 0, 10, launched=(0, 2)).kernel("b", 300, 10, launched=(250, 2))
    for number in range(5):
        frame(trace, f"nn.Module: M_{number % 2}", 40 * number, 60)
    found = trace.analysed(tmp_path).code
    trace.events.reverse()
    assert trace.analysed(tmp_path).code == found


def test_an_idle_device_is_reported_with_the_module_and_line_of_the_longest_gap(tmp_path):
    trace = Trace().step(1, 0, 2000).kernel("a", 0, 10, launched=(0, 2)).kernel("b", 1500, 100, launched=(1490, 5))
    frame(trace, "nn.Module: Slow_0", 10, 1500)
    frame(trace, "train.py(3): work", 5, 1600)
    (finding,) = (found for found in recommendations(trace.analysed(tmp_path)) if found.code == "gpu-idle")
    assert finding.message.endswith("the longest gap, 1.5 ms, is in Slow_0 (train.py:3 in work)")


def test_lines_that_a_capture_sampled_name_its_gaps(tmp_path):
    trace = Trace().kernel("a", 0, 10, launched=(0, 2)).kernel("b", 1000, 100, launched=(900, 10))
    trace.mark(f"{CLOCK_MARK} 0", 0, 0.01).mark(f"{CLOCK_MARK} 2000000", 2000, 0.01)
    lines = [(5, "train.py:1 in main"), (300, "data.py:8 in load"), (500, "data.py:8 in load"), (950, "late.py:1 in x")]
    added = [WrittenSpan("forward_pass", 0, 100_000), *(SampledLine(line, at * US) for at, line in lines)]
    marks = [[(0, 10)], [(2_000_000, 2_000_010)]]
    trace.top["traceName"] = "x"
    path = tmp_path / "step1-1-rank0.pt.trace.json.gz"
    write_trace(trace.write(tmp_path, "raw"), path, added, marks, 1e6, lambda: False)
    found = analyse(path)
    (gap,) = found.gaps
    assert gap.line == "data.py:8 in load"
    assert found.code.sampled.rows[0] == CodeLine("data.py:8 in load", samples=2, in_gaps=2)
    # The one at 950 us is after the launch: the gap no longer waits for the host.
    assert {row.name: row.in_gaps for row in found.code.sampled.rows[1:]} == dict.fromkeys(
        ("train.py:1 in main", "late.py:1 in x"), 0
    )
    assert [place.name for place in found.code.sections.rows] == ["forward_pass"]
    assert "4 samples" in render_view("code", found, "host_self")


def test_view_has_a_table_for_each_kind_that_was_recorded_in_80_columns(tmp_path):
    trace = Trace().mark("forward_pass", 0, 90).kernel("k", 20, 10, launched=(1, 2))
    frame(trace, "nn.Module: Net_0", 0, 50)
    frame(trace, f"{'folder/' * 20}train.py(3): work", 0, 60)
    text = render_view("code", trace.analysed(tmp_path), "host_self")
    assert "forward_pass" in text
    assert "Net_0" in text
    assert "train.py:3" in text
    assert max(map(len, text.splitlines())) <= 80


def test_view_without_places_says_how_to_record_them(tmp_path):
    text = render_view("code", Trace().op("aten::mm", 0, 5).analysed(tmp_path), "host_self")
    assert "with_stack=True" in text


@pytest.mark.parametrize(
    ("us", "module_us", "where"),
    [
        (40, 0, "at train.py:3 in work"),
        (30, 0, "at train.py:3 in work (38% of it)"),
        (40, 60, "in Net_0 (train.py:3 in work)"),
        (30, 60, "in Net_0 (train.py:3 in work, 38% of it)"),
        (30, 32, "in Net_0 (40% of it; train.py:3 in work, 38% of it)"),
    ],
)
def test_what_has_less_than_half_of_a_gap_has_its_share(us, module_us, where, tmp_path):
    trace = Trace().kernel("k", 0, 10, launched=(0, 2)).op("aten::mm", 5, 90).kernel("k", 90, 10, launched=(85, 5))
    if module_us:
        frame(trace, "nn.Module: Net_0", 10, module_us)
        frame(trace, "nn.Module: Head_0", 10 + module_us, 24)
    frame(trace, "train.py(3): work", 10, us)
    frame(trace, "train.py(9): more", 10 + us, 25)
    assert trace.analysed(tmp_path).gaps[0].where == where
