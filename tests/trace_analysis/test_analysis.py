import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.traces import AUTOGRAD, Trace, gpu
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.trace import analyse

KINDS = ("k", "ncclDevKernel", "copy")
PARTS = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns")


def parts(step):
    return tuple(getattr(step, part) for part in PARTS)


def test_step_time_goes_to_compute_before_communication_before_copies(tmp_path):
    trace = Trace().step(1, 0, 100).kernel("k", 10, 20).kernel("ncclDevKernel_AllReduce", 20, 30, stream=9)
    found = trace.copy("HtoD (Pinned -> Device)", 40, 30, stream=11).analysed(tmp_path)
    assert parts(found.steps[0]) == (20_000, 20_000, 20_000, 40_000)
    assert found.utilization_in_steps == 0.6


WORK = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 90), st.integers(0, 30), st.integers(0, 1)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(WORK)
def test_step_parts_equal_a_count_moment_by_moment(tmp_path, work):
    trace = Trace().step(1, 10, 40).step(2, 50, 45)
    doing = {}
    for what, begin, length, device in work:
        if what == "copy":
            trace.copy("DtoD", begin, length, device=device)
        else:
            trace.kernel(what, begin, length, device=device)
        for moment in range(begin, begin + length):
            doing.setdefault(moment, set()).add(what)
    found = trace.analysed(tmp_path)
    for step, (begin, end) in zip(found.steps, [(10, 50), (50, 95)], strict=True):
        expected = dict.fromkeys(("k", "ncclDevKernel", "copy", None), 0)
        for moment in range(begin, end):
            expected[next((what for what in expected if what in doing.get(moment, ())), None)] += 1000
        assert parts(step) == tuple(expected.values())
        assert sum(parts(step)) == step.wall_ns


def test_devices_are_analysed_one_by_one_and_together(tmp_path):
    trace = Trace(deviceProperties=[gpu("A"), gpu("B")]).step(1, 0, 100)
    found = trace.kernel("k", 0, 50).kernel("k", 25, 50, device=1).analysed(tmp_path)
    assert [(device.index, device.name, device.utilization_in_steps) for device in found.devices] == [
        (0, "A", 0.5),
        (1, "B", 0.5),
    ]
    assert found.utilization_in_steps == 0.75


def test_trace_without_steps_has_no_utilization_in_steps(tmp_path):
    found = Trace().kernel("k", 0, 50).analysed(tmp_path)
    assert (found.steps, found.utilization_in_steps, found.step_variation, found.span_ns) == ((), None, None, 50_000)


def test_trace_without_device_has_no_device_figures(tmp_path):
    found = Trace().step(1, 0, 100).op("aten::mm", 0, 50).analysed(tmp_path)
    assert (found.has_gpu, found.utilization_in_steps, found.gaps, found.devices) == (False, None, (), ())


def test_graph_launch_is_the_launch_of_no_single_kernel(tmp_path):
    trace = Trace().op("replay", 0, 20).call("cudaGraphLaunch", 1, 15, correlation=5)
    for i in range(3):
        trace.kernel("k", 20 + 10 * i, 5, correlation=5)
    found = trace.analysed(tmp_path)
    assert (found.kernels.launch_known_count, found.kernels.launch_bound_count, found.kernels.without_launch) == (
        0,
        0,
        0,
    )
    assert [(operator.name, operator.device_total_ns) for operator in found.operators] == [
        ("cudaGraphLaunch", 0),
        ("replay", 15_000),
    ]


def test_operator_named_by_trace_precedes_operator_around_call(tmp_path):
    trace = Trace().op("aten::a", 0, 8, **{"External id": 1}).op("aten::b", 8, 5, **{"External id": 2})
    trace.call("cudaLaunchKernel", 8, 0, correlation=3, **{"External id": 1}).kernel("k", 9, 4, correlation=3)
    times = {operator.name: operator.device_total_ns for operator in trace.analysed(tmp_path).operators}
    assert times == {"aten::a": 4000, "aten::b": 0, "cudaLaunchKernel": 0}


