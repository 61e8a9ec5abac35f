"""What names say: the kind of a kernel (of CUDA and ROCm), and calls of the runtime that copy, wait and allocate.

The first row that matches the name of a kernel decides. A kernel that matches none is ``unclassified``; reports always
show the share of kernel time that is unclassified.
"""

import re
from functools import cache
from typing import Final

from training_profiler.base.backends import RUNTIME_CALL

COMMUNICATION: Final = "communication"
ATTENTION: Final = "attention"
MATMUL: Final = "matmul"
CONVOLUTION: Final = "convolution"
NORM: Final = "normalization"
OPTIMIZER: Final = "optimizer"
REDUCTION: Final = "reduction"
EMBEDDING: Final = "embedding"
POOLING: Final = "pooling"
COPY: Final = "copy"
ELEMENTWISE: Final = "elementwise"
OTHER_KNOWN: Final = "other known"
UNCLASSIFIED: Final = "unclassified"

# NCCL and RCCL (ncclKernel_, ncclDevKernel_, ncclSymkDevKernel_), oneCCL, HCCL, NVSHMEM and rocSHMEM, expert-parallel
# libraries (DeepEP, also as dpsk::ep and UCCL; Perplexity's a2a; MORI), torch's symmetric-memory kernels (multimem_*,
# one_shot_all_reduce), vLLM's, SGLang's and TensorRT-LLM's custom all-reduce, MSCCL++, user buffers. A warp or a block
# has an all-reduce of its own, which is none between devices.
_COMMUNICATION: Final = (
    r"nccl|rccl|oneccl|\b(xh|x|h|)ccl(::|_)|nvshmem|rocshmem|deep_?ep|\bep::|uccl|\bmori::|\ba2a::|mscclpp?|multimem_|multimem::"
    r"|(inter|intra)node(_ll)?::|userbuffers_|_pushrecv|_pushsend|cross_device_reduce"
    r"|(?<!warp)(?<!warp_)(?<!block)(?<!block_)all_?reduce"
    r"|all_?to_?all|moeA2A|all_?gather_kernel|reduce_?scatter_kernel|symm(etric)?_?mem|quickreduce|lamport"
)
# Writes into the cache of keys and values: vLLM's reshape_and_cache_flash, FlashInfer's append, SGLang's store_kvcache.
_CACHE: Final = (
    r"and_cache|(append|store|write|copy|set|move)_?\w*?kv_?(cache|buffer)|kv_?cache_?(copy|store|write|append)"
)
_ATTENTION: Final = (
    r"flash(?!infer)|PagedKVCache|RaggedKVCache|scaled_dot_product|\bsage_|SageAttn|fmha|mha_fwd|mha_bwd|fused_?attention|attention|sdpa|softmax_warp_.*masked|paged_attn|\bmla_|_mla_"
    r"|aotriton|attn_fwd|attn_bwd|bwd_kernel_dk_dv|bwd_kernel_dq|ck_tile.*fmha"
)
_NORM: Final = (
    r"batch_?norm|layer_?norm|group_?norm|rms_?norm|\bbn_(fw|bw)|RowwiseMoments|instance_?norm|GammaBetaBackward"
)
_EMBEDDING: Final = (
    r"(?<!rotary_)embedding|pooled_emb|indexSelect|index_select|gather_kernel|_scatter_gather|bounds_check_indices"
)
_MATMUL: Final = (
    r"(?<!fb)gemm|gemv|cutlass::Kernel|cutlass.*(tensorop|wgmma)|cublas|\bCijk_|_Cijk_|tensile|nvjet|dot_kernel|_mm(_|$)"
    r"|\bbmm_|matmul|splitK|wmma|MT\d+x\d+x\d+|wgmma|marlin|fused_moe|cutlass_kernels|hipblaslt|^fc-dtype"
)
_CONVOLUTION: Final = (
    r"conv(?!ert)|(?<=\d)cudnn_|dgrad|wgrad|fprop|winograd|implicit|scudnn|cudnn::(cnn|detail)|miopen|igemm|xdlops|im(2d)?2col|col2im"
    # cuDNN's convolutions by Fourier transform.
    r"|fft[12]d_[rc]2[rc]_|flip_filter"
    r"|cudnn_infer|nchwToNhwc|nhwcToNchw|naive_conv|compute\w*OffsetsKernel|SubTensorOp|cudnn::ops"
)
_REDUCTION: Final = (
    r"reduce|softmax|nll_?loss|NLLCriterion|cross_entropy|norm_kernel|vector_norm|sum_kernel"
    r"|scan|sort|topk|cub::|rocprim::|Radix"
)
_ELEMENTWISE: Final = (
    r"elementwise|pointwise|vectorized|unrolled|dropout|distribution|random|philox|index|where"
    r"|rotary|\brope|_rope"
    r"|act_and_mul|silu|gelu|swiglu|quantize|_quant(_|\b)|future_token_ids|(compute|clamp)_position|kv_indices"
)
_OTHER_KNOWN: Final = (
    r"at::native|at::cuda|at_cuda_detail|thrust|caffe2|c10::|fbgemm_gpu|moe::dev|\bmoe_|_routing_|_bitmatrix"
    r"|to_dense_representation|-dtype_"
    r"|^triton__\d"  # Inductor of torch 2.0: the name shows neither a reduction nor pointwise operations
)
ROWS: Final = (
    # Names of Inductor kernels list all fused operators; only the prefix shows the kind.
    (ELEMENTWISE, r"^triton_(poi|for|unk)_"),
    (REDUCTION, r"^triton_(red|per|split_scan|mix_order)_"),
    (COMMUNICATION, _COMMUNICATION),
    (OPTIMIZER, r"adam|sgd|adagrad|lamb_|multi_tensor_apply|FusedOptimizer|foreach|rmsprop|lion_"),
    (COPY, _CACHE),
    (ATTENTION, _ATTENTION),
    (NORM, _NORM),
    (EMBEDDING, _EMBEDDING),
    (POOLING, r"pool"),
    (CONVOLUTION, _CONVOLUTION),
    (MATMUL, _MATMUL),
    (COPY, r"copy|transpose|CatArray|aten::cat|chunk_cat|permute|memcpy|memset|fill"),
    (REDUCTION, _REDUCTION),
    (ELEMENTWISE, _ELEMENTWISE),
    # Names of MTIA end with the type: add-dtype_Float.
    (ELEMENTWISE, r"^(aten::)?\w*?(add|sub|mul|div|divide|sqrt|sigmoid|log2|clip|where)\w*(\.out)?-dtype_"),
    (OTHER_KNOWN, _OTHER_KNOWN),
)

