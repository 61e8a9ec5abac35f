"""Each rule fires above its threshold and is silent below it and without data."""

import pytest

from tests.support.traces import AUTOGRAD, Trace, gpu
from training_profiler.trace_analysis.rules.recommendations import recommendations
from training_profiler.trace_analysis.rules.registry import RULES
from training_profiler.trace_analysis.trace_json import saving_ms

GIB = 2**30
STEP = 1000  # us, of all traces here: one us is 0.1% of step time


def stepped(count=1, **top):
    trace = Trace(**top)
    for i in range(count):
        trace.step(i + 1, STEP * i, STEP)
    return trace


def busy(trace, begin=0, end=STEP):
    """Add a kernel that no rule is about."""
    return trace.kernel("vectorized_elementwise_kernel", begin, end - begin, stream=99)


def data_loading(us):
    return busy(stepped().mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, us))


def idle(us):
    return stepped().kernel("vectorized_elementwise_kernel", 0, us)


def launch_bound(us):
    trace = (
        stepped()
        .op("aten::mm", 100, us)
        .kernel("vectorized_elementwise_kernel", 0, 100)
        .kernel("vectorized_elementwise_kernel", 100 + us, 800 - us, launched=(99 + us, 1))
    )
    return trace.kernel("vectorized_elementwise_kernel", 900, 100)


def blocking_copies(us, call="cudaMemcpyAsync"):
    trace = stepped().kernel("vectorized_elementwise_kernel", 0, 100).call(call, 100, us)
    trace.kernel("vectorized_elementwise_kernel", 100 + us, 900 - us, launched=(98 + us, 2))
    return trace.op("aten::to", 999, 1)


def small_kernels(count, us=9):
    trace = stepped()
    for i in range(count):
        trace.kernel("vectorized_elementwise_kernel", 20 * i, us)
    for i in range(10):
        trace.kernel("vectorized_elementwise_kernel", 500 + 20 * i, 11)
    return trace


def reads(us, name="aten::item"):
    return busy(stepped().op(name, 100, us).copy("DtoH (Device -> Pageable)", 100, 2, launched=(101, 3)))


def frequent_copies(us):
    trace = stepped().op("aten::copy_", 0, 5).kernel("direct_copy_kernel", 10, us, launched=(1, 1))
    return trace.kernel("vectorized_elementwise_kernel", 10 + us, 100 - us)


def layout(us, name="void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>()"):
    return busy(stepped().kernel(name, 0, us, launched=(0, 1)), us)


def pageable(us, direction="HtoD (Pageable -> Device)"):
    return busy(stepped().copy(direction, 0, us))


def allocations(us, name="cudaMalloc"):
    return busy(stepped().call(name, 0, us))


def tensor_cores(us, name="volta_sgemm_64x64_nt", **device):
    trace = Trace(deviceProperties=[gpu(**device)])
    return trace.kernel(name, 0, us).kernel("vectorized_elementwise_kernel", 200, 100 - us)


def math_attention(name="aten::_scaled_dot_product_attention_math"):
    return Trace().op(name, 0, 50).kernel("vectorized_elementwise_kernel", 60, 10, launched=(1, 1))


def optimizer(count, name="vectorized_elementwise_kernel", by="cudaLaunchKernel"):
    trace = stepped().mark("Optimizer.step#SGD.step", 0, 500)
    for i in range(count):
        trace.kernel(name, 2 * i, 1, launched=(2 * i, 1), by=by)
    return busy(trace)


def communication(us):
    return busy(stepped().kernel("ncclDevKernel_AllReduce", 0, us), us)


def step_times(*lengths):
    trace, at = Trace(), 0
    for i, length in enumerate(lengths):
        trace.step(i, at, length)
        at += length
    return trace


def growing(*levels):
    trace = stepped(len(levels))
    for i, level in enumerate(levels):
        trace.memory(STEP * i + 5, 1, **{"Total Allocated": level})
    return trace


def reserved(allocated, of, total=None):
    devices = {} if total is None else {"deviceProperties": [gpu(memory=total)]}
    return Trace(**devices).op("a", 0, 1).memory(1, 1, **{"Total Allocated": allocated, "Total Reserved": of})


def phases(forward=100, backward=200, update=0):
    trace = stepped().op("aten::mm", 0, 10).kernel("vectorized_elementwise_kernel", 0, forward, launched=(0, 1))
    trace.op("autograd::engine::evaluate_function: MmBackward0", 0, 20, tid=AUTOGRAD)
    trace.kernel("vectorized_elementwise_kernel", forward, backward, launched=(1, 1), tid=AUTOGRAD)
    trace.mark("Optimizer.step#SGD.step", 20, 20)
    return (
        trace.kernel("vectorized_elementwise_kernel", forward + backward, update, launched=(21, 1)) if update else trace
    )


