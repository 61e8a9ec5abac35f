import pytest

from tests.support.traces import Trace
from tests.trace_analysis.test_figures import between

CASES = {
    "data loader": between(
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 80),
        ("cpu_op", "aten::stack", 20, 60),
    ),
    "allocation": between(("cpu_op", "aten::empty", 10, 80), ("cuda_runtime", "cudaMalloc", 12, 70)),
    "blocking copy": between(("cpu_op", "aten::copy_", 10, 80), ("cuda_runtime", "cudaMemcpyAsync", 12, 70)),
    "synchronize": between(("cuda_runtime", "cudaStreamSynchronize", 12, 70)),
    "launch-bound": between(("cpu_op", "aten::mm", 10, 80)),
    "python between launches": between(("cpu_op", "aten::mm", 88, 5)),
    "waiting for communication": between(launched=(2, 1))
    .kernel("ncclDevKernel_AllReduce", 300, 10)
    .kernel("k", 400, 10, launched=(301, 2)),
    "waiting for another stream": between(launched=(2, 1)).kernel("k", 0, 105, device=1),
    "waiting for another device": between(launched=(2, 1)).kernel("k", 10, 88, device=1),
    "launched, started late": between(launched=(2, 1)),
    "host stall": between(("cpu_op", "aten::sort", 10, 5900), launched=(5995, 1), length=6000),
    "inside a graph": Trace()
    .call("cudaGraphLaunch", 0, 5, correlation=70)
    .kernel("k", 10, 10, correlation=70)
    .kernel("k", 100, 10, correlation=70),
    "recording": between(("user_annotation", "(profiler)", 10, 80), ("cuda_runtime", "cudaEventQuery", 20, 5)),
    "work not recorded": between(launched=(2, 1), length=1100),
    "unknown": Trace().kernel("k", 0, 10).kernel("k", 100, 10),
}


@pytest.mark.parametrize("cause", CASES)
def test_gap_cause_is_the_activity_of_the_host(cause, tmp_path):
    assert cause in [place.gap.cause for place in CASES[cause].analysed(tmp_path).gaps]
