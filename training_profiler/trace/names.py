"""What the names of kernels and calls tell: a versioned table, for CUDA and ROCm.

Order matters where a name fits several rows: the first one that fits, holds. A kernel that fits none is
``unclassified``; the share of kernel time that is so is always printed.
"""

import re
from functools import cache
from typing import Final

TABLE_VERSION: Final = 1

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

# NCCL and RCCL (ncclKernel_, ncclDevKernel_, ncclSymk), DeepEP and NVSHMEM, torch's symmetric-memory kernels
# (multimem_*, one_shot_all_reduce), vLLM's and TensorRT-LLM's custom all-reduce, MSCCL++.
_COMMUNICATION: Final = (
    r"nccl|rccl|nvshmem|deep_?ep|mscclpp?|multimem_|multimem::"
    r"|(one|two)_?shot_?all_?reduce|cross_device_reduce|custom_?all_?reduce|all_?reduce_fusion"
    r"|symm(etric)?_?mem|quickreduce|lamport"
)
_ATTENTION: Final = (
    r"flash|fmha|mha_fwd|mha_bwd|fused_?attention|attention|sdpa|softmax_warp_.*masked|paged_attn|mla_"
    r"|aotriton|attn_fwd|attn_bwd|bwd_kernel_dk_dv|bwd_kernel_dq|ck_tile.*fmha"
)
_MATMUL: Final = (
    r"gemm|gemv|cutlass::Kernel|cutlass.*(tensorop|wgmma)|cublas|\bCijk_|tensile|nvjet|dot_kernel|_mm_|matmul|splitK"
    r"|wmma|MT\d+x\d+x\d+|wgmma|hgemm|sgemm|bgemm"
)
_CONVOLUTION: Final = (
    r"conv|dgrad|wgrad|fprop|winograd|implicit|scudnn|cudnn::(cnn|detail)|miopen|igemm|xdlops|im2col|col2im"
    r"|cudnn_infer|nchwToNhwc|nhwcToNchw|naive_conv|compute\w*OffsetsKernel|SubTensorOp|cudnn::ops"
)
ROWS: Final = (
    (COMMUNICATION, _COMMUNICATION),
    (OPTIMIZER, r"adam|sgd|adagrad|lamb_|multi_tensor_apply|FusedOptimizer|foreach|rmsprop|lion_"),
    (ATTENTION, _ATTENTION),
    (NORM, r"batch_?norm|layer_?norm|group_?norm|rms_?norm|\bbn_(fw|bw)|RowwiseMoments|instance_?norm|BatchNorm"),
    (EMBEDDING, r"embedding|indexSelect|index_select|gather_kernel|_scatter_gather"),
    (POOLING, r"pool"),
    (CONVOLUTION, _CONVOLUTION),
    (MATMUL, _MATMUL),
    (COPY, r"copy|transpose|CatArray|permute|pointwise_.*cat|memcpy|fill|memset"),
    (
        REDUCTION,
        r"reduce|softmax|log_softmax|nll_?loss|NLLCriterion|cross_entropy|norm_kernel|sum_kernel|scan|sort|topk|cub::|Radix",
    ),
    (ELEMENTWISE, r"elementwise|pointwise|vectorized|triton_|unrolled|dropout|distribution|random|philox|index|where"),
    (OTHER_KNOWN, r"at::native|at::cuda|at_cuda_detail|thrust|caffe2|c10::"),
)
_ROWS: Final = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in ROWS]

FLASH: Final = re.compile(
    r"flash|fmha|mha_fwd|mha_bwd|cudnn.*(sdpa|fprop_sdpa)|aotriton|attn_fwd|attn_bwd|mem_?eff|efficient_attention", re.I
)
# MIOpen's SubTensorOpWithScalar1d is no tensor core's, whatever its name looks like.
# Volta to Blackwell, as cuBLAS, cuDNN, CUTLASS and Triton name them; MFMA on AMD's Instinct.
TENSOR_CORE: Final = re.compile(
    r"(?<!Sub)tensorop|xmma|wgmma|tcgen05|\bnvjet|hmma|imma|bmma|[shi]\d+(16816|1688|884|161616)|(16816|1688|884)gemm"
    r"|sm(80|86|89|90|100|103|120)_xmma|cutlass_(75|80|89|90|100)_(tensorop|wmma)|wmma|fp16.*s884|h884|s884|mfma"
    r"|_MI\d+x\d+x\d+",
    re.IGNORECASE,
)
MULTI_TENSOR: Final = re.compile(r"multi_tensor_apply|fused_?(adam|sgd|adagrad)|FusedOptimizer", re.IGNORECASE)


@cache
def kind_of(name: str) -> str:
    """Return what kind of kernel has that name."""
    return next((kind for kind, pattern in _ROWS if pattern.search(name)), UNCLASSIFIED)