def copies(us, direction="HtoD (Pinned -> Device)"):
    return busy(stepped().copy(direction, 0, us), us)


def section(us, name="metrics_computation"):
    return stepped().mark(name, 0, us)


def stalled(us, end=500_000):
    """Return a trace in which the host is in one operator for so long before it launches the next kernel."""
    trace = Trace().op("aten::sort", 10, us - 20).kernel("softmax_kernel", 0, 10)
    return trace.kernel("softmax_kernel", 10 + us, end - 10 - us, launched=(9 + us, 1))


def lost(us):
    """Return a trace with a gap, in which a launch has no kernel."""
    return stalled(us, end=us + 20).call("cudaLaunchKernel", 0, 1, correlation=77)


def unclassified(us):
    return stepped().kernel("my_kernel", 0, us).kernel("softmax_kernel", us, 1000 - us)


# code: traces for which it fires, and for which it is silent: just below, and without what it looks at
CASES = {
    "data-loading-bound": (
        [data_loading(150), stepped().mark("data_loading", 0, 150)],
        [data_loading(149.999), busy(stepped())],
    ),
    "gpu-idle": (
        [idle(799), Trace().kernel("k", 0, 79).kernel("k", 100, 0)],
        [idle(800), stepped().op("a", 0, 1), Trace().kernel("k", 0, 80).kernel("k", 100, 0), lost(100)],
    ),
    "host-stall": ([stalled(5000, end=499_999)], [stalled(4999.999), stalled(5000, end=500_001), lost(5000)]),
    "unclassified-kernels": ([unclassified(50.001)], [unclassified(50), stepped()]),
    "launch-bound": ([launch_bound(101)], [launch_bound(100), stepped().op("a", 0, 900)]),
    "small-kernels": ([small_kernels(11)], [small_kernels(10), small_kernels(11, us=0.4), stepped()]),
    "synchronizing-reads": (
        [reads(10.001), reads(11, "aten::to"), reads(11, "aten::nonzero")],
        [reads(10), busy(stepped().op("aten::item", 0, 500)), stepped().op("aten::item", 0, 500)],
    ),
    "frequent-copies": (
        [frequent_copies(10.001)],
        [
            frequent_copies(10),
            stepped().op("aten::copy_", 0, 900),
            frequent_copies(50).op("vllm::all_reduce", 0, 8),
            frequent_copies(50).mark("FSDP::all_gather_copy_out", 0, 8),
        ],
    ),
    "layout-conversions": (
        [layout(50.001), layout(51, "batched_transpose_32x32_half")],
        [layout(50), layout(500, "transpose_kernel"), stepped(), layout(500).op("aten::copy_", 0, 9)],
    ),
    "blocking-copies": (
        [blocking_copies(101)],
        [
            blocking_copies(100),
            blocking_copies(300, "cudaLaunchKernel"),
            blocking_copies(300).copy("DtoD (Device -> Device)", 50, 5),
            stepped().op("aten::_copy_from", 0, 900),
        ],
    ),
    "pageable-copies": ([pageable(10.001)], [pageable(10), pageable(500, "HtoD (Pinned -> Device)"), stepped()]),
    "allocations": (
        [allocations(10.001), allocations(11, "hipFree")],
        [
            allocations(10),
            allocations(500, "cudaMallocHost"),
            allocations(500).call("cudaStreamBeginCapture", 0, 0).call("cudaStreamEndCapture", 600, 1),
        ],
    ),
    "no-tensor-cores": (
        [tensor_cores(20.001)],
        [
            tensor_cores(20),
            tensor_cores(50, "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn"),
            tensor_cores(50, "matmul_kernel(float*, float*)"),
            tensor_cores(50).kernel("_mm_kernel", 300, 6),  # its name does not show what it computes on
            tensor_cores(50, capability=61),
            tensor_cores(50, name="AMD Instinct MI300X"),
            Trace().kernel("volta_sgemm_64x64_nt", 0, 50),
        ],
    ),
    "math-attention": (
        [math_attention()],
        [
            math_attention("aten::_scaled_dot_product_flash_attention"),
            math_attention().kernel("flash_fwd_kernel", 100, 1),
            Trace().op("aten::_scaled_dot_product_attention_math", 0, 50),
        ],
    ),
    "single-tensor-optimizer": (
        [optimizer(101)],
        [
            optimizer(100),
            optimizer(200, "multi_tensor_apply_kernel"),
            optimizer(200, by="runFunction - job_prep_and_submit_for_execution"),
            stepped(),
        ],
    ),
    "exposed-communication": ([communication(100.001)], [communication(100), stepped()]),
    "step-time-varies": (
        [step_times(80, 90, 100, 110.01), step_times(130, 100, 120)],
        [
            step_times(80, 90, 100, 110),
            step_times(10, 100),
            step_times(500, 100, 105),  # the recording starts in the first
            step_times(50, 100, 105),
        ],
    ),
    "memory-grows": (
        [growing(0, 9_700, 9_800, 9_900)],
        [growing(0, 9_700, 9_700, 9_900), growing(0, 9_802, 9_900, 10_000), growing(0, 1, 1000), stepped(4)],
    ),
    "fragmentation": (
        [reserved(7 * GIB, 9 * GIB), reserved(7 * GIB, 9 * GIB, 17 * GIB)],
        [
            reserved(8 * GIB, 10 * GIB),
            reserved(GIB // 4, GIB),
            reserved(7 * GIB, 9 * GIB, 18 * GIB),  # half of the device is free
            stepped(),
        ],
    ),
    "backward-slow": ([phases(100, 301)], [phases(100, 300), stepped()]),
    "optimizer-heavy": ([phases(update=150.001)], [phases(update=150), stepped()]),
    "forward-dominates": ([phases(600.001, 300)], [phases(600, 300), stepped()]),
    "gpu-memory-high": (
        [reserved(GIB, 90.1 * GIB, 100 * GIB)],
        [
            reserved(GIB, 90 * GIB, 100 * GIB),
            reserved(GIB, 97 * GIB),
            reserved(GIB, 97 * GIB, 100 * GIB).op("vllm::unified_attention", 2, 1),  # reserved on purpose
        ],
    ),
    "gpu-memory-low": ([reserved(GIB, 49 * GIB, 100 * GIB)], [reserved(GIB, 50 * GIB, 100 * GIB), reserved(GIB, GIB)]),
    "data-transfer": (
        [copies(100.001), copies(101, "DtoH (Device -> Pageable)")],
        [
            copies(100),
            copies(500, "DtoD (Device -> Device)"),
            stepped().kernel("Memset (Device)", 0, 500, cat="gpu_memset"),
            copies(500, "without a direction"),
            stepped(),
        ],
    ),
    "side-work": ([section(50.001), section(51, "ema_update")], [section(50), section(500, "forward_pass")]),
}


def by_code(trace, tmp_path):
    return {finding.code: finding for finding in recommendations(trace.analysed(tmp_path))}


def codes(trace, tmp_path):
    return [finding.code for finding in RULES.findings(trace.analysed(tmp_path))]


@pytest.mark.parametrize(("code", "i"), [(code, i) for code, (fires, _) in CASES.items() for i in range(len(fires))])
def test_rule_fires_above_its_threshold(code, i, tmp_path):
    assert code in codes(CASES[code][0][i], tmp_path)


@pytest.mark.parametrize(("code", "i"), [(code, i) for code, (_, silent) in CASES.items() for i in range(len(silent))])
def test_rule_is_silent_below_its_threshold_and_without_data(code, i, tmp_path):
    assert code not in codes(CASES[code][1][i], tmp_path)


def test_every_rule_is_tested_and_named_once():
    assert sorted(rule.code for rule in RULES) == sorted(CASES)


def test_largest_saving_comes_first_unknown_ones_last(tmp_path):
    found = recommendations(data_loading(400).copy("HtoD (Pageable -> Device)", 1000, 500).analysed(tmp_path))
    worth = [saving_ms(finding) for finding in found]
    known = [saving for saving in worth if saving is not None]
    assert worth == sorted(known, reverse=True) + [None] * (len(worth) - len(known))


def test_loader_without_workers_is_named(tmp_path):
    finding = RULES["data-loading-bound"](data_loading(200).analysed(tmp_path))
    assert finding.message == "20.0% of step time is spent waiting for batches from a DataLoader without workers"
    assert finding.evidence == {"share_of_step": 0.2, "threshold": 0.15, "waited_ms": 0.2}


def test_loader_with_workers_is_not_reported_without(tmp_path):
    trace = busy(stepped().mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 200))
    finding = RULES["data-loading-bound"](trace.analysed(tmp_path))
    assert finding.message == "20.0% of step time is spent waiting for batches"