def test_ids_of_calls_that_are_those_of_operators_at_other_times_are_not_used(tmp_path):
    """Torch 2.3 numbers calls apart from operators if it records Python functions."""
    trace = Trace()
    for i in range(4):
        trace.op("aten::mm" if i else "aten::sort", 100 * i, 20, **{"External id": i + 3})
        trace.call("cudaLaunchKernel", 100 * i + 5, 5, correlation=i + 1, **{"External id": i + 1})
        trace.kernel("k", 100 * i + 20, 7, correlation=i + 1, **{"External id": i + 1})
    rows = {row.name: row.device_total_ns for row in trace.analysed(tmp_path).operators}
    assert (rows["aten::sort"], rows["aten::mm"]) == (7000, 21_000)


def test_device_time_without_operator_belongs_to_the_call(tmp_path):
    found = Trace().kernel("k", 9, 4, launched=(0, 1)).analysed(tmp_path)
    assert [(operator.name, operator.device_self_ns) for operator in found.operators] == [("cudaLaunchKernel", 4000)]


def test_device_time_of_operator_includes_operators_it_calls(tmp_path):
    trace = Trace().op("aten::linear", 0, 20).op("aten::addmm", 1, 10).kernel("k", 30, 7, launched=(2, 1))
    found = {
        operator.name: (operator.device_self_ns, operator.device_total_ns, operator.calls)
        for operator in trace.analysed(tmp_path).operators
    }
    assert found == {"aten::linear": (0, 7000, 1), "aten::addmm": (7000, 7000, 1), "cudaLaunchKernel": (0, 0, 1)}


def test_recursive_operator_counts_once_in_its_total(tmp_path):
    found = Trace().op("aten::to", 0, 20).op("aten::to", 5, 10).analysed(tmp_path).operators[0]
    assert (found.calls, found.host_self_ns, found.host_total_ns) == (2, 20_000, 20_000)


def test_calls_with_different_shapes_have_separate_lines(tmp_path):
    trace = (
        Trace()
        .op("aten::mm", 0, 5, **{"Input Dims": [[2, 3], [3, 4]]})
        .op("aten::mm", 10, 7, **{"Input Dims": [[8, 8]]})
    )
    found = trace.analysed(tmp_path)
    assert [(operator.name, operator.calls, operator.shapes) for operator in found.operators] == [("aten::mm", 2, "")]
    assert [(operator.shapes, operator.host_self_ns) for operator in found.operators_by_shape] == [
        ("[[8,8]]", 7000), ("[[2,3],[3,4]]", 5000)
    ]  # fmt: skip


def test_autograd_thread_is_in_the_section_of_the_loop(tmp_path):
    trace = Trace().step(1, 0, 100).mark("backward_pass", 10, 50).op("aten::mm", 20, 5, tid=AUTOGRAD)
    assert {operator.name: operator.section for operator in trace.analysed(tmp_path).operators} == {
        "aten::mm": "backward_pass"
    }


def test_innermost_section_counts(tmp_path):
    trace = Trace().mark("forward_pass", 0, 100).mark("attention", 10, 50).op("aten::bmm", 20, 5).op("aten::mm", 70, 5)
    assert {operator.name: operator.section for operator in trace.analysed(tmp_path).operators} == {
        "aten::bmm": "attention", "aten::mm": "forward_pass"
    }  # fmt: skip


def test_phase_follows_from_what_launched_the_work(tmp_path):
    trace = Trace().step(1, 0, 1000)
    trace.op("aten::mm", 0, 10).kernel("k", 20, 30, launched=(1, 1))
    trace.op("autograd::engine::evaluate_function: MmBackward0", 100, 10, tid=AUTOGRAD)
    trace.kernel("k", 120, 60, launched=(101, 1), tid=AUTOGRAD)
    trace.mark("Optimizer.step#AdamW.step", 200, 50).kernel("multi_tensor_apply_kernel", 260, 10, launched=(201, 1))
    found = trace.analysed(tmp_path).phases
    assert found.times_ns == {"forward": 30_000, "backward": 60_000, "optimizer": 10_000}
    assert (found.optimizer_kernels, found.multi_tensor_kernels) == (1, 1)


def test_marks_of_a_pipeline_name_the_phases_of_what_has_no_operator_of_autograd(tmp_path):
    trace = Trace().step(1, 0, 1000)
    for number, mark in enumerate(("attn(F)", "attn(B)", "mlp(W)", "pack")):
        trace.mark(mark, 100 * number, 50).kernel("k", 100 * number + 60, 10 + number, launched=(100 * number + 1, 1))
    assert trace.analysed(tmp_path).phases.times_ns == {"forward": 10_000, "backward": 23_000, "optimizer": 0}


