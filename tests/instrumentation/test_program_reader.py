"""What the program has set is read in the first step, and the detector is as before afterwards."""

import torch
from torch import nn

from training_profiler.instrumentation import program_reader
from training_profiler.instrumentation.program_reader import optimizer_facts
from training_profiler.snapshot.program import OptimizerFacts


def train(instrumented, optimizer, model, steps=3, autocast=False):
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(torch.randn(8, 4)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        instrumented.instrumentation.step_ended(instrumented.steps, counts_flops=False)
    return instrumented.instrumentation.program_facts()


def test_optimizer_and_autocast_are_read_once(instrumented):
    model = nn.Linear(4, 2)
    facts = train(instrumented, torch.optim.Adam(model.parameters(), foreach=False), model, autocast=True)
    assert facts.optimizer == OptimizerFacts("Adam", 2, ("float32",), ("cpu",), False, None, True, True)
    assert facts.autocast == "bfloat16"
    detector = instrumented.instrumentation.context.detector
    assert not {"update_ends", "call_ends", "fast_path_call_begins"} & vars(detector).keys()


def test_backward_passes_that_keep_the_graph_are_counted(instrumented):
    model = nn.Linear(4, 2)
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward(retain_graph=True)
    loss.backward(create_graph=True)
    loss.backward()
    assert instrumented.instrumentation.program_facts().kept_graphs == 1


def test_an_optimizer_without_torchs_arguments_is_described():
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

    model = nn.Linear(4, 2).double()
    assert optimizer_facts(Own(model.parameters())) == OptimizerFacts("Own", 2, ("float64",), ("cpu",))


def test_an_optimizer_that_cannot_be_described_harms_nothing(instrumented, monkeypatch):
    monkeypatch.setattr(program_reader, "optimizer_facts", lambda optimizer: optimizer.missing)
    model = nn.Linear(4, 2)
    assert train(instrumented, torch.optim.SGD(model.parameters(), lr=0.1), model).optimizer is None
    assert instrumented.instrumentation.missing == {}
