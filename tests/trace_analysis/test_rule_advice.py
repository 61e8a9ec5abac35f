"""What rules advise and count fits what the trace shows."""

import pytest

from tests.support.traces import Trace
from tests.trace_analysis.test_rule import GIB, busy, by_code, frequent_copies, reserved, small_kernels, stepped
from training_profiler.trace_analysis.checklist import checks
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.rules.registry import RULES
from training_profiler.trace_analysis.trace_json import saving_ms


@pytest.mark.parametrize(
    ("kernel", "advised"), [("volta_scudnn_128x64_relu_medium_nn_v1", True), ("volta_sgemm_64x64_nt", False)]
)
def test_channels_last_is_advised_where_convolutions_run(kernel, advised, tmp_path):
    fix = RULES["frequent-copies"](frequent_copies(50).kernel(kernel, 200, 50).analysed(tmp_path)).fix
    assert fix.startswith("Create tensors on the device and in the type they are used in")
    assert ("channels_last" in fix) == advised


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("user_annotation", "## Call CompiledFxGraph fb3en3pmdtsn2pziyq6jiyhnewghozxvyb5vy5kk6ejlff ##"),
        ("cpu_op", "Torch-Compiled Region: 0/0"),
        ("cpu_op", "CompiledFunction"),
    ],
)
def test_torch_compile_is_not_advised_where_it_runs(category, name, tmp_path):
    trace = small_kernels(20).event(category, name, 0, 10)
    assert "torch.compile" not in RULES["small-kernels"](trace.analysed(tmp_path)).fix


@pytest.mark.parametrize(
    ("name", "kernel", "advised"),
    [
        ("Optimizer.step#SGD.step", "vectorized_elementwise_kernel", True),
        ("Optimizer.step#SGD.step", "multi_tensor_apply_kernel", False),  # is one already
        ("autograd::engine::evaluate_function: MmBackward0", "k", False),
    ],
)
def test_an_optimizer_is_advised_where_one_updates_tensor_by_tensor(name, kernel, advised, tmp_path):
    trace = small_kernels(20).mark(name, 0, 5).kernel(kernel, 900, 5, launched=(1, 2))
    fix = RULES["small-kernels"](trace.analysed(tmp_path)).fix
    optimizer = "a foreach or fused optimizer, " if advised else ""
    assert fix == f"Use torch.compile, which fuses kernels, {optimizer}or larger batches"


@pytest.mark.parametrize(
    ("share", "trains", "message", "fix"),
    [
        (0.02, True, "Only 2% of the device's memory is reserved", "Use larger batches, if the training allows it"),
        (0.004, False, "Under 1% of the device's memory is reserved", "Use larger batches, if the program allows it"),
    ],
)
def test_little_memory_is_a_matter_of_the_batch(share, trains, message, fix, tmp_path):
    trace = reserved(GIB // 100, share * 100 * GIB, 100 * GIB)
    if trains:
        trace.op("autograd::engine::evaluate_function: MmBackward0", 0, 5).kernel("k", 900, 5, launched=(1, 2))
    found = RULES["gpu-memory-low"](trace.analysed(tmp_path))
    assert (found.message, found.fix) == (message, fix)


@pytest.mark.parametrize(("kernel_stream", "has_own"), [(99, True), (7, False)])
def test_a_stream_for_communication_is_advised_where_it_has_none(kernel_stream, has_own, tmp_path):
    trace = stepped().kernel("ncclDevKernel_AllReduce", 0, 500).kernel("k", 500, 500, stream=kernel_stream)
    fix = RULES["exposed-communication"](trace.analysed(tmp_path)).fix
    assert ("on a stream of its own" in fix, "that does not need" in fix) == (not has_own, has_own)


def test_a_read_is_not_credited_with_idle_time_after_the_last_work(tmp_path):
    trace = stepped().kernel("k", 0, 100).op("aten::item", 90, 100).op("aten::mm", 200, 700)
    trace.copy("DtoH (Device -> Pageable)", 100, 2, launched=(91, 95))
    assert trace.analysed(tmp_path).edges[-1].follows_read
    assert "synchronizing-reads" not in by_code(trace, tmp_path)


@pytest.mark.parametrize(
    ("waits_us", "saved_us"), [((300, 20, 30, 20), 90), ((300, 20, 30), 350), ((30, 20, 30, 20), 100)]
)
def test_workers_start_once(waits_us, saved_us, tmp_path):
    """The first of at least four waits is the start of workers where it takes over twice as long as usual."""
    trace, at = Trace().step(1, 0, 600), 0
    for us in waits_us:
        trace.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, us)
        at += us + 10
    found = RULES["data-loading-bound"](trace.analysed(tmp_path))
    assert saving_ms(found) == pytest.approx(saved_us / 1000)


@pytest.mark.parametrize(("us", "counted"), [(0, "1001 copies"), (10, "2 copies")])
def test_copies_of_0_us_are_counted(us, counted, tmp_path):
    trace = busy(stepped().copy("HtoD (Pageable -> Device)", 0, 500))
    for i in range(1 if us else 1000):
        trace.copy("HtoD (Pageable -> Device)", 600 + 0.1 * i, us)
    assert counted in RULES["pageable-copies"](trace.analysed(tmp_path)).message


def test_copies_of_unknown_amount_have_none(tmp_path):
    trace = Trace().copy("DtoD", 0, 5).copy("HtoD", 9, 5, bytes=64)
    assert [(copy.name, copy.bytes) for copy in trace.analysed(tmp_path).copies] == [
        ("Memcpy DtoD", None),
        ("Memcpy HtoD", 64),
    ]


