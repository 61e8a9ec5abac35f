import pytest

from tests.support.traces import AUTOGRAD, LOOP, Trace
from training_profiler.trace_analysis.gaps import CAUSES
from training_profiler.trace_analysis.rules.recommendations import recommendations


def between(*host, launched=(95, 2), length=90, **kwargs):
    """Return a trace with a gap from 10 to 10 + length us; ``host`` are the host events during it."""
    trace = Trace().step(1, 0, 500).kernel("k", 0, 10, launched=(0, 1))
    for category, name, ts, dur, *tid in host:
        trace.event(category, name, ts, dur, tid=tid[0] if tid else LOOP)
    trace.kernel("k", 10 + length, 10, launched=launched, **kwargs)
    return trace.op("the last", 490, 5)


CASES = {
    "data loader": between(
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 80),
        ("cpu_op", "aten::stack", 20, 60),
    ),
    "allocation": between(("cpu_op", "aten::empty", 10, 80), ("cuda_runtime", "cudaMalloc", 12, 70)),
    "blocking copy": between(("cpu_op", "aten::copy_", 10, 80), ("cuda_runtime", "cudaMemcpyAsync", 12, 70)),
    "synchronize": between(("cuda_runtime", "cudaStreamSynchronize", 12, 70)),
    "launch-bound": between(("cpu_op", "aten::mm", 10, 80)),
    "python between launches": between(("cpu_op", "aten::mm", 88, 5)),
    "waiting for communication": between(launched=(2, 1))
    .kernel("ncclDevKernel_AllReduce", 300, 10)
    .kernel("k", 400, 10, launched=(301, 2)),
    "waiting for another stream": between(launched=(2, 1)).kernel("k", 0, 95, device=1),
    "launched, started late": between(launched=(2, 1)),
    "host stall": between(("cpu_op", "aten::sort", 10, 5900), launched=(5995, 1), length=6000),
    "inside a graph": Trace()
    .call("cudaGraphLaunch", 0, 5, correlation=70)
    .kernel("k", 10, 10, correlation=70)
    .kernel("k", 100, 10, correlation=70),
    "recording": between(("user_annotation", "(profiler)", 10, 80), ("cuda_runtime", "cudaEventQuery", 20, 5)),
    "work not recorded": between(launched=(2, 1), length=1100),
    "unknown": Trace().kernel("k", 0, 10).kernel("k", 100, 10),
}


@pytest.mark.parametrize("cause", CASES)
def test_gap_cause_is_the_activity_of_the_host(cause, tmp_path):
    assert cause in [place.gap.cause for place in CASES[cause].analysed(tmp_path).gaps]


def test_every_cause_has_a_case():
    assert set(CASES) == set(CAUSES)


@pytest.mark.parametrize(("length", "count"), [(29.999, 0), (30, 1)])
def test_a_gap_counts_from_30_us(length, count, tmp_path):
    assert len(Trace().kernel("k", 0, 10).kernel("k", 10 + length, 10).analysed(tmp_path).gaps) == count


def test_gap_between_collectives_is_a_wait_for_communication(tmp_path):
    trace = Trace().op("a", 0, 1).kernel("ncclDevKernel_AllReduce", 0, 10, launched=(0, 1))
    trace.kernel("k", 100, 10, launched=(2, 1)).op("b", 200, 1)
    assert trace.analysed(tmp_path).gaps[0].gap.cause == "waiting for communication"


def test_larger_of_two_causes_is_named_with_its_part(tmp_path):
    trace = between(("cuda_runtime", "cudaStreamSynchronize", 10, 50), ("cpu_op", "aten::mm", 60, 40), launched=(98, 2))
    gap = trace.analysed(tmp_path).gaps[0].gap
    assert (gap.cause, gap.length_ns) == ("synchronize", 90_000)
    assert dict(gap.shares) == pytest.approx({"synchronize": 50 / 90, "launch-bound": 40 / 90})


def test_wait_for_a_launching_thread_is_not_a_synchronization(tmp_path):
    trace = between(
        ("cuda_runtime", "cudaStreamSynchronize", 10, 80, LOOP), ("cpu_op", "MulBackward0", 10, 80, AUTOGRAD),
        tid=AUTOGRAD,
    )  # fmt: skip
    assert trace.analysed(tmp_path).gaps[0].gap.cause == "launch-bound"


def test_cause_is_unknown_outside_the_host_recording(tmp_path):
    trace = Trace().op("a", 0, 1).kernel("k", 0, 10).kernel("k", 1000, 10)
    assert trace.analysed(tmp_path).gaps[0].gap.cause == "unknown"


def test_each_device_has_its_own_gaps(tmp_path):
    trace = Trace().kernel("k", 0, 10).kernel("k", 100, 10).kernel("k", 0, 60, device=1).kernel("k", 100, 10, device=1)
    found = trace.analysed(tmp_path)
    assert [(place.gap.device, place.gap.length_ns) for place in found.gaps] == [(0, 90_000), (1, 40_000)]
    assert found.gap_lengths_ns == (40_000,)  # in which no device worked


