"""Simulated trainings whose answer is known: every idle moment has its cause, and findings follow the causes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_training import KERNEL, Loop, simulated
from tests.support.traces import QUICK, Trace
from training_profiler.trace_analysis.report_figures import gap_causes, trace_data
from training_profiler.trace_analysis.report_views import render_view
from training_profiler.trace_analysis.rules_findings import not_checked, recommendations, saving_ms

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
    measured = sum(gap.length_ns for gap in found.gaps if gap.cause == cause)
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
    assert [(edge.cause, edge.in_scope_ns / US, edge.next_name) for edge in found.edges] == [
        ("data loader", answer.before_us, KERNEL),
        ("host stall", 8000, ""),
    ]
    codes = by_code(found)
    assert saving_ms(codes["data-loading-bound"]) == pytest.approx(answer.before_us / 1000, rel=0.01)
    assert "main cause of idle time: data loader" in codes["gpu-idle"].message
    text = render_view("trace", found, "host_self")
    assert "  after: 8.000 ms, host stall (host in aten::sort)" in text


def test_nothing_is_worth_nothing_and_no_step_count_is_zero(tmp_path):
    trace, _ = simulated(Loop(is_marked=False, read=True, loader_us=700))
    for finding in recommendations(trace.analysed(tmp_path)):
        assert saving_ms(finding) is None or saving_ms(finding) >= 0.05
        assert " 0 steps" not in finding.message


@pytest.mark.parametrize("loop", [Loop(loses=frozenset(range(40))), Loop(loses=frozenset({5}), kernels=10)])
def test_lost_kernels_are_recognised_and_alarms_held_back(loop, tmp_path):
    trace, answer = simulated(loop)
    found = trace.analysed(tmp_path)
    message = next(iter(found.doubts.values()))
    assert message.startswith(f"{len(loop.loses)} of {answer.launches} kernel launches have no kernel")
    assert not {"gpu-idle", "launch-bound", "host-stall", "synchronizing-reads"} & set(by_code(found))
    assert any("gpu-idle" in codes for codes in not_checked(found).values())
    checks = {check["what"]: check["verdict"] for check in trace_data(found)["checklist"]}
    assert checks["GPU utilization"] == "not measured"


@QUICK
@given(LOOPS)
def test_whole_traces_are_not_doubted_and_add_up(tmp_path, loop):
    trace, answer = simulated(loop)
    found = trace.analysed(tmp_path)
    assert not found.doubts
    assert (found.device.busy.total_ns, found.span_ns) == (answer.busy_us * US, answer.span_us * US)
    assert sum(found.gap_lengths_ns) == sum(answer.idle_us.values()) * US
    assert sum(gap_causes(found).values()) == pytest.approx(sum(gap.length_ns for gap in found.gaps) / 1e6)
    for place in found.idle_times:
        assert sum(share for _, share in place.shares) == pytest.approx(1)
        assert place.share_of(place.cause) == max(share for _, share in place.shares)
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
        of_device = [(gap.begin_ns, gap.end_ns) for gap in found.gaps if gap.device == device]
        assert of_device == [(gap.begin_ns, gap.end_ns) for gap in part.gaps]


def test_operator_within_an_annotation_of_its_name_has_its_total(tmp_path):
    trace = Trace().mark("aten::mm", 0, 100).op("aten::mm", 10, 50).kernel("k", 70, 7, launched=(12, 1))
    row = next(row for row in trace.analysed(tmp_path).operators if row.name == "aten::mm")
    assert (row.host_total_ns, row.device_total_ns) == (50_000, 7000)
