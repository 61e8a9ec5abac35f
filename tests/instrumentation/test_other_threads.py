"""Events of other threads."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents, SectionCodes
from training_profiler.recording.recorder import Recorder

INPUTS = torch.ones(4, 2)


@pytest.fixture
def model():
    return nn.Linear(2, 1)


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_updates_on_other_threads_are_noted(instrumented, model, optimizer):
    def train():
        other = nn.Linear(2, 1)
        other(INPUTS).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()

    model(INPUTS).sum().backward()
    optimizer.step()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert instrumented.counts() == {"forward_pass": 1, "backward_pass": 1, "optimizer_step": 1}
    assert instrumented.instrumentation.notes() == [
        "1 optimizer updates on other threads were not measured: only one training thread is instrumented"
    ]


def test_empty_fetch_on_other_thread_is_not_counted(instrumented, model):
    model(INPUTS).sum().backward()
    batches = iter(DataLoader(TensorDataset(INPUTS), batch_size=4))
    raised = []

    def serve():
        next(batches)
        try:
            next(batches)
        except StopIteration as error:
            raised.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert len(raised) == 1
    assert instrumented.counts() == {"forward_pass": 1, "backward_pass": 1, "data_loading": 1}


def test_drain_waits_for_rewriting():
    recorder = Recorder()
    pending = PendingEvents(recorder)
    forward = SectionCodes(recorder.names).forward
    pending.record(forward)
    pending.record(-forward)
    drained = threading.Event()

    def drain():
        recorder.drain()
        drained.set()

    class Renaming(dict):
        def get(self, code, default=None):
            if not thread.is_alive():
                thread.start()
            assert not drained.is_set()
            return default

    thread = threading.Thread(target=drain)
    pending.recode(0, Renaming())
    thread.join()
    assert not pending.events