def test_gap_names_the_work_that_ended_it_and_its_launch(tmp_path):
    trace = Trace().step(4, 0, 200).mark("forward_pass", 0, 150).op("aten::mm", 95, 10)
    place = trace.kernel("k", 0, 10).kernel("volta_sgemm", 100, 10, launched=(96, 2)).analysed(tmp_path).gaps[0]
    assert (place.next_name, place.operator, place.section, place.step) == (
        "volta_sgemm", "aten::mm", "forward_pass", "ProfilerStep#4"
    )  # fmt: skip


@pytest.mark.parametrize(("read", "follows"), [((5, 20), True), ((50, 20), False)])
def test_gap_follows_a_read_that_was_open_at_its_begin(read, follows, tmp_path):
    trace = Trace().op("aten::item", *read).call("cudaMemcpyAsync", read[0] + 1, 2).op("a", 200, 1)
    found = trace.kernel("k", 0, 10).kernel("k", 100, 10, launched=(97, 1)).analysed(tmp_path)
    assert [place.follows_read for place in found.gaps] == [follows]


@pytest.mark.parametrize(("call_us", "cause"), [(2500, "host stall"), (900, "launch-bound")])
def test_one_slow_launch_is_a_stall(call_us, cause, tmp_path):
    trace = Trace().op("aten::mm", 20, call_us + 30).kernel("k", 0, 10)
    trace.kernel("gemm", call_us + 45, 10, launched=(30, call_us)).kernel("k", call_us + 60, 10)
    place = trace.analysed(tmp_path).gaps[0]
    assert place.gap.cause == cause
    assert (place.stall.by, place.stall.is_first) == (("aten::mm", True) if cause == "host stall" else ("", False))


@pytest.mark.parametrize(("call_us", "cause"), [(2500, "host stall"), (900, "launch-bound")])
def test_one_slow_launch_is_a_stall_also_if_its_kernel_begins_at_once(call_us, cause, tmp_path):
    trace = Trace().op("aten::mm", 0, call_us + 20).kernel("gemm", 15, 10, launched=(10, call_us))
    trace.op("aten::add", call_us + 30, 20).kernel("k", call_us + 50, 10, launched=(call_us + 40, 5))
    place = trace.analysed(tmp_path).gaps[0]
    assert (place.gap.cause, place.stall.by) == (cause, "aten::mm" if cause == "host stall" else "")


def test_many_launches_in_one_gap_are_launch_bound(tmp_path):
    trace = Trace().kernel("k", 0, 10)
    for at in range(20, 4000, 100):
        trace.op("aten::view", at, 90)
    trace.kernel("k", 4010, 10, launched=(4000, 5))
    assert trace.analysed(tmp_path).gaps[0].gap.cause == "launch-bound"


@pytest.mark.parametrize(("others", "cause"), [(0, "host stall"), (6, "launch-bound")])
def test_no_stall_is_claimed_where_most_launches_are_unknown(others, cause, tmp_path):
    trace = (
        Trace().op("aten::a", 10, 6970).kernel("k", 0, 10, launched=(-5, 2)).kernel("k", 6980, 10, launched=(6970, 5))
    )
    for i in range(others):
        trace.kernel("k", 200 + 1000 * i, 900)
    assert trace.analysed(tmp_path).gaps[-1].gap.cause == cause


def without_launch(host, begin=100, **args):
    """Return a trace with known launches, and a last work without a recorded one; ``host`` runs until it begins."""
    trace = Trace().op("first", 0, 5).kernel("k", 5, 5, launched=(1, 2)).op(host, 10, begin - 5)
    trace.events[-3]["args"]["correlation"] = trace.events[-2]["args"]["correlation"] = 50
    return trace.kernel("dma_request", begin, 10, cat="gpu_memcpy", **args)


@pytest.mark.parametrize(
    ("trace", "cause"),
    [
        (without_launch("aten::mm"), "unknown"),
        (without_launch("aten::_copy_from"), "blocking copy"),
        (without_launch("aten::mm", correlation=49), "launched, started late"),  # before the recording began
        (without_launch("aten::mm", correlation=51), "unknown"),
    ],
)
def test_host_is_not_charged_with_work_that_it_may_have_launched_before(trace, cause, tmp_path):
    found = trace.analysed(tmp_path)
    assert [place.gap.cause for place in found.gaps] == [cause]


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("urEnqueueUSMMemcpy", "blocking copy"),
        ("urEnqueueMemBufferRead", "blocking copy"),
        ("piextUSMEnqueueFill", "blocking copy"),
        ("zeCommandListAppendMemoryCopy", "blocking copy"),
        ("urUSMDeviceAlloc", "allocation"),
        ("zeMemFree", "allocation"),
        ("urEventWait", "synchronize"),
        ("urEnqueueKernelLaunch", "launch-bound"),
    ],
)
def test_calls_of_xpu_have_their_causes(call, cause, tmp_path):
    trace = Trace().op("first", 0, 5).event("xpu_runtime", "urEnqueueKernelLaunch", 1, 2, correlation=1)
    trace.kernel("k", 5, 5, correlation=1).event("xpu_runtime", call, 10, 80)
    trace.event("xpu_runtime", "urEnqueueKernelLaunch", 95, 2, correlation=2).kernel("k", 100, 5, correlation=2)
    assert [place.gap.cause for place in trace.op("last", 110, 5).analysed(tmp_path).gaps] == [cause]


