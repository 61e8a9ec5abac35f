from types import SimpleNamespace

import pytest

from training_profiler.torch_capture import conflicts
from training_profiler.torch_capture.conflicts import blocker


class Graph:
    """In place of torch.cuda.CUDAGraph."""


class OwnGraph(Graph):
    """Of a library."""


def torch_of(cuda):
    return SimpleNamespace(
        profiler=None,
        compiler=SimpleNamespace(is_compiling=lambda: False),
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(CUDAGraph=Graph, is_initialized=lambda: False),
    )


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.setattr(conflicts, "find_accelerator", lambda: None)


@pytest.mark.parametrize("kind", [Graph, OwnGraph])
@pytest.mark.parametrize("cuda", ["11.8", "12.4", "12.5.1"])
def test_capture_with_cuda_graphs_is_refused_before_cuda_12_6(kind, cuda):
    graph = kind()
    reason = blocker(torch_of(cuda))
    assert reason is not None
    assert "CUDA graphs" in reason
    assert cuda[:4] in reason
    del graph
    assert blocker(torch_of(cuda)) is None


@pytest.mark.parametrize("cuda", ["12.6", "12.10", "13.0", None])
def test_capture_with_cuda_graphs_is_made_from_cuda_12_6_on_and_without_cuda(cuda):
    graph = Graph()
    assert blocker(torch_of(cuda)) is None
    del graph