def test_collectives_of_the_host_are_named(tmp_path):
    trace = Trace().step(1, 0, 100).mark("gloo:all_reduce", 10, 30, tid=9).mark("gloo:all_reduce", 50, 20, tid=8)
    found = trace.analysed(tmp_path)
    assert [(calls.name, calls.count, calls.total_ns) for calls in found.host_collectives] == [
        ("gloo:all_reduce", 2, 50_000)
    ]
    said = "Communication by threads of the host: gloo:all_reduce 0.050 ms in 2 calls"
    assert said in render_view("overview", found, "host_self")
    assert said in render_view("communication", found, "host_self")


def test_trace_without_backward_pass_has_no_phases(tmp_path):
    trace = Trace().step(1, 0, 100).op("aten::mm", 0, 10).kernel("k", 20, 30, launched=(1, 1))
    assert trace.analysed(tmp_path).phases.times_ns is None


def test_collective_has_its_bytes_and_hidden_time(tmp_path):
    arguments = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16"}
    trace = Trace().kernel("ncclDevKernel_Generic", 0, 40, **arguments).kernel("k", 30, 30, stream=9)
    reduce = trace.analysed(tmp_path).collectives[0]
    assert (reduce.kind, reduce.count, reduce.total_ns, reduce.hidden_ns, reduce.bytes) == (
        "all_reduce",
        1,
        40_000,
        10_000,
        2000,
    )


@pytest.mark.parametrize("arguments", [{}, {"In msg nelems": 10}, {"In msg nelems": 10, "dtype": "unheard of"}])
def test_unrecorded_bytes_are_unknown(arguments, tmp_path):
    assert Trace().kernel("ncclDevKernel_AllGather", 0, 40, **arguments).analysed(tmp_path).collectives[0].bytes is None


def test_memory_peak_has_its_step_and_section(tmp_path):
    trace = Trace(deviceProperties=[gpu(memory=1000)]).step(1, 0, 100).step(2, 100, 100).mark("forward_pass", 110, 50)
    for ts, level in ((10, 100), (120, 400), (130, 200)):
        trace.memory(ts, 1, **{"Total Allocated": level, "Total Reserved": 500})
    memory = trace.analysed(tmp_path).memory[0]
    assert (memory.device, memory.peak_bytes, memory.peak_step, memory.peak_section) == (
        "0",
        400,
        "ProfilerStep#2",
        "forward_pass",
    )
    assert (memory.reserved_peak_bytes, memory.unused_at_peak_bytes, memory.step_end_bytes) == (500, 100, (100, 200))


def test_memory_without_recorded_level_is_the_sum_of_changes(tmp_path):
    trace = Trace().op("a", 0, 1).memory(1, 100).memory(2, 50).memory(3, -120)
    memory = trace.analysed(tmp_path).memory[0]
    assert (memory.peak_bytes, memory.is_peak_relative) == (150, True)


def test_a_hundred_thousand_instants_are_counted(tmp_path):
    trace = Trace().op("a", 0, 1)
    trace.events += [
        {"ph": "i", "name": "[memory]", "ts": i, "args": {"Bytes": 1, "Device Type": 0}} for i in range(100_000)
    ]
    found = trace.analysed(tmp_path)
    assert (found.events, found.memory[0].events) == (100_001, 100_000)


@pytest.mark.parametrize("options", [{}, {"record_shapes": True, "profile_memory": True, "with_stack": True}])
def test_trace_of_installed_torch_is_read(options, tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "a.pt.trace.json.gz"
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=3),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        **options,
    ) as profiler:
        for _ in range(4):
            with torch.profiler.record_function("forward_pass"):
                loss = model(torch.ones(4, 8)).sum()
            loss.backward()
            optimizer.step()
            profiler.step()
    found = analyse(path)
    operators = {operator.name: operator for operator in found.operators}
    assert (found.has_gpu, len(found.steps)) == (False, 3)
    assert operators["aten::linear"].section == "forward_pass"
    assert operators["aten::linear"].calls == 3
    assert operators["aten::linear"].host_total_ns >= operators["aten::addmm"].host_total_ns > 0
    assert bool(found.memory) == bool(options)
    assert bool(found.operators_by_shape) == bool(options)


