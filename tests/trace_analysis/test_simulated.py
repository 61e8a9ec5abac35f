"""Simulated trainings whose answer is known: every idle moment has its cause, and findings follow the causes."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.simulated_training import KERNEL, Loop, simulated
from tests.support.traces import Trace
from training_profiler.trace_analysis.report.figures import gap_causes, saving_ms, trace_data
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.rules.recommendations import not_checked, recommendations
from training_profiler.trace_analysis.rules.registry import RULES

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
US = 1000
LOOPS = st.builds(
    Loop,
    steps=st.integers(1, 4),
    kernels=st.integers(1, 8),
    kernel_us=st.integers(1, 400),
    host_us=st.integers(8, 300),
    loader_us=st.sampled_from([0, 0, 700, 9000]),
    read=st.booleans(),
    first_stall_us=st.sampled_from([0, 8000]),
    stall_us=st.sampled_from([0, 0, 6000]),
    is_marked=st.booleans(),
)


def by_code(found):
    return {finding.code: finding for finding in recommendations(found)}


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize(
    ("loop", "cause", "code"),
    [
        (Loop(host_us=300), "launch-bound", "launch-bound"),
        (Loop(loader_us=9000), "data loader", "data-loading-bound"),
        (Loop(loader_us=9000, read=True), "data loader", "data-loading-bound"),
        (Loop(stall_us=7000, kernel_us=300), "host stall", "host-stall"),
    ],
)
def test_first_finding_is_the_planted_cause_also_without_steps(loop, cause, code, is_marked, tmp_path):
    trace, answer = simulated(replace(loop, is_marked=is_marked))
    found = trace.analysed(tmp_path)
    measured = sum(gap.gap.length_ns for gap in found.gaps if gap.gap.cause == cause)
    assert measured == pytest.approx(answer.idle_us[cause] * US, rel=0.02)
    first = recommendations(found)[0]
    assert first.code == code
    before_us = answer.before_us if is_marked else 0  # without steps the recording begins with the first work
    assert saving_ms(first) == pytest.approx((answer.idle_us[cause] + before_us) / 1000, rel=0.02)
    assert f"main cause of idle time: {cause}" in by_code(found)["gpu-idle"].message


def test_idle_time_of_steps_outside_of_the_works_has_its_cause(tmp_path):
    trace, answer = simulated(Loop(loader_us=9000, kernels=2, steps=1, kernel_us=10))
    trace.events = [event for event in trace.events if not event["name"].startswith("ProfilerStep#")]
    end = answer.before_us + answer.span_us
    trace.step(1, 0, end + 8000).op("aten::sort", end + 100, 7800)
    found = trace.analysed(tmp_path)
    assert not found.gaps
    assert [(edge.gap.cause, edge.in_scope_ns / US, edge.next_name) for edge in found.edges] == [
        ("data loader", answer.before_us, KERNEL),
        ("host stall", 8000, ""),
    ]
    codes = by_code(found)
    assert saving_ms(codes["data-loading-bound"]) == pytest.approx(answer.before_us / 1000, rel=0.01)
    assert "8.0 ms aten::sort" in codes["host-stall"].message
    assert "(before the first run" not in codes["host-stall"].message
    assert "main cause of idle time: data loader" in codes["gpu-idle"].message
    text = render_view("trace", found, "host_self")
    total_ms = (answer.before_us + 8000) / 1000
    assert f"before a device's first work and after its last: {total_ms:.3f} ms" in text
    assert "  after: 8.000 ms, host stall (host in aten::sort)" in text


def test_python_code_before_the_first_work_is_not_the_loading_of_a_kernel(tmp_path):
    trace = Trace().op("aten::mm", -9, 8).step(1, 0, 9000)  # the recording had started
    trace.kernel("k", 7000, 10, launched=(6990, 5)).op("aten::mm", 6990, 8)
    stall = by_code(trace.analysed(tmp_path))["host-stall"]
    assert "7.0 ms outside of operators." in stall.message + "."
    assert "schedule(wait=" not in stall.fix


def test_idle_time_in_short_gaps_is_named_as_such(tmp_path):
    trace = Trace().step(1, 0, 1000)
    for i in range(40):
        trace.op("aten::add", 25 * i, 20).kernel("k", 25 * i + 5, 5, launched=(25 * i + 1, 2))
    found = by_code(trace.analysed(tmp_path))["gpu-idle"]
    assert found.message.endswith("; most of the idle time is in gaps under 30 us")
    assert "CUDA graphs" in found.fix


def test_a_slow_first_launch_is_a_stall_not_launch_bound(tmp_path):
    trace, _ = simulated(Loop(first_stall_us=90_000, is_marked=False, kernels=3))
    trace.kernel("memset_kernel", 0, 1)  # before the first kernel: its stall is a gap
    found = by_code(trace.analysed(tmp_path))
    assert "launch-bound" not in found
    assert "aten::mm (before the first run of a kernel)" in found["host-stall"].message
    assert "schedule(wait=" in found["host-stall"].fix


def test_a_short_read_is_not_worth_what_the_loader_takes(tmp_path):
    trace, answer = simulated(Loop(loader_us=9000, read=True, kernels=2, kernel_us=50))
    found = by_code(trace.analysed(tmp_path))
    reads = found.get("synchronizing-reads")
    assert saving_ms(found["data-loading-bound"]) > 0.99 * answer.idle_us["data loader"] / 1000
    assert reads is None or saving_ms(reads) < 1


def test_a_gap_with_two_causes_is_divided_between_their_findings(tmp_path):
    """Batches that come at once end the wait, and not what the host then does until its first launch."""
    trace = Trace()
    for i in range(4):
        trace.step(i, 10_000 * i, 10_000).mark("enumerate(DataLoader)#_Iter.__next__", 10_000 * i, 5000)
        for k in range(20):
            trace.op("aten::mm", 10_000 * i + 5000 + 200 * k, 200)
        trace.kernel("gemm", 10_000 * i + 9000, 1000, launched=(10_000 * i + 8990, 10))
    found = by_code(trace.analysed(tmp_path))
    assert saving_ms(found["data-loading-bound"]) == pytest.approx(4 * 5, rel=0.01)
    assert saving_ms(found["launch-bound"]) == pytest.approx(4 * 4, rel=0.01)


def test_what_could_not_run_is_named(tmp_path):
    missing = not_checked(Trace().op("a", 0, 1).analysed(tmp_path))
    assert "gpu-idle" in missing["work of a device"]
    assert "memory-grows" in missing["memory events (profile_memory=True)"]
    assert sum(map(len, missing.values())) < len(list(RULES))


def test_nothing_is_worth_nothing_and_no_step_count_is_zero(tmp_path):
    trace, _ = simulated(Loop(is_marked=False, read=True, loader_us=700))
    for finding in recommendations(trace.analysed(tmp_path)):
        assert saving_ms(finding) is None or saving_ms(finding) >= 0.05
        assert " 0 steps" not in finding.message


@pytest.mark.parametrize("loop", [Loop(loses=frozenset(range(40))), Loop(loses=frozenset({5}), kernels=10)])
def test_lost_kernels_are_recognised_and_alarms_held_back(loop, tmp_path):
    trace, answer = simulated(loop)
    found = trace.analysed(tmp_path)
    assert found.doubts[0].message.startswith(f"{len(loop.loses)} of {answer.launches} kernel launches have no kernel")
    assert not {"gpu-idle", "launch-bound", "host-stall", "synchronizing-reads"} & set(by_code(found))
    assert any("gpu-idle" in codes for codes in not_checked(found).values())
    checks = {check["what"]: check["verdict"] for check in trace_data(found)["checklist"]}
    assert checks["GPU utilization"] == "not measured"


def test_truncated_buffer_is_named(tmp_path):
    trace, _ = simulated(Loop(loses=frozenset(range(30, 40))))
    assert "all of them the last ones" in trace.analysed(tmp_path).doubts[0].message


def test_launches_into_a_graph_capture_are_not_lost(tmp_path):
    trace, _ = simulated(Loop(loses=frozenset(range(10, 20))))
    assert trace.analysed(tmp_path).doubts
    captured = sorted(event["ts"] for event in trace.events if event["args"].get("correlation", 0) >= 1_000_000)
    trace.call("cudaStreamBeginCapture", captured[0] - 1, 0.5).call("cudaStreamEndCapture", captured[-1] + 6, 0.5)
    assert not trace.analysed(tmp_path).doubts


def whole():
    return simulated(Loop())[0]


def shifted(trace, us, after):
    """Return the trace with a clock that jumps: device work after that time is recorded so much earlier or later."""
    for event in trace.events:
        if event["cat"] == "kernel" and event["ts"] > after:
            event["ts"] += us
    return trace


DOUBTS = {
    "graphs-without-kernels": lambda: whole().call("cudaGraphLaunch", 100, 5, correlation=5_000_000),
    "kernel-longer-than-step": lambda: whole().kernel("k", 100, 10_000_000),
    "work-before-launch": lambda: shifted(whole(), -3000, 2000),
    "clock-jump": lambda: whole().op("aten::mm", 3_600_000_000, 20),
}


@pytest.mark.parametrize(("section", "is_doubted"), [("", True), ("save_checkpoint", False)])
def test_seconds_that_only_a_step_contains_are_not_a_stall(section, is_doubted, tmp_path):
    """An excerpt of a trace can have lost what was there; a section that nothing divides shows what it was."""
    trace = Trace().step(1, 0, 13_600_000)
    for at in (*range(0, 20_000, 1000), *range(13_400_000, 13_420_000, 1000)):
        trace.op("aten::mm", at, 800).kernel("gemm", at + 700, 250, launched=(at + 600, 5))
    if section:
        trace.mark(section, 20_000, 13_380_000)
    found = trace.analysed(tmp_path)
    assert [doubt.code for doubt in found.doubts] == (["clock-jump"] if is_doubted else [])
    assert ("host-stall" in by_code(found)) != is_doubted


def test_a_step_that_ends_long_after_the_recording_is_doubted(tmp_path):
    trace = Trace().mark("ProfilerStep#1", 0, 13_336_000, tid=3).op("aten::mm", 10, 1300)
    found = trace.kernel("k", 1200, 2, launched=(1100, 96)).analysed(tmp_path)
    expected = (
        "nothing is recorded for 13.3 s, and all else takes 0.001 s: a clock jumped, recordings were joined, the "
        "recording had ended, or the program slept"
    )
    assert [doubt.message for doubt in found.doubts] == [expected]
    assert not {"gpu-idle", "host-stall"} & by_code(found).keys()


def numbered(count, apart=lambda i: 100 * i):
    """Return a loop whose operators have numbers of torch, of which most were filtered out."""
    trace = Trace()
    for step in range(2):
        trace.step(step, 100_000 * step, 99_000)
    for i in range(count):
        at = 200_000 // count * i + 10
        trace.op("aten::mm", at, 20, **{"External id": 1 + apart(i)})
        trace.kernel("gemm", at + 20, 5, launched=(at + 10, 5))
    return trace


def test_a_filtered_trace_is_an_excerpt_whose_idle_time_says_nothing(tmp_path):
    """Torch numbers its operators, so that those which were left out show; the device was busy with them."""
    found = numbered(40).analysed(tmp_path)
    assert [(doubt.code, doubt.message) for doubt in found.doubts] == [
        ("excerpt", "40 operators are left of 3,901 events that torch numbered: the others are not in this file")
    ]
    assert not {"gpu-idle", "host-stall", "launch-bound"} & by_code(found).keys()


@pytest.mark.parametrize(
    "apart",
    [
        lambda i: i,  # whole
        lambda i: 5 * i,  # other events take numbers, too
        lambda i: 20 * i,  # few are left out
        lambda i: 2_654_435_761 * (i + 1) % 2**31,  # not numbers of operators at all
        lambda i: -1,  # no numbers
    ],
)
def test_a_trace_with_other_numbers_is_whole(apart, tmp_path):
    assert "excerpt" not in [doubt.code for doubt in numbered(40, apart).analysed(tmp_path).doubts]


@pytest.mark.parametrize("code", DOUBTS)
def test_impossible_traces_are_doubted(code, tmp_path):
    assert code in [doubt.code for doubt in DOUBTS[code]().analysed(tmp_path).doubts]


def test_a_host_event_cut_off_by_the_recording_is_not_doubted(tmp_path):
    trace = whole()
    trace.events.append({"ph": "B", "cat": "cpu_op", "name": "a", "pid": 7, "tid": 1, "ts": 1e6})
    assert trace.analysed(tmp_path).doubts == ()


def test_lost_halves_are_counted(tmp_path):
    trace = whole()
    trace.events += [
        {"ph": ph, "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9e6 + i} for i, ph in enumerate("EBB")
    ]
    assert trace.analysed(tmp_path).doubts[0].message == "3 pieces of device work with only a begin or only an end"


@QUICK
@given(LOOPS)
def test_whole_traces_are_not_doubted_and_add_up(tmp_path, loop):
    trace, answer = simulated(loop)
    found = trace.analysed(tmp_path)
    assert not found.doubts
    assert (found.device.busy.total_ns, found.span_ns) == (answer.busy_us * US, answer.span_us * US)
    assert sum(found.gap_lengths_ns) == sum(answer.idle_us.values()) * US
    assert sum(gap_causes(found).values()) == pytest.approx(sum(gap.gap.length_ns for gap in found.gaps) / 1e6)
    for place in found.idle_times:
        assert sum(share for _, share in place.gap.shares) == pytest.approx(1)
        assert place.gap.share_of(place.gap.cause) == max(share for _, share in place.gap.shares)
    if loop.is_marked:
        edges_ns = [us * US for us in (answer.before_us, answer.after_us) if us >= 30]
        assert [edge.in_scope_ns for edge in found.edges] == edges_ns
        assert sum(part.idle_ns for part in found.scope.parts) == sum(found.gap_lengths_ns) + US * (
            answer.before_us + answer.after_us
        )
    for part in found.scope.parts:
        parts = (part.compute_ns, part.exposed_communication_ns, part.exposed_copies_ns, part.idle_ns)
        assert min(parts) >= 0
        assert sum(parts) == part.wall_ns


@QUICK
@given(LOOPS, st.integers(1, 3))
def test_no_share_exceeds_100_percent_and_savings_are_disjoint(tmp_path, loop, streams):
    trace, _ = simulated(loop)
    for stream in range(1, streams):  # the same work at the same time on more streams
        trace.events += [e | {"tid": 100 + stream, "args": e["args"] | {"stream": 100 + stream}}
                         for e in simulated(loop)[0].events if e["cat"] == "kernel"]  # fmt: skip
    found = trace.analysed(tmp_path)
    findings = recommendations(found)
    for finding in findings:
        for key, value in finding.evidence.items():
            if key.startswith(("share", "part", "utilization", "hidden")):
                assert 0 <= value <= 1, (finding.code, key)
    of_gaps = ("data-loading-bound", "launch-bound", "host-stall", "synchronizing-reads", "allocations")
    claimed = sum(finding.potential_saving_s for finding in findings if finding.code in of_gaps)
    assert claimed * 1e9 <= sum(part.idle_ns for part in found.scope.parts) + 1


@QUICK
@given(LOOPS, st.randoms(use_true_random=False))
def test_order_of_events_in_the_file_does_not_matter(tmp_path, loop, order):
    trace, _ = simulated(loop)
    before = trace_data(trace.analysed(tmp_path))
    order.shuffle(trace.events)
    assert trace_data(trace.analysed(tmp_path)) == before


@QUICK
@given(LOOPS, LOOPS)
def test_splitting_a_file_by_rank_does_not_matter(tmp_path, a, b):
    together = Trace()
    parts = []
    for rank, loop in enumerate((a, b)):
        trace, _ = simulated(replace(loop, is_marked=False))
        for event in trace.events:  # a process and a device of its own
            event["pid"] = event["pid"] + 100 * (rank + 1) if event["cat"] != "kernel" else rank
            if event["cat"] == "kernel":
                event["args"]["device"] = rank
            if "correlation" in event["args"]:
                event["args"]["correlation"] += 1_000_000 * rank
        together.events += trace.events
        parts.append(trace.analysed(tmp_path))
    found = together.analysed(tmp_path)
    assert [device.device.busy.total_ns for device in found.devices] == [part.device.busy.total_ns for part in parts]
    for device, part in enumerate(parts):
        of_device = [(gap.gap.begin_ns, gap.gap.end_ns) for gap in found.gaps if gap.gap.device == device]
        assert of_device == [(gap.gap.begin_ns, gap.gap.end_ns) for gap in part.gaps]


def test_operator_within_an_annotation_of_its_name_has_its_total(tmp_path):
    trace = Trace().mark("aten::mm", 0, 100).op("aten::mm", 10, 50).kernel("k", 70, 7, launched=(12, 1))
    row = next(row for row in trace.analysed(tmp_path).operators if row.name == "aten::mm")
    assert (row.host_total_ns, row.device_total_ns) == (50_000, 7000)


def late_start(wait_us, end=20_000, **more):
    """Return a trace in which work that was launched begins so much later, while nothing else runs."""
    trace = Trace().op("aten::mm", 0, 20).kernel("k", 5, 10, launched=(1, 2)).op("aten::copy_", 30, end - 30)
    begin = 40 + wait_us
    return trace.kernel("gemm", begin, end - begin, launched=(32, 4), **more)


def test_launched_work_that_waits_for_nothing_recorded_is_doubted(tmp_path):
    found = late_start(6000).analysed(tmp_path)
    assert [doubt.code for doubt in found.doubts] == ["work-not-recorded"]
    assert found.doubts[0].message.startswith("for 6.0 ms the host or work that was launched waits although")
    assert "gpu-idle" not in by_code(found)
    assert not late_start(900).analysed(tmp_path).doubts  # a start that is slow
    assert not late_start(1900).analysed(tmp_path).doubts  # under a tenth
    waits = late_start(6000)
    waits.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 16, 10, stream=20)
    assert not waits.analysed(tmp_path).doubts  # for another rank


def test_a_recording_of_a_graph_capture_has_no_idle_device(tmp_path):
    trace = Trace().kernel("k", 0, 10, launched=(-5, 2)).op("aten::mm", 20, 9000)
    trace.call("cudaStreamBeginCapture", 20, 1).call("cudaStreamEndCapture", 9000, 10).kernel("k", 9020, 10)
    found = trace.analysed(tmp_path)
    expected = "graphs are captured for 100% of the recording: what is captured does not run then"
    assert [doubt.message for doubt in found.doubts] == [expected]
    assert not {"gpu-idle", "launch-bound", "host-stall"} & set(by_code(found))
