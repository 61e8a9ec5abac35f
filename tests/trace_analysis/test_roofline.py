"""Rates of simulated trainings whose work and time are known."""

import json

import pytest

from tests.support.simulated_training import KERNEL, Loop, simulated
from tests.support.traces import Trace, gpu
from training_profiler.trace_analysis.report.trace_json import trace_data
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.work_formulas import Inputs, call_work

A100 = "NVIDIA A100-SXM4-80GB"  # 312 TFLOP/s in bfloat16, 19.5 in float32, 156 in tf32; 2.039 TB/s
BF16 = "c10::BFloat16"


def inputs(shapes, types=None, values=None):
    given = {"Input Dims": shapes}
    if types is not None:
        given["Input type"] = types
    if values is not None:
        given["Concrete Inputs"] = values
    return given


def work(name, shapes, types=(), values=()):
    found = call_work(name, Inputs(*(json.dumps(list(part)) for part in (shapes, types, values))))
    return None if found is None else (found.flops, found.bytes)


def rates(tmp_path, operator, device=A100, **kwargs):
    arguments = {key: kwargs.pop(key) for key in ("shapes", "types", "values") if key in kwargs}
    trace, _ = simulated(Loop(operator=operator, inputs=inputs(**arguments), **kwargs))
    trace.top["deviceProperties"] = [gpu(device)]
    return trace.analysed(tmp_path)