_FLASH_NAMES: Final = (
    r"flash(?!infer)|PagedKVCache|RaggedKVCache|\bsage_|SageAttn|fmha|mha_fwd|mha_bwd|cudnn.*sdpa|aotriton"
    r"|attn_fwd|attn_bwd|mem_?eff|efficient_attention|unified_attention"
)
# Names of fused kernels list operators, and some writes into a cache only have "flash" in their name.
_NOT_FLASH_NAMES: Final = rf"^triton_(poi|for|unk|red|per|split_scan|mix_order)_|{_CACHE}"
# Volta to Blackwell, as cuBLAS, cuDNN, CUTLASS 2 and 3, DeepGEMM and TensorRT-LLM (bmm_*_sm100f) name them. On AMD's
# Instinct MFMA: Tensile's MI16x16x16, Composable Kernel's and MIOpen's xdl(ops), MIOpen's igemm_*_gtcx. Products of 8
# and 4 bits run on nothing else. MIOpen's SubTensorOpWithScalar1d is an elementwise kernel in spite of its name.
_TENSOR_CORE_NAMES: Final = (
    r"(?<!Sub)tensorop(?!eration)|xmma|wgmma|tcgen05|\bnvjet|hmma|\bimma|_imma|bmma|(16816|1688|884|161616)(cudnn|gemm)"
    r"|[shi](16816|1688|884|161616)_|sm\d+_xmma|wmma|mfma|deep_gemm::|_MI\d+x\d+(x\d+)*(_|$)|_xdl|xdlops|gtcx\d*_"
    r"|\b(bmm|gemm)_\w*_sm1\d\d|cutlass::device_kernel<(?!.*flash).*(gmma|umma|MainloopSm|enable_3x)|ck_tile::.*gemm"
    r"|(gemm|\bbmm|matmul)(?!.*quant)\w*(e4m3|e5m2|e2m1|fp8|fp4)|(fp8|a8w8|w8a8|fp4)[\w:]*(gemm|matmul)"
)
# xmma is also the family of cuBLAS's and cuDNN's kernels that multiply on the other cores (FFMA, SIMT).
_ON_OTHER_CORES: Final = r"_(f|d|h)fma2?(_|$)|simt(_|$)|opclasssimt"
# Matrix products and convolutions of libraries on other cores, and what they do beside: split, transform, add up.
_OTHER_CORE_NAMES: Final = (
    rf"{_ON_OTHER_CORES}|[sdcz]gemm|scudnn|gemv|gemmk1|gemmsn|dot_kernel|splitkreduce|reducesplitk|cublas"
    r"|wgrad_alg\d|(dgrad|wgrad|conv)\w*_engine|winograd|fft[12]d_|flip_filter|im(2d)?2col|col2im|offsetskernel"
    r"|nchwtonhwc|nhwctonchw|reduce_wgrad|scalepackedtensor|cudnn::ops|conv_?depthwise|grouped_direct"
)
# MIOpen's batched_transpose_* convert between the default layout and NHWC or NDHWC (its batched_transpose_sol.hpp).
MIOPEN_LAYOUT: Final = re.compile(r"\bbatched_transpose_\d+x\d+_\w*(dword|half|byte)\b", re.IGNORECASE)
TO_NCHW: Final = re.compile("nhwctonchw", re.IGNORECASE)  # MIOpen's do not show it
LAYOUT: Final = re.compile(rf"nchwtonhwc|{TO_NCHW.pattern}|{MIOPEN_LAYOUT.pattern}", re.IGNORECASE)  # for convolutions
MULTI_TENSOR: Final = re.compile(r"multi_tensor_apply|fused_?(adam|sgd|adagrad)|FusedOptimizer", re.IGNORECASE)
# Small letters on both sides: to search without regard to case takes several times as long.
_ROWS: Final = [(kind, re.compile(pattern.lower())) for kind, pattern in ROWS]
_FLASH: Final = re.compile(_FLASH_NAMES.lower())
_NOT_FLASH: Final = re.compile(_NOT_FLASH_NAMES.lower())
_TENSOR_CORE: Final = re.compile(_TENSOR_CORE_NAMES.lower())
_NO_TENSOR_CORE: Final = re.compile(_ON_OTHER_CORES)
_OTHER_CORE: Final = re.compile(_OTHER_CORE_NAMES)


