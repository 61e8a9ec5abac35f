# ruff: noqa: E501 names are as they are
"""Names of kernels as traces and sources have them, with what they are: (name, kind, on tensor cores, flash)."""

from typing import Final

from training_profiler.trace_analysis.kernel_names import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    EMBEDDING,
    MATMUL,
    NORM,
    OPTIMIZER,
    OTHER_KNOWN,
    POOLING,
    REDUCTION,
    UNCLASSIFIED,
)

_AT: Final = "void at::native::"
_ANON: Final = "void at::native::(anonymous namespace)::"

# NCCL, RCCL, DeepEP, NVSHMEM, symmetric memory, custom all-reduce.
_COMMUNICATION: Final = (
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_AllReduce_Sum_f32_TREE_LL128(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Reduce_Sum_u8_RING_LL(ncclDevKernelArgs4K const)",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)",
    "ncclSymkDevKernel_ReduceScatter_LL_sum_bf16",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*, int*, long*, int*, void*, int*)",
    "void deep_ep::internode_ll::combine<(bool)0, (int)6144, (int)11, (int)4>(void *, void *, int *)",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*)",
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*)",
    "void primus_turbo::deep_ep::intranode::dispatch<8, 1024, 8192>(int4*)",
    "void nvshmemi_proxy_enforce_consistency_at_target_no_membar()",
    "nvshmemi_barrier_all_on_stream_kernel(int)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void c10d::symmetric_memory::(anonymous)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    "void vllm::cross_device_reduce_2stage<half, 4>(vllm::RankData*, vllm::RankSignals)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>()",
    "void mscclpp::allreduce7<half>(half*, half*)",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<half>>(half const*)",
    "dlslime::intranode_alltoall_kernel(void*)",
    "moeA2ADispatchKernel(tensorrt_llm::kernels::MoeA2ADispatchKernelPointers)",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop(int, int)",
)
# Matrix products that run on tensor cores, or on MFMA.
_MATMUL_TENSOR_CORES: Final = (
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x6_tn_align1>(cutlass_80_tensorop_s1688gemm::Params)",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(Params)",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_nn_align8>(Params)",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
    "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn",
    "ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn",
    "turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_nt",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "volta_h884gemm_256x64_ldg8_tn",
    "turing_s1688gemm_fp16_256x64_ldg8_f2f_tn",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "sm100_xmma_gemm_bf16f16_bf16f16_bf16f32_tn_n_tilesize256x128x64_stage4_warpsize2x2x1",
    "nvjet_hsh_448x128_64x2_1x2_h_bz_bias_NNT",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "nvjet_tst_64x32_64x16_2x2_2cta_h_bz_splitK_TNT",
    "nvjet_tss_64x8_64x16_2x1_v_bz_splitK_TNT",
    "nvjet_qqtst_128x192_128x5_2x1_v_bz_NNT",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8_warpspecialized",
    "cutlass3x_sm100_tensorop_s128x256x16gemm_bgrada_f16_f16_f32_f16_f16_128x256x64",
    "cutlass3x_sm100_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_64x128x64_1x1x1_0_nnn_align8_1sm",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u>(float*)",
    "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<0u, 4096u, 7168u>(int*)",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1",
    "Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0",
    "Custom_Cijk_Ailk_Bljk_BBS_BH_Bias_SAV_UserArgs_MT128x128x64_MI16x16x1_UserArgs_shortname1_gfx950",
)
# Matrix products that do not use them, or whose name does not show it.
_MATMUL_OTHERS: Final = (
    "volta_sgemm_64x64_nt",
    "volta_sgemm_32x32_sliced1x4_tn",
    "ampere_sgemm_128x128_tn",
    "maxwell_sgemm_128x64_nn",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)",
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const> >()",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>(cublasGemvParams)",
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasSplitKParams<float>)",
    "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const> > >()",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float>(cublasGemvParams)",
    "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l>(int4 const*)",
    "bmm_E2m1E2m1_Fp32_sm100f",
    "triton_tem_fused_mm_0",
)
_FLASH: Final = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false> >()",
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, 4, 4, 4> >()",
    "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8> >()",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
    "fmha_cutlassF_f32_aligned_32x128_gmem_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
    "fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel::Params)",
    "fmhaSm100aKernel_QE4m3KvE2m1OE4m3H128PagedKvDenseP16VarSeqQ8Kv128PersistentSwapsAbForGen",
    "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync> >()",
    "void ck_tile::kentry<256, 2, ck_tile::FmhaBwdDQDKDVKernel<ck_tile::BlockFmhaBwd> >()",
    "aiter::fmha_fwd_hd128_bf16_causal",
    "attn_fwd.kd",
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<1, 128, 4, 8> >()",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90> >()",
)
# Inductor names what it fuses by the operators: none of these computes attention, a convolution or a product.
_FUSED_POINTWISE: Final = (
    "triton_poi_fused__scaled_dot_product_flash_attention_permute_3",
    "triton_poi_fused__unsafe_view_cat_mul_split_0.kd",
    "triton_poi_fused_convolution_relu_5",
    "triton_poi_fused__to_copy_mul_silu_split_0.kd",
    "triton_poi_fused_all_gather_into_tensor_2",
    "triton_for_fused_0",
)
_FUSED_REDUCTION: Final = (
    "triton_red_fused__to_copy__unsafe_view_add_mean_pow_1",
    "triton_per_fused_native_layer_norm_7",
    "triton_red_fused__scaled_dot_product_efficient_attention_sum_2",
)
_OTHERS: Final = (
    # attention that is neither flash nor memory-efficient by name; cuDNN's is both
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1", ATTENTION, True, True),
    ("void vllm::paged_attention_v1_kernel<__nv_bfloat16, __nv_bfloat16, 128>(float*)", ATTENTION, False, False),
    ("sm90::fwd::sparse_attn_fwd_kernel<sm90::fwd::KernelTemplate<512, true> >", ATTENTION, False, True),
    # convolutions
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", CONVOLUTION, True, False),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc", CONVOLUTION, True, False),
    ("cutlass3x_sm100_tensorop_s32x256x16_conv3d_fprop_weight_stationary_nq_2d", CONVOLUTION, True, False),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_medium_nhwc_tn_v1", CONVOLUTION, True, False),
    ("volta_scudnn_128x128_stridedB_splitK_medium_nn_v1", CONVOLUTION, False, False),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)", CONVOLUTION, False, False),
    ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)", CONVOLUTION, False, False),
    (
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>()",
        CONVOLUTION,
        False,
        False,
    ),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>()", CONVOLUTION, False, False),
    ("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", CONVOLUTION, False, False),
    ("void cudnn::ops::nchwToNhwcKernel<float, float, float, true, false>()", CONVOLUTION, False, False),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2", CONVOLUTION, True, False),
    (
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_149kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle",
        CONVOLUTION,
        True,
        False,
    ),
    ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight", CONVOLUTION, True, False),
    ("SubTensorOpWithScalar1d", CONVOLUTION, False, False),
    ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", CONVOLUTION, False, False),
    ("naive_conv_ab_nonpacked_fwd_nchw_half_double_half.kd", CONVOLUTION, False, False),
    # normalization
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)", NORM, False, False),
    (f"{_AT}batch_norm_collect_statistics_kernel<at::native::Var, c10::BFloat16, float>()", NORM, False, False),
    (f"{_ANON}vectorized_layer_norm_kernel<float, float>(int, float, float const*)", NORM, False, False),
    (f"{_ANON}GammaBetaBackwardCUDAKernel<float, float>(long, long, float const*)", NORM, False, False),
    (f"{_AT}RowwiseMomentsCUDAKernel<float>(long, float, float const*)", NORM, False, False),
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)", NORM, False, False),
    # optimizers
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>()", OPTIMIZER, False, False),
    (
        f"{_ANON}multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4> >()",
        OPTIMIZER,
        False,
        False,
    ),
    (
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float>()",
        OPTIMIZER,
        False,
        False,
    ),
    # embeddings, pooling
    ("void split_embedding_codegen_forward_unweighted_kernel<float, float, long>()", EMBEDDING, False, False),
    (f"{_ANON}indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>()", EMBEDDING, False, False),
    (f"{_AT}embedding_backward_feature_kernel<float, float, long>()", EMBEDDING, False, False),
    ("void permute_pooled_embs_kernel<float>(float const*, long const*)", EMBEDDING, False, False),
    (f"{_ANON}max_pool_forward_nchw<c10::BFloat16>(int, c10::BFloat16 const*)", POOLING, False, False),
    # copies
    (f"{_ANON}CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)", COPY, False, False),
    (
        f"{_AT}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>()",
        COPY,
        False,
        False,
    ),
    (
        f"{_AT}vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >()",
        COPY,
        False,
        False,
    ),
    (f"{_ANON}chunk_cat_cuda_kernel<float, c10::BFloat16>(float**)", COPY, False, False),
    ("batched_transpose_16x32_half", COPY, False, False),
    ("__amd_rocclr_copyBuffer.kd", COPY, False, False),
    ("__amd_rocclr_fillBufferAligned.kd", COPY, False, False),
    ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int)", COPY, False, False),
    # reductions
    (
        f"{_AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float> > >()",
        REDUCTION,
        False,
        False,
    ),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>()", REDUCTION, False, False),
    ("void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*)", REDUCTION, False, False),
    (
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800>()",
        REDUCTION,
        False,
        False,
    ),
    (f"{_ANON}nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)", REDUCTION, False, False),
    # elementwise
    (
        f"{_AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >()",
        ELEMENTWISE,
        False,
        False,
    ),
    (f"{_ANON}fused_dropout_kernel_vec<float, float, unsigned int, 1, 4>()", ELEMENTWISE, False, False),
    (f"{_ANON}distribution_elementwise_grid_stride_kernel<float, 4>()", ELEMENTWISE, False, False),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", ELEMENTWISE, False, False),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, silu_kernel>(c10::BFloat16*)", ELEMENTWISE, False, False),
    ("_rope_inplace_kernel", ELEMENTWISE, False, False),
    ("void convert_fp8_kernel<__nv_bfloat16>(void*)", UNCLASSIFIED, False, False),
    # known, of no kind
    (f"{_AT}triu_tril_kernel<float, int, true, 4>()", OTHER_KNOWN, False, False),
    ("void moe::dev::routing::routingCustom::routingClusterKernel", OTHER_KNOWN, False, False),
    ("void fbgemm_gpu::_offsets_range_cuda_kernel<long>(long, long, long const*, long*)", OTHER_KNOWN, False, False),
    # a kernel of the user's
    ("my_fancy_kernel(float*)", UNCLASSIFIED, False, False),
)

KERNELS: Final = (
    *((name, COMMUNICATION, False, False) for name in _COMMUNICATION),
    *((name, MATMUL, True, False) for name in _MATMUL_TENSOR_CORES),
    *((name, MATMUL, False, False) for name in _MATMUL_OTHERS),
    *((name, ATTENTION, False, True) for name in _FLASH),
    *((name, ELEMENTWISE, False, False) for name in _FUSED_POINTWISE),
    *((name, REDUCTION, False, False) for name in _FUSED_REDUCTION),
    *_OTHERS,
)