X, W = [8, 64, 56, 56], [128, 64, 3, 3]
FORWARD = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]  # 28 x 28 positions
Y = [8, 128, 28, 28]
FLOPS = 2 * 8 * 28 * 28 * 128 * 64 * 9
BACKWARD = ["", "", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
Q = [2, 1024, 16, 64]
PAIRS = 2 * 16 * 1024 * 1024 * 64


@pytest.mark.parametrize(
    ("name", "shapes", "values", "flops"),
    [
        ("mm", [[3, 5], [5, 7]], (), 2 * 3 * 5 * 7),
        ("mv", [[3, 5], [5]], (), 2 * 3 * 5),
        ("addmm", [[7], [3, 5], [5, 7]], (), 2 * 3 * 5 * 7),
        ("bmm", [[4, 3, 5], [4, 5, 7]], (), 4 * 2 * 3 * 5 * 7),
        ("linear", [[2, 3, 5], [7, 5], [7]], (), 2 * 6 * 5 * 7),
        ("_scaled_mm", [[3, 5], [5, 7]], (), 2 * 3 * 5 * 7),
        ("convolution", [X, W], FORWARD, FLOPS),
        ("convolution", [X, W], [text.replace("[", "(").replace("]", ")") for text in FORWARD], FLOPS),
        ("cudnn_convolution", [X, W], ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"], FLOPS),
        ("miopen_convolution", [X, W], ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"], FLOPS),
        ("convolution", [[8, 64, 56, 56], [64, 1, 3, 3]], [*FORWARD[:8], "64"], 2 * 8 * 28 * 28 * 64 * 9),
        ("convolution_backward", [Y, X, W], [*BACKWARD, "[True, True, False]"], 2 * FLOPS),
        ("convolution_backward", [Y, X, W], [*BACKWARD, "[False, True, False]"], FLOPS),
        ("cudnn_convolution_backward_input", [[], Y, W], (), FLOPS),
        ("_flash_attention_forward", [Q, Q, Q], [*[""] * 8, "False"], 4 * PAIRS),
        ("_flash_attention_forward", [Q, Q, Q], [*[""] * 8, "True"], 2 * PAIRS),
        ("_flash_attention_backward", [Q, Q, Q, Q], [*[""] * 11, "True"], 5 * PAIRS),
        ("_efficient_attention_forward", [Q, Q, Q], [*[""] * 9, "0"], 4 * PAIRS),
        # Without the values of arguments:
        ("convolution", [X, W], (), None),
        ("convolution_backward", [Y, X, W], (), None),
        ("_flash_attention_forward", [Q, Q, Q], (), None),
        # Shapes that do not go together, packed sequences, a transposed convolution, a mask that is not square:
        ("mm", [[3, 5], [6, 7]], (), None),
        ("mm", [], (), None),
        ("_flash_attention_forward", [[2048, 16, 64]] * 3, [*[""] * 8, "True"], None),
        ("convolution", [X, W], [*FORWARD[:6], "True", "[0, 0]", "1"], None),
        ("_flash_attention_forward", [Q, [2, 99, 16, 64], [2, 99, 16, 64]], [*[""] * 8, "True"], None),
    ],
)
def test_flops_follow_from_shapes(name, shapes, values, flops):
    assert work(f"aten::{name}", shapes, values=values)[0] == flops


@pytest.mark.parametrize(
    ("name", "shapes", "types", "moved"),
    [
        ("mm", [[3, 5], [5, 7]], [BF16, BF16], 2 * (15 + 35 + 21)),
        ("addmm", [[7], [3, 5], [5, 7]], ["float"] * 3, 4 * (7 + 15 + 35 + 21)),
        ("add", [[4, 8], [8], []], ["float", "float", "Scalar"], 4 * (32 + 8 + 32)),
        ("add_", [[4, 8], [4, 8], []], ["longint", "longint", "Scalar"], 8 * 3 * 32),
        ("relu", [[4, 8]], [BF16], 2 * 64),
        ("fill_", [[4, 8], []], ["float", "Scalar"], 4 * 32),
        ("copy_", [[4, 8], [4, 8], []], [BF16, "float", "Scalar"], 32 * 2 + 32 * 4),
        ("sum", [[4, 8]], ["double"], 8 * 32),
        ("_softmax", [[4, 8]], ["float"], 4 * 64),
        ("add", [[4, 8], [4, 8]], ["float", BF16], None),
        ("add", [[4, 8], [4, 8]], [], None),
        ("mul", [[4, 8], [4, 8]], ["c10::complex<float>"] * 2, None),
        ("_scaled_mm", [[3, 5], [5, 7]], ["c10::Float8_e4m3fn"] * 2, None),
    ],
)
def test_least_bytes_follow_from_shapes_and_types(name, shapes, types, moved):
    assert work(f"aten::{name}", shapes, types)[1] == moved


def test_operators_without_a_formula_have_no_rate(tmp_path):
    assert work("aten::sort", [[4]]) is None
    assert rates(tmp_path, "aten::sort", shapes=[[4]]).roofline.rates == ()


def test_rates_of_a_known_product(tmp_path):
    size = [4096, 4096]
    found = rates(tmp_path, "aten::mm", shapes=[size, size], types=[BF16, BF16], steps=2, kernels=3, kernel_us=1000)
    (rate,) = found.roofline.rates
    assert (rate.calls, rate.device_ns, rate.flops) == (6, 6_000_000, 6 * 2 * 4096**3)
    assert rate.tflops == pytest.approx(137.44, rel=1e-4)
    assert rate.tb_s == pytest.approx(3 * 2 * 4096**2 / 1e-3 / 1e12)
    assert (rate.bound, rate.is_above_roof) == ("compute", False)
    assert rate.share_of_roof == pytest.approx(137.44 / 312, rel=1e-4)
    assert found.roofline.rated_ns == found.roofline.kernel_ns == 6_000_000


def test_an_element_wise_operator_is_bound_by_memory(tmp_path):
    found = rates(tmp_path, "aten::add", shapes=[[10**8], [10**8], []], types=["float"] * 3, kernels=1, kernel_us=1000)
    (rate,) = found.roofline.rates
    assert (rate.flops, rate.bound) == (None, "memory")
    assert rate.tb_s == pytest.approx(1.2)
    assert rate.share_of_roof == pytest.approx(1.2 / 2.039)


def test_float32_on_tensor_cores_has_the_peak_of_tf32(tmp_path):
    given = inputs([[1024, 1024]] * 2, ["float"] * 2)
    trace = Trace(deviceProperties=[gpu(A100)])
    for at, name in ((0, KERNEL), (1000, "ampere_sgemm_tensorop_s1688gemm_tf32")):
        trace.op("aten::mm", at, 20, **given).kernel(name, at + 30, 500, launched=(at + 2, 5))
        given = inputs([[1024, 1024], [1024, 2048]], ["float"] * 2)
    found = {rate.peak_type: rate.peak_tflops for rate in trace.analysed(tmp_path).roofline.rates}
    assert found == {"float32": 19.5, "tf32": 156}


def test_rates_above_the_roof_are_marked(tmp_path):
    found = rates(tmp_path, "aten::mm", shapes=[[4096, 4096]] * 2, types=[BF16] * 2, kernel_us=10)
    (rate,) = found.roofline.rates
    assert rate.share_of_roof > 1
    assert rate.is_above_roof
    assert "Above 100%: faster than the counted work allows." in render_view("roofline", found, "name")
    assert trace_data(found)["roofline"][0]["is_above_roof"] is True


@pytest.mark.parametrize(
    ("device", "types", "lacks"),
    [
        ("Some GPU", [BF16] * 2, ("peak FLOP/s and bandwidth of the device",)),
        ("NVIDIA A100", [BF16] * 2, ("peak bandwidth of the device",)),
        ("Some GPU", None, ("input types", "peak FLOP/s and bandwidth of the device")),
    ],
)
def test_what_is_missing_is_named_and_the_share_unknown(device, types, lacks, tmp_path):
    found = rates(tmp_path, "aten::mm", device, shapes=[[4096, 4096]] * 2, **({"types": types} if types else {}))
    (rate,) = found.roofline.rates
    assert (rate.lacks, rate.share_of_roof, rate.bound) == (lacks, None, "")
    assert rate.tflops == pytest.approx(2 * 4096**3 / 200e-6 / 1e12)
    listed = ", ".join(f"{what} (8.000 ms)" for what in lacks)
    assert f"Not known, by device time: {listed}" in render_view("roofline", found, "name").replace("\n", " ")
    assert found.roofline.rated_ns == 0


def test_copies_of_the_host_are_left_out_and_fills_are_not(tmp_path):
    trace = Trace(deviceProperties=[gpu(A100)])
    given = inputs([[1000], [1000], []], ["float", "float", "Scalar"])
    trace.op("aten::copy_", 0, 20, **given).copy("HtoD (Pageable -> Device)", 30, 10, launched=(2, 5))
    trace.op("aten::zero_", 100, 20, **given)
    trace.kernel("Memset (Device)", 130, 10, cat="gpu_memset", by="cudaMemsetAsync", launched=(102, 5))
    found = trace.analysed(tmp_path)
    assert [(rate.name, rate.bytes) for rate in found.roofline.rates] == [("aten::zero_", 4000)]
    assert "has a known roof" in render_view("roofline", found, "name")


def test_a_captured_call_counts_with_each_replay(tmp_path):
    trace = Trace(deviceProperties=[gpu(A100)])
    trace.call("cudaStreamBeginCapture", 0, 1)
    trace.op("aten::mm", 2, 20, **inputs([[64, 64]] * 2, [BF16] * 2)).call("cudaLaunchKernel", 5, 2, correlation=1)
    trace.call("cudaStreamEndCapture", 30, 1)
    for i in range(3):
        trace.call("cudaGraphLaunch", 100 * (i + 1), 5, correlation=10 + i)
        trace.kernel("gemm", 100 * (i + 1) + 10, 20, correlation=10 + i)
    (rate,) = trace.analysed(tmp_path).roofline.rates
    assert (rate.calls, rate.device_ns, rate.flops) == (3, 60_000, 3 * 2 * 64**3)


def test_an_incomplete_trace_is_marked(tmp_path):
    given = {"shapes": [[64, 64]] * 2, "types": [BF16] * 2}
    mark = "rates can be too high"
    assert mark in render_view("roofline", rates(tmp_path, "aten::mm", loses=frozenset(range(9)), **given), "name")
    assert mark not in render_view("roofline", rates(tmp_path, "aten::mm", **given), "name")


def test_text_fits_the_terminal_and_a_trace_without_kernels_says_so(tmp_path):
    names = {"shapes": [[1024, 96, 647, 3], [1024, 96, 647, 3], []], "types": ["float"] * 3}
    text = render_view("roofline", rates(tmp_path, "aten::cudnn_convolution_backward_input", **names), "name")
    assert max(map(len, text.splitlines())) <= 80
    none = render_view("roofline", Trace().op("aten::mm", 0, 1).analysed(tmp_path), "name")
    assert "no kernels of operators whose work can be counted" in none


def test_ids_that_number_calls_and_operators_on_their_own(tmp_path):
    """ROCm once: the kernel has the id of its call, which is that of another operator."""
    trace = Trace(deviceProperties=[gpu(A100)])
    for i in range(4):
        trace.op("aten::mm", 100 * i, 20, **{"External id": i + 1} | inputs([[64, 64], [64, 64]], [BF16, BF16]))
        trace.call("hipExtModuleLaunchKernel", 100 * i + 5, 5, **{"External id": 2 * i + 2})
        trace.kernel("Cijk_Ailk_Bljk_HHS_BH_MT64x128x32_MI16x16x16x1", 100 * i + 20, 50, **{"External id": 2 * i + 2})
    found = trace.analysed(tmp_path)
    (rate,) = found.roofline.rates
    assert (rate.calls, rate.device_ns) == (4, 200_000)
    assert found.kernels.without_launch == 0
