import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training_profiler.trace_analysis import kernel_names, runtime_calls
from training_profiler.trace_analysis.kernel_names import compiled

PATTERNS = (
    r"\bep::|a2a",
    r"(?<!fb)gemm|(?<!warp)(?<!warp_)all_?reduce",
    r"(inter|intra)node(_ll)?::|x",
    r"\b(xh|x|h|)ccl(::|_)|nccl",
    r"[shi](16|8)_|\b(bmm|gemm)_\w*_sm1\d",
    r"(?<=\d)cudnn_|(gemm|\bbmm)(?!.*quant)\w*(fp8|fp4)",
    r"^fc-d|^(cuda|hip)Mem(cpy|set)|^cuMem\w*$",
    r"x?a|\w+b|\(c\)|[^|]d",
)
PARTS = (
    "ep::", "x", "xh", "h", "ccl", "nccl", "a2a", "fb", "gemm", "bmm", "_", ":", "1", "16", "8", "sm19", "warp", "all",
    "reduce", "inter", "intra", "node", "s", "cuda", "hip", "Memcpy", "cuMem", "fc-d", "cudnn", "quant", "fp8", "(",
    "|", "?", "a", "b", "c)", "d", " ",
)  # fmt: skip
NAMES = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


@settings(max_examples=400)
@given(pattern=st.sampled_from((*PATTERNS, *(pattern for _, pattern in kernel_names.ROWS))), name=NAMES)
def test_a_rewritten_pattern_finds_the_same(pattern, name):
    pattern, name = pattern.lower(), name.lower()
    assert (compiled(pattern).search(name) is None) == (re.search(pattern, name) is None)


@pytest.mark.parametrize(
    ("pattern", "rewritten"),
    [
        (r"\bep::|uccl", r"e(?<!\we)p::|uccl"),
        ("(?<!fb)gemm", "g(?<!fbg)emm"),
        ("(inter|intra)node", "internode|intranode"),
        ("[sd]gemm", "sgemm|dgemm"),
        (r"^cu(Ctx|Event)", r"c(?<![\s\S]c)u(Ctx|Event)"),
        (r"x?a|(b|c)?d|\d+e", r"x?a|(b|c)?d|\d+e"),
    ],
)
def test_alternatives_begin_with_a_plain_character_where_they_can(pattern, rewritten):
    assert compiled(pattern).pattern == rewritten


@pytest.mark.parametrize(
    ("name", "is_copy"),
    [("cudaMemcpyAsync", True), ("hipMemsetAsync", True), ("cuMemcpyHtoD_v2", True), ("aten::_copy_from", True),
     ("aten::copy_", False), ("xcudaMemcpy", False), ("urEnqueueUSMFill", True)],
)  # fmt: skip
def test_a_name_that_begins_like_a_copy_is_one(name, is_copy):
    assert (runtime_calls.COPIES.search(name) is not None) == is_copy