def test_healthy_trace_has_no_recommendation(tmp_path):
    assert codes(busy(stepped(3), 0, 3 * STEP), tmp_path) == []


def test_saving_is_the_mean_over_devices(tmp_path):
    trace = stepped().op("aten::mm", 100, 300)
    for device in (0, 1):
        trace.kernel("k", 0, 100, device=device).kernel("k", 400, 600, device=device, launched=(398, 1))
    found = {finding.code: saving_ms(finding) for finding in recommendations(trace.analysed(tmp_path))}
    assert found["launch-bound"] == pytest.approx(0.299)  # the last us of the gap is the device's


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("cudaLaunchKernel", 'Use torch.compile(mode="reduce-overhead") or CUDA graphs, larger'),
        ("runFunction - job_prep_and_submit_for_execution", "Use torch.compile, larger"),
    ],
)
def test_graphs_are_advised_where_the_runtime_has_them(call, advice, tmp_path):
    trace = stepped().op("aten::mm", 100, 300).kernel("k", 0, 100, launched=(0, 1), by=call)
    trace.kernel("k", 400, 600, launched=(398, 1), by=call)
    finding = RULES["launch-bound"](trace.analysed(tmp_path))
    assert finding.fix.startswith(advice)
    assert finding.message.endswith("of step time")  # nothing on short kernels, of which there are none


