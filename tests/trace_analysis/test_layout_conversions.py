"""What the layouts of convolutions cost, and what is saved without their conversions."""

import pytest

from training_profiler.trace_analysis.kernel_names import converts_layout, converts_to_nchw

TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>"
TO_NCHW = "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
OF_MIOPEN = "batched_transpose_32x32_pack_2x2_ediv_2x2_half"


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
