"""What the layouts of convolutions cost, and what is saved without their conversions."""

import pytest

from tests.support.traces import Trace
from training_profiler.trace_analysis.kernel_names import converts_layout, converts_to_nchw
from training_profiler.trace_analysis.report.figures import saving_ms
from training_profiler.trace_analysis.report.tables import render_traces
from training_profiler.trace_analysis.report.views import render_view
from training_profiler.trace_analysis.rules.recommendations import recommendations
from training_profiler.trace_analysis.rules.registry import RULES


def by_code(trace, tmp_path):
    return {finding.code: finding for finding in recommendations(trace.analysed(tmp_path))}


TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>"
TO_NCHW = "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>"
OF_MIOPEN = "batched_transpose_32x32_pack_2x2_ediv_2x2_half"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32"


@pytest.mark.parametrize(
    ("name", "is_layout"),
    [
        (TO_NHWC, True),
        (TO_NCHW, True),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, true, false>()", True),
        ("void nhwcToNchwKernel<float, float, float, false, true>()", True),
        (OF_MIOPEN, True),
        ("batched_transpose_16x32_dword", True),
        (CONVOLUTION, False),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 1024, true, 1>", False),
        ("void at::native::batched_transpose_kernel<float>()", False),
        ("transpose_NCHW2CNHW_V2_2D_WG_off64", False),
    ],
)
def test_conversions_of_layout_are_known_by_name(name, is_layout):
    assert converts_layout(name) == is_layout
    assert converts_to_nchw(name) == ("nhwcToNchw" in name)


def converting(us, idle=0, steps=1, names=(TO_NHWC, TO_NHWC, TO_NCHW), call_us=5, **top):
    """Return steps of 1000 us with three conversions of ``us`` in all around a convolution, then ``idle`` us."""
    trace = Trace(**top)
    for i in range(steps):
        at, launched = 1000 * i, 1000 * i + 1
        trace.step(i, at, 1000).op("aten::convolution", at, 4 * call_us + 2)
        for name, length in (*((name, us / 3) for name in names), (CONVOLUTION, 1000 - us - idle)):
            trace.kernel(name, at, length, launched=(launched, call_us))
            at, launched = at + length, launched + call_us
    return trace


@pytest.mark.parametrize(
    ("idle", "saved_us"),
    [
        (0, 90),
        (30, 60),  # the host is 30 us behind: the steps cannot be shorter than what it needs
        (80, 15),  # three launches of 5 us
        (700, 15),  # the device waits for the host
        (10, 80),
    ],
)
def test_conversions_save_what_the_device_is_ahead_of_the_host_or_their_launches(idle, saved_us, tmp_path):
    found = RULES["layout-conversions"](converting(90, idle, steps=2).analysed(tmp_path))
    assert saving_ms(found) == pytest.approx(2 * saved_us / 1000)
    assert found.evidence["share_of_busy"] == pytest.approx(90 / (1000 - idle))


def test_the_device_waits_for_the_host_in_some_steps_only(tmp_path):
    trace = converting(90, 0)
    trace.events += [event | {"ts": event["ts"] + 1000} for event in converting(90, 500).step(2, 0, 0).events[:-1]]
    for event in trace.events[len(trace.events) // 2 :]:
        if "correlation" in event["args"]:
            event["args"] = event["args"] | {"correlation": event["args"]["correlation"] + 100}
    assert saving_ms(RULES["layout-conversions"](trace.analysed(tmp_path))) == pytest.approx(0.090 + 0.015)


def test_conversions_beside_other_work_save_what_they_take_alone(tmp_path):
    trace = converting(90).kernel("elementwise_kernel", 0, 30, stream=99)
    assert saving_ms(RULES["layout-conversions"](trace.analysed(tmp_path))) == pytest.approx(0.060)


def test_conversions_that_a_copy_launches_are_those_of_frequent_copies(tmp_path):
    trace = converting(0).op("aten::copy_", 2000, 50).kernel(TO_NHWC, 2010, 400, launched=(2001, 5))
    codes = by_code(trace.step(9, 2000, 1000), tmp_path)
    assert "layout-conversions" not in codes
    assert saving_ms(codes["frequent-copies"]) == 0.4


def test_what_is_in_nhwc_already_is_not_advised_to_be(tmp_path):
    """A convolution has two inputs and one output: here it computes in NCHW."""
    assert "layout-conversions" not in by_code(converting(300, names=(TO_NCHW, TO_NCHW, TO_NHWC)), tmp_path)


@pytest.mark.parametrize(("names", "is_rocm"), [((TO_NHWC,) * 3, False), ((OF_MIOPEN,) * 3, True)])
def test_the_advice_is_channels_last(names, is_rocm, tmp_path):
    found = by_code(converting(90, names=names), tmp_path)["layout-conversions"]
    assert found.message == (
        "Convolutions convert their tensors from NCHW to NHWC and back for 9.0% of the device's busy time (3 kernels)"
    )
    assert "model.to(memory_format=torch.channels_last)" in found.fix
    assert "x.to(memory_format=torch.channels_last)" in found.fix
    assert ("PYTORCH_MIOPEN_SUGGEST_NHWC=1" in found.fix) == is_rocm


def test_the_saving_is_said_to_be_the_least(tmp_path):
    found = converting(900).analysed(tmp_path)
    text = " ".join(render_view("recommendations", found, "host_self").split())
    assert "Could save 0.9 ms or more of 1 step." in text
    assert "Could save 0.9 ms or more of 1 step." in render_traces([found])


def test_a_second_of_conversions_is_claimed_once(tmp_path):
    """The forward pass is all of the device's time: half of it is its saving, and the conversions are a part of it."""
    trace = converting(90).op("autograd::engine::evaluate_function: ConvolutionBackward0", 30, 5)
    found = by_code(trace.kernel("k", 1000, 1, launched=(31, 1)), tmp_path)
    assert saving_ms(found["layout-conversions"]) == pytest.approx(0.090)
    assert saving_ms(found["forward-dominates"]) == pytest.approx(0.500 - 0.090)