def stalled(trace, at, us=8000, kernel="gemm", operator="aten::mm", launches=True):
    """Add a stall of one operator, in which the launch of the next kernel lies, or after which it does."""
    end = at + us
    trace.op(operator, at, us if launches else us - 50)
    return trace.kernel(kernel, end, 10, launched=(end - 20, 5))


def stalls(trace, tmp_path):
    return [(place.stall.by, place.stall.is_first) for place in trace.analysed(tmp_path).gaps if place.stall.by]


def test_first_run_of_a_kernel_after_a_stall_of_the_operator_that_launches_it(tmp_path):
    assert stalls(stalled(Trace().kernel("k", 0, 10), 20), tmp_path) == [("aten::mm", True)]


def test_a_stall_of_another_operator_than_that_of_the_launch_loads_nothing(tmp_path):
    trace = stalled(Trace().kernel("k", 0, 10), 20, operator="aten::sort", launches=False)
    assert stalls(trace, tmp_path) == [("aten::sort", False)]


def test_the_first_copy_loads_nothing(tmp_path):
    trace = Trace().kernel("k", 0, 10).op("my::load", 20, 8000)
    trace.copy("HtoD (Pinned -> Device)", 8000, 10, launched=(7990, 5))
    assert stalls(trace, tmp_path) == [("my::load", False)]


@pytest.mark.parametrize(("later_us", "is_first"), [(8000, False), (5500, False), (0, True)])
def test_an_operator_that_stalls_as_long_again_does_not_load_a_kernel(later_us, is_first, tmp_path):
    trace = stalled(Trace().kernel("k", 0, 10), 20)
    if later_us:
        stalled(trace, 9000, later_us)
    assert stalls(trace, tmp_path)[0] == ("aten::mm", is_first)


def test_an_operator_that_loads_two_kernels_stalls_twice_for_first_runs(tmp_path):
    trace = stalled(stalled(Trace().kernel("k", 0, 10), 20), 9000, kernel="another_gemm")
    assert stalls(trace, tmp_path) == [("aten::mm", True), ("aten::mm", True)]


def test_a_fill_of_the_workspace_of_a_new_kernel_belongs_to_its_first_run(tmp_path):
    trace = Trace().kernel("k", 0, 10).op("aten::cudnn_convolution", 20, 8000)
    trace.kernel("Memset (Device)", 7995, 1, cat="gpu_memset", launched=(7990, 2), by="cudaMemsetAsync")
    trace.kernel("scudnn", 8010, 5, launched=(8000, 2))
    assert stalls(trace, tmp_path) == [("aten::cudnn_convolution", True)]


@pytest.mark.parametrize(("category", "cause"), [("cpu_op", "python between launches"), ("user_annotation", "unknown")])
def test_without_operators_the_time_between_calls_is_unknown(category, cause, tmp_path):
    trace = Trace().kernel("k", 0, 10, launched=(0, 2)).kernel("k", 100, 10, launched=(95, 2))
    trace.event(category, "a", 120, 5)
    assert trace.analysed(tmp_path).gaps[0].gap.cause == cause


def of_several(*host):
    """Return a trace with a stall of 8 ms, with these operators or annotations in it."""
    trace = Trace().op("first", 0, 5).kernel("k", 5, 5, launched=(1, 2))
    for category, name, ts, dur in host:
        trace.event(category, name, ts, dur)
    return trace.mark("launching", 8000, 30).kernel("k", 8010, 5, launched=(8005, 2))


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (
            [
                ("user_annotation", "clear", 10, 7000),
                ("cpu_op", "aten::zeros", 20, 3500),
                ("cpu_op", "aten::fill_", 30, 3400),
                ("cpu_op", "aten::mul", 3600, 3000),
            ],
            "8.0 ms several operators (aten::zeros, aten::mul) in clear",
        ),
        ([("cpu_op", "aten::add", at, 90) for at in range(20, 7900, 100)], "8.0 ms several operators (short ones)"),
        ([("cpu_op", "aten::zeros", 20, 1500)], "8.0 ms outside of operators"),
        ([("cpu_op", "aten::zeros", 20, 4500)], "8.0 ms aten::zeros"),
    ],
)
def test_a_stall_names_what_the_host_was_in_not_what_ended_it(host, text, tmp_path):
    found = {finding.code: finding for finding in recommendations(of_several(*host).analysed(tmp_path))}
    assert found["host-stall"].message.split(" of the recording: ")[1] == text
