"""Each rule fires above its threshold and is silent below it and without data; what it says is in a golden file."""

from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from tests.support.traces import AUTOGRAD, Trace, gpu
from training_profiler.trace_analysis.report_views import render_view
from training_profiler.trace_analysis.rules_findings import recommendations, saving_ms
from training_profiler.trace_analysis.rules_registry import RULES

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


def clocks(*values, name="SM Clock (MHz)", idle=None, device=0, kernel="gemm", cat="kernel"):
    """Return a trace with a sample every ms of which each second one is in a gap, if it has a value when idle."""
    trace, every = Trace(), 1 if idle is None else 2
    for i, value in enumerate(values):
        trace.kernel(kernel, 1000 * every * i, 1000, cat=cat)
        trace.counter(name, 1000 * every * i, value, pid=f"GPU {device} Counters")
        if idle is not None:
            trace.counter(name, 1000 * every * i + 1000, idle)
    return trace.counter(name, 1000 * every * len(values), values[-1], pid=f"GPU {device} Counters")


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


def in_turns(us, overlap=0):
    """Return a step in which two devices work one after the other, so long in all; the host launches late."""
    trace = stepped().op("aten::mm", 0, 900)
    for turn in range(4):
        at = 60 + turn * us / 4
        trace.kernel("vectorized_elementwise_kernel", at, us / 4 + overlap, device=turn % 2, launched=(at - 50, 40))
    return trace


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
    "devices-take-turns": (
        [in_turns(501)],
        [in_turns(500), in_turns(900, overlap=100), in_turns(900).kernel("k", 0, 10_000), busy(stepped())],
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
    "clock-falls": (
        [clocks(1980, 1980, 1880, 1850, 1850, 1850, 1850), clocks(300, 1000, 1980, 1980, 1000, 1000)],
        [
            clocks(1980, 1980, 1965, 1950, 1965, 1950),
            clocks(1980, 1980, 1880, 1870, 1870, 1870, 1870),
            clocks(300, 1000, 1200, 1500, 1980, 1980),  # rises
            clocks(1000, 1000, 1000, 1000, 1000, 1000),  # as the user set it
            clocks(1980, 1980, 1980, 1980, 1980, 1980, idle=345),
            clocks(1980, 1980, 1000, 1000),  # too few
            clocks(1980, 1980, 1000, 1000, 1000, 1000, name="Memory Clock (MHz)"),
            clocks(1980, 1980, 1000, 1000, 1000, 1000, device=1),  # another device
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


WITH_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
TO_DEVICE = "HtoD (Pageable -> Device)"
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def launching(name="k", by="cudaLaunchKernel", trace=None):
    """Return a trace whose host needs 300 of 1000 us for one operator before the next launch."""
    trace = (trace or stepped()).op("aten::mm", 100, 300).kernel(name, 0, 100, launched=(0, 1), by=by)
    return trace.kernel(name, 400, 600, launched=(398, 1), by=by)


def two_devices():
    trace = stepped().op("aten::mm", 100, 300)
    for device in (0, 1):
        trace.kernel("k", 0, 100, device=device).kernel("k", 400, 600, device=device, launched=(398, 1))
    return trace


def small_on(name, capability):
    trace = Trace(deviceProperties=[gpu(capability=capability)]).step(1, 0, 1000)
    for i in range(40):
        trace.kernel(name, 20 * i, 5, launched=(20 * i, 2))
    return trace


def copied(us, memory="Pinned"):
    """Return a trace whose host is for ``us`` in the operator that copies for 490 us."""
    trace = stepped().op("aten::copy_", 0, us).copy(f"HtoD ({memory} -> Device)", 2, 490, launched=(1, 3))
    return busy(trace, 500)


def allocating(count):
    trace = Trace().step(1, 0, 10_000).kernel("k", 0, 9_000)
    for i in range(100):
        trace.op("aten::empty", 50 * i, 5)
        if i < count:
            trace.call("cudaMalloc", 50 * i + 1, 10).call("cudaFree", 50 * i + 20, 10)
    return trace


def slow_first_allocation(us):
    return busy(stepped().call("cudaFree", 0, us).call("cudaMalloc", 400, 20).call("cudaMalloc", 500, 20))


def allocating_on_xpu():
    trace = busy(stepped())
    for i in range(4):
        trace.event("xpu_runtime", "urUSMDeviceAlloc", 100 * i, 50)
    return trace


def copies_before_the_step():
    """A model is moved to the device before the first step; the step itself copies for 2 of 100 ms."""
    trace = Trace().step(1, 500_000, 100_000).copy(TO_DEVICE, 500_010, 2000, launched=(500_000, 2))
    trace.kernel("vectorized_elementwise_kernel", 502_010, 97_990)
    for at in range(0, 400_000, 100_000):
        trace.op("aten::copy_", at, 20).copy(TO_DEVICE, at + 10, 80_000, launched=(at + 1, 2))
    return trace


def copies_at_once():
    trace = Trace().step(1, 0, 1000).kernel("vectorized_elementwise_kernel", 200, 800)
    for stream in range(8):
        trace.copy(TO_DEVICE, 0, 400, stream=20 + stream)
    return trace


def copies_behind_other_work():
    trace = stepped().op("aten::copy_", 0, 5).kernel("direct_copy_kernel", 10, 400, launched=(1, 1))
    return trace.kernel("vectorized_elementwise_kernel", 110, 600, stream=9)


def copies_in_operator(direction):
    return stepped().op("aten::copy_", 0, 900).copy(direction, 100, 500, launched=(10, 2))


def waits(*lengths_us):
    trace, at = Trace().step(1, 0, 600), 0
    for us in lengths_us:
        trace.mark(WITH_WORKERS, at, us)
        at += us + 10
    return trace


def copies_of(us, count):
    trace = busy(stepped().copy(TO_DEVICE, 0, 500))
    for i in range(count):
        trace.copy(TO_DEVICE, 600 + 0.1 * i, us)
    return trace


def reserved_by(share, trains):
    trace = reserved(GIB // 100, share * 100 * GIB, 100 * GIB)
    return trace.op(BACKWARD, 0, 5).kernel("k", 900, 5, launched=(1, 2)) if trains else trace


def ahead(*kernel_us, is_ahead=True):
    """Return a trace whose host launches one long kernel a step: ahead of the device, or after each has ended."""
    trace, begin, free = Trace(), 0, 0
    for i, (step_us, us) in enumerate(zip((100, 100, 400, 500), kernel_us, strict=True)):
        free = max(free, begin + 10)
        trace.step(i, begin, step_us).op("aten::mm", begin, 20).kernel("k", free, us, launched=(begin + 5, 5))
        begin, free = begin + step_us, free + us
        assert (free > begin) == is_ahead or i > 1
    return trace


def short_of(*idle, **more):
    """Return a trace whose device is busy for 60% of the step, with one gap of 400 us."""
    trace = stepped().kernel("k", 0, 300, launched=(0, 1), **more).op("the last", 990, 5)
    for name, ts, us in idle:
        trace.op(name, ts, us)
    return trace


def few_kernels(count):
    trace = stepped()
    for i in range(count):
        trace.kernel("vectorized_elementwise_kernel", 20 * i, 5)
    return trace


def first_of_many(step_us, kernels=50):
    """Return a trace of one step whose host does nothing for 1.5 ms, and then launches 1 ms of work each 60 us."""
    trace = Trace().op("aten::earlier", -10, 5).step(1, 0, step_us).op("aten::sort", 0, 1500)
    for i in range(kernels):
        at = 1500 + 60 * i
        trace.op("aten::mm", at, 50).kernel("gemm", 1510 + 1000 * i, 1000, launched=(at + 5, 5))
    return trace


def small_and_communicating(stream):
    return stepped().kernel("ncclDevKernel_AllReduce", 0, 500).kernel("k", 500, 500, stream=stream)


def read_last():
    trace = stepped().kernel("k", 0, 100).op("aten::item", 90, 100).op("aten::mm", 200, 700)
    return trace.copy("DtoH (Device -> Pageable)", 100, 2, launched=(91, 95))


def waited_less():
    trace = stepped().mark(WITH_WORKERS, 100, 200).kernel("k", 0, 100, launched=(0, 1))
    return trace.op("aten::mm", 300, 190).kernel("k", 490, 510, launched=(480, 5))


def compiled(category, name):
    return small_kernels(20).event(category, name, 0, 10)


def updated(name, kernel):
    return small_kernels(20).mark(name, 0, 5).kernel(kernel, 900, 5, launched=(1, 2))


def overlapping():
    """Return a trace with findings about kernels and idle time, and some kernels that last 40 times as long."""
    trace = Trace(deviceProperties=[gpu()]).step(1, 0, 2000).mark(WITH_WORKERS, 0, 400)
    for i in range(40):
        at = 400 + 40 * i
        trace.op("aten::mm", at, 30)
        trace.kernel("volta_sgemm_64x64_nt", at + 10, 8 if i % 10 else 320, launched=(at + 1, 2))
    return trace


SCENARIOS = {
    "the largest saving comes first, unknown ones last": data_loading(400).copy(TO_DEVICE, 1000, 500),
    "a loader without workers is named": data_loading(200),
    "a loader with workers is not reported without": busy(stepped().mark(WITH_WORKERS, 0, 200)),
    "a clock that falls is named with its device": clocks(1980, 1980, 1400, 1400, 1400, 1400),
    "a healthy trace has no finding": busy(busy(busy(stepped(3)), STEP, 2 * STEP), 2 * STEP, 3 * STEP),
    "the saving is the mean over devices": two_devices(),
    "devices that take turns are one busy system": in_turns(900),
    "and those that work at the same time are not": in_turns(900, overlap=100),
    "nor those that are both idle for most of the time": in_turns(450),
    "where durations are impossible nothing rests on them": overlapping(),
    "graphs are advised where the runtime has them": launching(),
    "and not where it has none": launching(by="runFunction - job_prep_and_submit_for_execution"),
    "kernels that are fused need no fusing": launching("triton_poi_fused_0"),
    "a fused optimizer is advised where one updates": launching(trace=stepped().mark("Optimizer.step#SGD.step", 0, 50)),
    "pinned memory is advised where copies are not from it": stepped().copy(TO_DEVICE, 0, 500).kernel("k", 500, 500),
    "and not where they are": stepped().copy("HtoD (Pinned -> Device)", 0, 500).kernel("k", 500, 500),
    "copies that block are advised not to": copied(490),
    "copies that do not block are advised a stream of their own": copied(5),
    "copies from pageable memory are advised not to block where they do": copied(490, "Pageable"),
    "and only pinned memory where they do not": copied(5, "Pageable"),
    "a loader can pin its batches": copied(490, "Pageable").mark(WITH_WORKERS, 0, 1),
    "copies to the host are advised less of them": busy(stepped().copy("DtoH (Device -> Pinned)", 0, 500), 500),
    "a cache that is off is said": allocating(70),
    "a few allocations do not show that it is off": allocating(20),
    "a single slow allocation does not blame the cache": slow_first_allocation(300),
    "several allocations do": slow_first_allocation(20),
    "one slow call alone does not": busy(stepped().call("cudaFree", 0, 300)),
    "advice about allocations fits the device": allocating_on_xpu(),
    "what happens outside of the steps does not count": copies_before_the_step(),
    "copies at the same time count once": copies_at_once(),
    "copies behind other work are no time to gain": copies_behind_other_work(),
    "copies from device to device are conversions": copies_in_operator("DtoD (Device -> Device)"),
    "copies from the host are none": copies_in_operator(TO_DEVICE),
    "torch.compile is advised where it can help": small_on("k", 90),
    "and not where kernels are compiled": small_on("triton_poi_fused_0", 90),
    "and not on a device that is too old": small_on("k", 60),
    "channels_last is advised where convolutions run": frequent_copies(50).kernel(
        "volta_scudnn_128x64_relu_medium_nn_v1", 200, 50
    ),
    "and not without them": frequent_copies(50).kernel("volta_sgemm_64x64_nt", 200, 50),
    "torch.compile is not advised where its graphs run": compiled(
        "user_annotation", "## Call CompiledFxGraph fb3en3pmdtsn2pziyq6jiyhnewghozxvyb5vy5kk6ejlff ##"
    ),
    "nor where its regions do": compiled("cpu_op", "Torch-Compiled Region: 0/0"),
    "nor where its backward passes do": compiled("cpu_op", "CompiledFunction"),
    "an optimizer is advised where one updates tensor by tensor": updated(
        "Optimizer.step#SGD.step", "vectorized_elementwise_kernel"
    ),
    "and not where it is one already": updated("Optimizer.step#SGD.step", "multi_tensor_apply_kernel"),
    "and not where none is": updated(BACKWARD, "k"),
    "little memory is a matter of the training's batch": reserved_by(0.02, trains=True),
    "or of the program's": reserved_by(0.004, trains=False),
    "communication with a stream of its own": small_and_communicating(99),
    "a stream for communication is advised where it has none": small_and_communicating(7),
    "a read is not credited with idle time after the last work": read_last(),
    "workers start once": waits(300, 20, 30, 20),
    "too few waits show no start": waits(300, 20, 30),
    "a usual first wait is none": waits(30, 20, 30, 20),
    "copies of 0 us are counted": copies_of(0, 1000),
    "as those of 10 us are": copies_of(10, 1),
    "steps that the host launches ahead of an even device do not vary": ahead(300, 300, 305, 300),
    "steps vary where the device does": ahead(300, 300, 600, 300),
    "steps vary where the device waits for the host": ahead(80, 80, 380, 480, is_ahead=False),
    "no more is saved than was waited for": waited_less(),
    "the host is blamed for an idle device where it is behind it": short_of(("aten::mm", 300, 390)).kernel(
        "k", 700, 300, launched=(690, 5)
    ),
    "and not where it launched long before": short_of().kernel("k", 700, 300, launched=(20, 5)),
    "and not where the launch is unknown": short_of().kernel("k", 700, 300),
    "20 kernels show something of a program": few_kernels(20),
    "18 kernels show nothing": few_kernels(18),
    "the first launch of a host that runs ahead is not what its steps wait for": first_of_many(5000),
    "it is where the host does not run ahead": first_of_many(5000, kernels=3),
    "two steps are not said to be one": first_of_many(5000).step(2, 5000, 9),
    "an optimizer that the trace lacks passes no check": Trace()
    .step(1, 0, 900)
    .op(BACKWARD, 0, 5)
    .kernel("k", 10, 50, launched=(1, 2)),
    "kernels that take no time have no share": Trace().kernel("k", 0, 0),
    "copies of unknown amount have none": Trace().copy("DtoD", 0, 5).copy("HtoD", 9, 5, bytes=64),
}
# The view of a claim that is not about findings.
VIEWS = {
    "steps that the host launches ahead of an even device do not vary": "overview",
    "the first launch of a host that runs ahead is not what its steps wait for": "overview",
    "it is where the host does not run ahead": "overview",
    "an optimizer that the trace lacks passes no check": "checklist",
    "devices that take turns are one busy system": "trace",
    "kernels that take no time have no share": "kernels",
    "copies of unknown amount have none": "trace",
}


def said(claim, found):
    """Return all about a trace: each rule's finding by itself, those that are left together, the claim's view."""
    lines = [f"##### {claim}"]
    for finding in RULES.findings(found):
        saving = saving_ms(finding)
        worth = "unknown" if saving is None else f"{saving:.4f} ms"
        lines += [f"{finding.code}: {finding.message}", f"    {finding.fix}", f"    {worth}, {dict(finding.evidence)}"]
    lines.append(f"together: {', '.join(finding.code for finding in recommendations(found)) or 'nothing'}")
    return "\n".join([*lines, render_view(VIEWS.get(claim, "recommendations"), found, "host_self")])


def test_what_is_said_of_each_scenario_is_as_before(tmp_path):
    texts = [said(claim, trace.analysed(tmp_path)) for claim, trace in SCENARIOS.items()]
    assert_golden(Path(__file__).parents[1] / "golden" / "trace_rules.txt", "\n\n".join(texts) + "\n")