def test_fewer_launches_need_nothing_that_is_there_or_not_trained(tmp_path):
    def fix(name, trace):
        trace.op("aten::mm", 100, 300).kernel(name, 0, 100, launched=(0, 1))
        return RULES["launch-bound"](trace.kernel(name, 400, 600, launched=(398, 1)).analysed(tmp_path)).fix

    assert fix("triton_poi_fused_0", stepped()) == "Use CUDA graphs, larger batches, fused operators"
    trained = stepped().mark("Optimizer.step#SGD.step", 0, 50)
    assert "a fused optimizer" in fix("k", trained)


@pytest.mark.parametrize(("memory", "advised"), [("Pageable", True), ("Pinned", False)])
def test_pinned_memory_is_advised_where_copies_are_not_from_it(memory, advised, tmp_path):
    trace = stepped().copy(f"HtoD ({memory} -> Device)", 0, 500).kernel("k", 500, 500)
    assert ("pin_memory" in RULES["data-transfer"](trace.analysed(tmp_path)).fix) == advised


@pytest.mark.parametrize(("launch_us", "advised"), [(490, True), (5, False)])
def test_copies_that_do_not_block_are_advised_a_stream_of_their_own(launch_us, advised, tmp_path):
    trace = stepped().op("aten::copy_", 0, launch_us).copy("HtoD (Pinned -> Device)", 2, 490, launched=(1, 3))
    fix = RULES["data-transfer"](busy(trace, 500).analysed(tmp_path)).fix
    assert ("non_blocking" in fix, "on a stream of its own" in fix) == (advised, not advised)


@pytest.mark.parametrize(("operator_us", "advised"), [(490, True), (5, False)])
def test_copies_from_pageable_memory_are_advised_not_to_block_where_they_do(operator_us, advised, tmp_path):
    trace = stepped().op("aten::copy_", 0, operator_us).copy("HtoD (Pageable -> Device)", 2, 490, launched=(1, 3))
    fix = RULES["pageable-copies"](busy(trace, 500).analysed(tmp_path)).fix
    blocks = " and .to(device, non_blocking=True)" * advised
    assert fix == f"Use pinned memory (Tensor.pin_memory() or DataLoader(pin_memory=True)){blocks}"
    trace.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 1)
    fix = RULES["pageable-copies"](trace.analysed(tmp_path)).fix
    assert fix == f"Use DataLoader(pin_memory=True){blocks}"


def test_copies_to_the_host_are_advised_less_of_them(tmp_path):
    trace = busy(stepped().copy("DtoH (Device -> Pinned)", 0, 500), 500)
    assert RULES["data-transfer"](trace.analysed(tmp_path)).fix.startswith("Keep results on the device")


@pytest.mark.parametrize(("allocations", "is_off"), [(70, True), (20, False)])
def test_a_cache_that_is_off_is_said(allocations, is_off, tmp_path):
    trace = Trace().step(1, 0, 10_000).kernel("k", 0, 9_000)
    for i in range(100):
        trace.op("aten::empty", 50 * i, 5)
        if i < allocations:
            trace.call("cudaMalloc", 50 * i + 1, 10).call("cudaFree", 50 * i + 20, 10)
    assert ("caching allocator is off" in RULES["allocations"](trace.analysed(tmp_path)).fix) == is_off