@cache
def kind_of(name: str) -> str:
    """Return the kind of the kernel with that name."""
    lower = name.lower()
    return next((kind for kind, pattern in _ROWS if pattern.search(lower)), UNCLASSIFIED)


def communicates(name: str) -> bool:
    """Return whether the kernel with that name communicates."""
    return kind_of(name) == COMMUNICATION


@cache
def is_flash(name: str) -> bool:
    """Return whether the kernel with that name computes attention without storing all scores."""
    lower = name.lower()
    return _FLASH.search(lower) is not None and _NOT_FLASH.search(lower) is None


@cache
def uses_tensor_cores(name: str) -> bool:
    """Return whether the kernel with that name computes on tensor cores."""
    lower = name.lower()
    return _TENSOR_CORE.search(lower) is not None and _NO_TENSOR_CORE.search(lower) is None


@cache
def lacks_tensor_cores(name: str) -> bool:
    """Return whether the name of a matrix product or convolution shows that it does not compute on tensor cores.

    The name of a kernel of one's own shows neither.
    """
    return _OTHER_CORE.search(name.lower()) is not None and not uses_tensor_cores(name)


# The prefixes of the runtimes of CUDA and HIP are in the table of backends. Those of XPU are the functions of Unified
# Runtime (ur), of its predecessor (pi) and of Level Zero (ze).
_RUNTIME: Final = rf"^{RUNTIME_CALL}"
_DRIVER: Final = r"^cu"

# Level Zero and Unified Runtime under XPU, and the runtime of MTIA.
_OTHER_COPIES: Final = r"^(ur|pi)\w*(Memcpy|MemBuffer|MemImage|USM\w*Fill)|^zeCommandListAppend(Memory|Image)"
_OTHER_ALLOCATIONS: Final = r"^(ur|piext)USM(Device)?(Alloc|Free)$|^zeMem(AllocDevice|Free)$"
_OTHER_WAITS: Final = r"^(ze|ur|pi)\w*(Synchronize|Wait|Finish)$|^synchronize(Stream)?$"
SYNCHRONIZE: Final = re.compile(rf"{_RUNTIME}\w*Synchronize$|{_DRIVER}(Stream|Ctx|Event)Synchronize|{_OTHER_WAITS}")
# Device memory alone: these calls in steady state mean that the allocator's cache is not enough.
ALLOCATE: Final = re.compile(rf"{_RUNTIME}(Malloc|Free)(Async|Managed|Pitch)?$|{_OTHER_ALLOCATIONS}")
# With pinned host memory and virtual memory: all of them can hold up the host.
ALLOCATE_ANY: Final = re.compile(
    rf"{_RUNTIME}(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|MemCreate|MemMap)|{_OTHER_ALLOCATIONS}"
    r"|^(ur|piext)USM(Host|Shared)Alloc$|^zeMemAlloc"
)
HAS_GRAPHS: Final = re.compile(rf"{_RUNTIME}[A-Z]")  # a call of CUDA or HIP, whose work can be replayed as a graph
COPY_OR_FILL: Final = re.compile(rf"{_RUNTIME}Mem(cpy|set)|{_DRIVER}Memcpy|{_OTHER_COPIES}")
# Backends outside of CUDA copy in an operator of their own, and may record no call of their runtime for it.
COPIES: Final = re.compile(rf"{COPY_OR_FILL.pattern}|^aten::_copy_from(_and_resize)?$")
COPY_OR_WAIT: Final = re.compile(
    rf"{_RUNTIME}(Memcpy|StreamSynchronize|EventSynchronize)|{_OTHER_COPIES}|{_OTHER_WAITS}"
)
LAUNCH_KERNEL: Final = re.compile(
    rf"({_RUNTIME}|{_DRIVER})\w*LaunchKernel|{_RUNTIME}LaunchCooperativeKernel|^zeCommandListAppendLaunchKernel"
    r"|^urEnqueueKernelLaunch"
)
LAUNCH_GRAPH: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})GraphLaunch")
BEGIN_CAPTURE: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})StreamBeginCapture")
END_CAPTURE: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})StreamEndCapture")
WAIT_FOR_EVENT: Final = re.compile(rf"({_RUNTIME}|{_DRIVER})StreamWaitEvent")
FREE: Final = re.compile(rf"{_RUNTIME}Free$")  # waits for all work of the device
