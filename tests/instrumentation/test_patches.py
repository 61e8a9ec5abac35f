"""Each patch on real torch: which calls are spans of its section, and what they return."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.instrumentation.context import FREE
from training_profiler.model.snapshot import PROFILER
from training_profiler.recording.data_loader import LoaderRegistry

INPUTS, TARGETS = torch.ones(4, 2), torch.zeros(4, 1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("at", range(1, 12))
def test_error_of_ours_in_a_step_is_not_the_programs(instrumented, model, optimizer, at):
    """The clock fails at each reading of a step in turn."""

    def train():
        losses = []
        for inputs in DataLoader(INPUTS, batch_size=2):
            optimizer.zero_grad()
            loss = model(inputs).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    train()
    readings, clock, recorder = iter(range(1, 1000)), instrumented.clock, instrumented.run.recorder

    def failing():
        if next(readings) == at:
            raise ArithmeticError
        return clock()

    recorder.use_clock(recorder.buffer(), failing)
    assert len(train()) == 2
    assert instrumented.context.training_thread.busy_with == FREE


@pytest.mark.parametrize("interrupts_batch", [False, True], ids=["module", "batch"])
def test_interrupt_inside_of_a_usual_call_ends_it(instrumented, optimizer, interrupts_batch):
    class Layer(nn.Linear):
        interrupts = False

        def forward(self, inputs):
            if self.interrupts:
                raise KeyboardInterrupt
            return super().forward(inputs)

    class Batch:
        def __init__(self, interrupts):
            self.interrupts = interrupts

        @property
        def shape(self):
            if self.interrupts:
                raise KeyboardInterrupt
            return (2, 2)

    instrumented.loaders = LoaderRegistry()  # which counts the samples of batches
    layer = Layer(2, 1)
    batches = iter(DataLoader([Batch(at == 3 and interrupts_batch) for at in range(4)], batch_size=None))
    for _ in range(3):
        next(batches)
        layer(INPUTS).sum().backward()
        optimizer.step()
    layer.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        next(batches) if interrupts_batch else layer(INPUTS)
    assert (instrumented.context.training_thread.busy_with, instrumented.context.detector.calls) == (FREE, [])
    instrumented.counts()


def test_zero_grad_gets_its_arguments(instrumented, model, optimizer):
    for _ in range(4):  # the later ones are usual
        for arguments, named, is_none in (((), {}, True), ((False,), {}, False), ((), {"set_to_none": False}, False)):
            model(INPUTS).sum().backward()
            optimizer.step()
            optimizer.zero_grad(*arguments, **named)
            assert (model[0].weight.grad is None) is is_none
    assert instrumented.counts()["optimizer_step"] == 12


def test_modules_get_their_arguments(instrumented, optimizer, model):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, *args, **named):
            return self.inner(*args, **named)

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, *args, **named):
            seen.append((args, named))
            return self.scale * len(args)

    module, seen = Outer(), []
    given = (((), {}), ((1,), {}), ((1, 2), {"named": 3}), ((), {"args": 4, "kwargs": 5, "training_thread": 6}))
    for _ in range(4):
        for args, named in given:
            module(*args, **named).backward()
            optimizer.step()
    assert seen == [*given] * 4
    assert instrumented.counts()["forward_pass"] == 16


@pytest.mark.parametrize(
    ("arguments", "named", "count"),
    [
        (("cpu",), {}, 1),
        ((torch.device("cpu"),), {"non_blocking": True}, 1),
        ((torch.zeros(1),), {}, 1),
        ((), {"device": "cpu"}, 1),
        ((), {"tensor": torch.zeros(1)}, 1),
        ((), {"device": None, "dtype": torch.float16}, 0),
        ((torch.float16,), {}, 0),
        ((), {"memory_format": torch.contiguous_format}, 0),
    ],
)
def test_transfers_name_a_device(instrumented, arguments, named, count):
    instrumented.context.current_detector()
    assert torch.ones(3).to(*arguments, **named).sum().item() == 3
    assert instrumented.counts().get("data_transfer", 0) == count


class Moving(torch.optim.SGD):
    """Moves a number to its device in each update, as fused optimizers and GradScaler do."""

    def step(self, closure=None):
        torch.ones(1).to("cpu")
        return super().step(closure)


def test_transfer_within_an_update_is_part_of_it(instrumented, model):
    optimizer = Moving(model.parameters(), 0.1)
    for _ in range(3):
        model(INPUTS.to("cpu")).sum().backward()
        optimizer.step()
    assert instrumented.counts()["data_transfer"] == 2  # the first is before anything was seen of a training


def test_transfer_within_the_closure_of_an_update_moves_a_batch(instrumented, model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = model(INPUTS.to("cpu")).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert instrumented.counts()["data_transfer"] == 2  # from the first closure on, updates are known to have one


def test_transfer_within_a_forward_pass_is_part_of_it(instrumented):
    class Model(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.to("cpu"))

    model = Model(2, 1)
    for _ in range(3):
        model(INPUTS).sum().backward()
    assert instrumented.counts() == {"forward_pass": 3, "backward_pass": 3}


def test_failing_save_raises_and_ends_its_span(instrumented):
    instrumented.context.current_detector()
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save([1], "no/such/folder/model.pt")
    assert instrumented.counts() == {"checkpointing": 1}


def test_computing_statistics_of_batch_norms_is_neither_a_validation_nor_a_step(instrumented):
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.arange(16.0).reshape(8, 2)), batch_size=4)
    for _ in range(3):
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
        average.update_parameters(model)
        torch.optim.swa_utils.update_bn(loader, average)
    counts = instrumented.counts()
    assert (counts["batch_norm_update"], counts["forward_pass"], counts["data_loading"]) == (3, 6, 6)
    assert "validation_epoch" not in counts
    assert instrumented.steps == 6


@pytest.mark.parametrize("is_enabled", [True, False])
def test_time_of_an_update_within_a_gradient_scaler_counts_once(instrumented, is_enabled):
    model, scaler = nn.Linear(2, 1), torch.amp.GradScaler("cpu", enabled=is_enabled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        scaler.scale(model(torch.ones(4, 2)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    instrumented.instrumentation.close()
    sums, ids = instrumented.run.totals().sections, {name: id for id, name in instrumented.run.names.names.items()}
    optimizer_id = ids["optimizer_step"]
    assert sums.count[optimizer_id] == instrumented.steps == 3
    if not is_enabled:  # otherwise it also copies to the device
        assert sums.total_ns[optimizer_id] == sums.self_ns[optimizer_id] > 0
    assert (optimizer_id, optimizer_id) not in sums.parents


def test_reports_at_the_end_of_a_step_are_not_time_of_the_gradient_scaler(instrumented):
    def report() -> None:
        with instrumented.run.recorder.own_section(PROFILER):
            instrumented.clock()

    instrumented.at_step_ends = report
    model, scaler = nn.Linear(2, 1), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        scaler.scale(model(torch.ones(4, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    instrumented.instrumentation.close()
    sums, ids = instrumented.run.totals().sections, {name: id for id, name in instrumented.run.names.names.items()}
    assert sums.count[ids[PROFILER]] == 3
    assert (ids["optimizer_step"], ids[PROFILER]) not in sums.parents


def test_update_that_raises_within_a_gradient_scaler_leaves_no_open_section(instrumented):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError

    model, scaler = nn.Linear(2, 1), torch.amp.GradScaler("cpu")
    optimizers = [Failing(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)]
    for optimizer in (*optimizers, *optimizers):
        scaler.scale(model(torch.ones(4, 2)).sum()).backward()
        with contextlib.suppress(ValueError):
            scaler.step(optimizer)
            scaler.update()
    assert instrumented.counts()["optimizer_step"] >= 2
    assert instrumented.steps == 2


def test_failing_dataset_raises_and_counts_no_batch(instrumented):
    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        next(iter(DataLoader(Broken(INPUTS, TARGETS))))
    assert instrumented.counts() == {}


def test_work_after_close_is_not_recorded(instrumented, model, optimizer):
    step = optimizer.step
    model(INPUTS).sum().backward()
    step()
    counts = instrumented.counts()
    model(INPUTS).sum().backward()
    step()
    assert counts == {"forward_pass": 1, "backward_pass": 1, "optimizer_step": 1}
    assert instrumented.run.recorder.backlog() == 0
