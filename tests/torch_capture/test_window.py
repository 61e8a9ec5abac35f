import signal
import threading
from types import SimpleNamespace

import pytest

from training_profiler.torch_capture import window
from training_profiler.torch_capture.window import MainThreadInterrupt, blocker

LAST = int(signal.SIGRTMAX)


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
    monkeypatch.setattr(window, "find_accelerator", lambda: None)


@pytest.mark.parametrize(
    ("kind", "cuda", "is_refused"),
    [
        *((Graph, "11.8", True), (OwnGraph, "12.4", True), (Graph, "12.5.1", True)),
        *((Graph, cuda, False) for cuda in ("12.6", "12.10", "13.0", None)),
    ],
)
def test_capture_with_cuda_graphs_is_refused_before_cuda_12_6(kind, cuda, is_refused):
    graph = kind()
    reason = blocker(torch_of(cuda)) or ""
    assert ("CUDA graphs" in reason, str(cuda)[:4] in reason) == (is_refused, is_refused)
    del graph
    assert blocker(torch_of(cuda)) is None


def test_ring_runs_the_work_on_the_main_thread():
    threads = []
    wake = MainThreadInterrupt(lambda: threads.append(threading.current_thread()))
    wake.ring()  # without a handler, nothing
    wake.arm()
    thread = threading.Thread(target=wake.ring)
    thread.start()
    thread.join()
    wake.disarm()
    wake.ring()
    assert threads == [threading.main_thread()]


def test_handled_signal_is_skipped_and_ours_is_released():
    signal.signal(LAST, signal.SIG_IGN)
    try:
        wake = MainThreadInterrupt(lambda: None)
        wake.arm()
        assert signal.getsignal(LAST) == signal.SIG_IGN
        assert signal.getsignal(LAST - 1) not in (signal.SIG_DFL, signal.SIG_IGN)
        wake.disarm()
        assert signal.getsignal(LAST - 1) == signal.SIG_DFL
    finally:
        signal.signal(LAST, signal.SIG_DFL)