@pytest.mark.parametrize(
    ("first_us", "advice"), [(300, "Where the device or a library"), (20, "Set PYTORCH_CUDA_ALLOC")]
)
def test_a_single_slow_allocation_does_not_blame_the_cache(first_us, advice, tmp_path):
    trace = stepped().call("cudaFree", 0, first_us).call("cudaMalloc", 400, 20).call("cudaMalloc", 500, 20)
    finding = RULES["allocations"](busy(trace).analysed(tmp_path))
    assert finding.fix.startswith(advice)
    assert ("0.3 ms of it one call" in finding.message) is (first_us == 300)


def test_one_slow_call_alone_does_not_blame_the_cache(tmp_path):
    finding = RULES["allocations"](busy(stepped().call("cudaFree", 0, 300)).analysed(tmp_path))
    assert finding.message == "1 call of cudaMalloc and cudaFree (or HIP's) takes 30.0% of step time"
    assert finding.fix.startswith("Where the device or a library is used for the first time")


def test_advice_about_allocations_fits_the_device(tmp_path):
    trace = busy(stepped())
    for i in range(4):
        trace.event("xpu_runtime", "urUSMDeviceAlloc", 100 * i, 50)
    finding = RULES["allocations"](trace.analysed(tmp_path))
    assert finding.message == "4 calls that allocate or free memory of the device take 20.0% of step time"
    assert "CUDA" not in finding.fix


def test_what_happens_outside_of_the_steps_does_not_count(tmp_path):
    """A model is moved to the device before the first step; the step itself copies for 2 of 100 ms."""
    direction = "HtoD (Pageable -> Device)"
    trace = Trace().step(1, 500_000, 100_000).copy(direction, 500_010, 2000, launched=(500_000, 2))
    trace.kernel("vectorized_elementwise_kernel", 502_010, 97_990)
    for at in range(0, 400_000, 100_000):
        trace.op("aten::copy_", at, 20).copy(direction, at + 10, 80_000, launched=(at + 1, 2))
    found = by_code(trace, tmp_path)
    copies = found["pageable-copies"]
    assert "1 copy from pageable memory takes 2.0% of step time" in copies.message
    assert copies.potential_saving_s == pytest.approx(2e-3)
    assert all(finding.potential_saving_s <= 0.1 for finding in found.values())


def test_copies_at_the_same_time_count_once(tmp_path):
    trace = Trace().step(1, 0, 1000).kernel("vectorized_elementwise_kernel", 200, 800)
    for stream in range(8):
        trace.copy("HtoD (Pageable -> Device)", 0, 400, stream=20 + stream)
    found = by_code(trace, tmp_path)["pageable-copies"]
    assert "8 copies from pageable memory take 40.0% of step time" in found.message


def test_copies_behind_other_work_are_no_time_to_gain(tmp_path):
    trace = stepped().op("aten::copy_", 0, 5).kernel("direct_copy_kernel", 10, 400, launched=(1, 1))
    trace.kernel("vectorized_elementwise_kernel", 110, 600, stream=9)
    found = RULES["frequent-copies"](trace.analysed(tmp_path))
    assert "take 14.3% of its busy time" in found.message
    assert found.potential_saving_s == pytest.approx(100e-6)


def test_copies_from_device_to_device_are_conversions(tmp_path):
    trace = stepped().op("aten::copy_", 0, 900).copy("DtoD (Device -> Device)", 100, 500, launched=(10, 2))
    assert RULES["frequent-copies"](trace.analysed(tmp_path)) is not None


def test_copies_from_the_host_are_no_conversions(tmp_path):
    trace = stepped().op("aten::copy_", 0, 900).copy("HtoD (Pageable -> Device)", 100, 500, launched=(10, 2))
    assert RULES["frequent-copies"](trace.analysed(tmp_path)) is None


@pytest.mark.parametrize(
    ("name", "capability", "advised"), [("k", 90, True), ("triton_poi_fused_0", 90, False), ("k", 60, False)]
)
def test_torch_compile_is_advised_where_it_can_help(name, capability, advised, tmp_path):
    trace = Trace(deviceProperties=[gpu(capability=capability)]).step(1, 0, 1000)
    for i in range(40):
        trace.kernel(name, 20 * i, 5, launched=(20 * i, 2))
    assert ("torch.compile" in RULES["small-kernels"](trace.analysed(tmp_path)).fix) == advised