def ahead(*kernel_us, is_ahead=True):
    """Return a trace whose host launches one long kernel a step: ahead of the device, or after each has ended."""
    trace, begin, free = Trace(), 0, 0
    for i, (step_us, us) in enumerate(zip((100, 100, 400, 500), kernel_us, strict=True)):
        free = max(free, begin + 10)
        trace.step(i, begin, step_us).op("aten::mm", begin, 20).kernel("k", free, us, launched=(begin + 5, 5))
        begin, free = begin + step_us, free + us
        assert (free > begin) == is_ahead or i > 1
    return trace


def test_steps_that_the_host_launches_ahead_of_an_even_device_do_not_vary(tmp_path):
    found = ahead(300, 300, 305, 300).analysed(tmp_path)
    assert found.step_variation > 0.7
    assert found.settled_variation < 0.02
    assert RULES["step-time-varies"](found) is None
    assert "The host runs ahead: the time that the device needs for each step varies by 1.6%" in render_view(
        "overview", found, "host_self"
    )


@pytest.mark.parametrize(
    "trace",
    [ahead(300, 300, 600, 300), ahead(80, 80, 380, 480, is_ahead=False)],
    ids=["the device is uneven", "the device waits for the host"],
)
def test_steps_vary_where_the_device_does_or_waits_for_the_host(trace, tmp_path):
    assert RULES["step-time-varies"](trace.analysed(tmp_path)) is not None


def test_no_more_is_saved_than_was_waited_for(tmp_path):
    trace = stepped().mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100, 200)
    trace.kernel("k", 0, 100, launched=(0, 1)).op("aten::mm", 300, 190).kernel("k", 490, 510, launched=(480, 5))
    assert saving_ms(RULES["data-loading-bound"](trace.analysed(tmp_path))) == 0.2


def short_of(*idle, **more):
    """Return a trace whose device is busy for 60% of the step, with one gap of 400 us."""
    trace = stepped().kernel("k", 0, 300, launched=(0, 1), **more).op("the last", 990, 5)
    for name, ts, us in idle:
        trace.op(name, ts, us)
    return trace


@pytest.mark.parametrize(
    ("trace", "verdict"),
    [
        (short_of(("aten::mm", 300, 390)).kernel("k", 700, 300, launched=(690, 5)), "the CPU probably cannot keep up"),
        (short_of().kernel("k", 700, 300, launched=(20, 5)), "low"),
        (short_of().kernel("k", 700, 300), "low"),
    ],
)
def test_the_host_is_blamed_for_an_idle_device_only_where_it_is_behind_it(trace, verdict, tmp_path):
    assert f"busy for 60.0% of the steps ({verdict})" in by_code(trace, tmp_path)["gpu-idle"].message


@pytest.mark.parametrize(("count", "fires"), [(10, True), (9, False)])
def test_few_kernels_show_nothing_of_a_program(count, fires, tmp_path):
    trace = stepped()
    for i in range(2 * count):
        trace.kernel("vectorized_elementwise_kernel", 20 * i, 5)
    assert ("small-kernels" in by_code(trace, tmp_path)) == fires


def first_of_many(step_us, kernels=50):
    """Return a trace of one step whose host does nothing for 1.5 ms, and then launches 1 ms of work each 60 us."""
    trace = Trace().op("aten::earlier", -10, 5).step(1, 0, step_us).op("aten::sort", 0, 1500)
    for i in range(kernels):
        at = 1500 + 60 * i
        trace.op("aten::mm", at, 50).kernel("gemm", 1510 + 1000 * i, 1000, launched=(at + 5, 5))
    return trace


def test_the_first_launch_of_a_host_that_runs_ahead_is_not_what_its_steps_wait_for(tmp_path):
    found = first_of_many(5000).analysed(tmp_path)
    assert found.utilization == pytest.approx(0.698)
    assert not {"gpu-idle", "launch-bound"} & by_code(first_of_many(5000), tmp_path).keys()
    overview = render_view("overview", found, "host_self")
    assert "The host runs ahead: the device needs 46.510 ms more for the work of the steps" in overview
    waits = first_of_many(5000, kernels=3)
    assert {"gpu-idle", "launch-bound"} <= by_code(waits, tmp_path).keys()
    assert "runs ahead" not in render_view("overview", waits.analysed(tmp_path), "host_self")


def test_what_one_step_shows_is_said_of_one_step(tmp_path):
    said = "One step is marked: whether others are like it is not known."
    assert said in render_view("recommendations", first_of_many(5000).analysed(tmp_path), "host_self")
    two = first_of_many(5000).step(2, 5000, 9).analysed(tmp_path)
    assert said not in render_view("recommendations", two, "host_self")


def test_an_optimizer_that_the_trace_lacks_passes_no_check(tmp_path):
    trace = Trace().step(1, 0, 900).op("autograd::engine::evaluate_function: MmBackward0", 0, 5)
    found = trace.kernel("k", 10, 50, launched=(1, 2)).analysed(tmp_path)
    assert {check.what: check.verdict for check in checks(found)}["optimizer"] == "not measured"


def test_kernels_that_take_no_time_have_no_share(tmp_path):
    assert "By kind: unclassified 0.0%" in render_view("kernels", Trace().kernel("k", 0, 0).analysed(tmp_path), "name")
