from pathlib import Path

import pytest

from training_profiler.trace_analysis.known_names import (
    COPIES,
    LAYOUT,
    TO_NCHW,
    is_flash,
    kind_of,
    lacks_tensor_cores,
    uses_tensor_cores,
)

ROWS = Path(__file__).with_name("kernel_names.tsv").read_text(encoding="utf-8").splitlines()[1:]
KERNELS = [row.split("\t") for row in ROWS]


@pytest.mark.parametrize(("kind", "on_tensor_cores", "flash", "name"), KERNELS)
def test_kind_of_kernel_follows_from_its_name(kind, on_tensor_cores, flash, name):
    assert kind_of(name) == kind
    assert (uses_tensor_cores(name), is_flash(name)) == (on_tensor_cores == "yes", flash == "yes")


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("volta_sgemm_64x64_nt", True),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_ffma_aligna4_alignc4_kernel", True),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128>(cublasGemvParams)", True),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>()", True),
        ("_mm_kernel", False),  # written for Triton: its name does not show what it computes on
        ("matmul_k(float*, float*, float*, int, int, int)", False),
        ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", False),
    ],
)
def test_only_names_of_libraries_show_that_tensor_cores_are_not_used(name, lacks):
    assert lacks_tensor_cores(name) is lacks


def test_table_has_at_least_120_kernels():
    assert len({name for *_, name in KERNELS}) >= 120


def test_name_of_10_kb_is_unclassified():
    assert kind_of("x" * 10_000) == "unclassified"


@pytest.mark.parametrize(
    ("name", "is_copy"),
    [("cudaMemcpyAsync", True), ("hipMemsetAsync", True), ("cuMemcpyHtoD_v2", True), ("aten::_copy_from", True),
     ("aten::copy_", False), ("xcudaMemcpy", False), ("urEnqueueUSMFill", True)],
)  # fmt: skip
def test_a_name_that_begins_like_a_copy_is_one(name, is_copy):
    assert (COPIES.search(name) is not None) == is_copy


OF_LAYOUT = (
    "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>",
    "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, true, false>()",
    "void nhwcToNchwKernel<float, float, float, false, true>()",
    "batched_transpose_32x32_pack_2x2_ediv_2x2_half",
    "batched_transpose_16x32_dword",
)
OF_NO_LAYOUT = (
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 1024, true, 1>",
    "void at::native::batched_transpose_kernel<float>()",
    "transpose_NCHW2CNHW_V2_2D_WG_off64",
)


@pytest.mark.parametrize("name", OF_LAYOUT + OF_NO_LAYOUT)
def test_conversions_of_layout_are_known_by_name(name):
    assert bool(LAYOUT.search(name)) == (name in OF_LAYOUT)
    assert bool(TO_NCHW.search(name)) == ("nhwcToNchw" in name)