def captured(trace, counts=(3,), names=None):
    """Add a graph capture with launches of three operators for each count, and return the trace."""
    at = 0
    for count in counts:
        trace.call("cudaStreamBeginCapture", at, 1)
        for i in range(count):
            trace.op(f"aten::op{i % 3}", at + 2 + 10 * i, 8)
            extra = {} if names is None else {"kernel": names[i]}
            trace.call("hipLaunchKernel" if names else "cudaLaunchKernel", at + 4 + 10 * i, 2,
                       correlation=1000 + at + i, **extra)  # fmt: skip
        at += 10 * count + 5
        trace.call("cudaStreamEndCapture", at, 1)
        at += 10
    return trace


def replayed(trace, kernels):
    trace.op("replay", 500, 20).call("cudaGraphLaunch", 505, 10, correlation=7)
    for i, name in enumerate(kernels):
        trace.kernel(name, 520 + 10 * i, 4, correlation=7)
    return trace


def device_times(trace, tmp_path):
    return {row.name: row.device_self_ns for row in trace.analysed(tmp_path).operators if row.device_self_ns}


def test_kernels_of_a_graph_belong_to_the_operators_that_were_captured(tmp_path):
    trace = replayed(captured(Trace()), ["a", "b", "c"])
    assert device_times(trace, tmp_path) == {"aten::op0": 4000, "aten::op1": 4000, "aten::op2": 4000}
    assert trace.analysed(tmp_path).doubts == ()


def test_names_on_the_calls_decide_which_kernel_is_whose(tmp_path):
    kernels = [f"k{i}" for i in range(30)]
    trace = replayed(captured(Trace(), (30,), kernels), kernels[:-1])  # the last call made no kernel
    assert device_times(trace, tmp_path) == {"aten::op0": 40_000, "aten::op1": 40_000, "aten::op2": 36_000}


@pytest.mark.parametrize("counts", [(3, 3), (4,), ()])
def test_kernels_of_a_graph_whose_capture_is_not_clear_stay_with_the_replay(counts, tmp_path):
    assert device_times(replayed(captured(Trace(), counts), ["a", "b", "c"]), tmp_path) == {"replay": 12_000}


@pytest.mark.parametrize("runtime", ["xpu_runtime", "privateuse1_runtime", "hpu_op"])
def test_devices_of_other_kinds_are_read_as_what_they_are(runtime, tmp_path):
    trace = Trace().step(1, 0, 100).op("aten::mm", 0, 20).event(runtime, "urEnqueueKernelLaunch", 5, 5, correlation=3)
    found = trace.kernel("gemm_kernel", 20, 60, correlation=3).analysed(tmp_path)
    assert found.utilization_in_steps == 0.6
    assert {row.name: row.device_total_ns for row in found.operators}["aten::mm"] == 60_000


def test_joined_recordings_that_count_launches_from_1_keep_their_own(tmp_path):
    trace = Trace()
    for begin, operator in ((0, "aten::mm"), (10_000, "aten::add"), (20_000, "aten::mul")):
        trace.op(operator, begin, 20).call("cudaLaunchKernel", begin + 5, 5, correlation=1)
        trace.kernel("k", begin + 20, 7, correlation=1)
    found = trace.analysed(tmp_path)
    rows = {row.name: row.device_total_ns for row in found.operators if row.name.startswith("aten")}
    assert rows == {"aten::mm": 7000, "aten::add": 7000, "aten::mul": 7000}
    assert not found.doubts


def test_a_device_without_a_name_has_none(tmp_path):
    assert Trace(deviceProperties=[{"id": 0, "name": None}]).kernel("k", 0, 1).analysed(tmp_path).device_names == ("",)


def test_work_of_mtia_is_device_work(tmp_path):
    trace = Trace().step(1, 0, 100).op("aten::mm", 0, 20)
    trace.event("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 5, 5, correlation=3)
    for name, ts, args in (
        ("fc-dtype_Float", 20, {}), ("dma_request", 50, {"direction": "DEVICE_TO_HOST", "size": 64}),
        ("event_wait", 70, {"stream": 1}),
    ):  # fmt: skip
        trace.event("mtia_ccp_events", name, ts, 10, pid=9, tid=4, **args)
    found = trace.analysed(tmp_path)
    assert [(device.index, device.device.busy.total_ns) for device in found.devices] == [(9, 20_000)]
    assert [(copy.name, copy.bytes) for copy in found.copies] == [("dma_request", 64)]
    assert [(kernel.name, kernel.kind) for kernel in found.kernels.rows] == [("fc-dtype_Float", "matmul")]
