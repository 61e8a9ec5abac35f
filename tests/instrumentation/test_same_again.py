"""Lines that compute the same in each forward pass are found, and those that only look alike are not."""

import math
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from training_profiler.model.program import CallSite

LENGTH, STEPS = 8, 45
DATA, MANY = torch.randn(200, 4), torch.randn(50_000, 4)


def filled():
    table = torch.zeros(LENGTH, 4)
    for at in range(LENGTH):
        table[at, 0] = math.sin(at)
    return table


def causal(length=LENGTH):
    return torch.triu(torch.full((length, length), -1e9), 1)


def angles():
    return torch.arange(LENGTH).unsqueeze(1) / 10_000 ** (torch.arange(4) / 4)


def of_a_list():
    return torch.tensor([[math.cos(at + i) for i in range(4)] for at in range(500)])


def of_unchanged_data():
    return (DATA - DATA.mean(0)) / DATA.std(0)


def normalized(x):
    return (x - MANY.mean(0)) / MANY.std(0)


def normalized_by_batch(x):
    return (x - x.mean(0)) / x.std(0)


def of_its_shape(x):
    return x.new_ones(LENGTH, LENGTH).tril()


def of_lengths(x, lengths):
    return torch.arange(LENGTH) < lengths[:, None]


def noise():
    return torch.randn(LENGTH, 4)


def dropped():
    return torch.bernoulli(torch.full((LENGTH, 4), 0.9))


def filled_by_numpy():
    table = torch.zeros(LENGTH, 4)
    table.numpy()[:] = np.random.rand(LENGTH, 4)
    return table * 2


def of_data_that_changes():
    DATA.data.add_(0.001)
    return DATA * 2


def of_short_lists(x):
    return torch.tensor([len(each) for each in x]) * 2


def of_few_figures():
    return torch.tensor([0.485, 0.456, 0.406]) * 2


def of_rewards(x):
    return torch.tensor([1.0 for _ in x]) * 2


def of_other_lengths():
    length = int(torch.randint(3, 30, ()))
    return torch.ones(length, length).triu()


DDP = "import torch\ndef broadcast(tensors): return torch.cat([tensor.flatten() for tensor in tensors])"
OF_DDP = {}
exec(compile(DDP, "/site-packages/torch/nn/parallel/distributed.py", "exec"), OF_DDP)


def by_ranks():
    return OF_DDP["broadcast"]([DATA, MANY])


class Model(nn.Module):
    """Calls a function that makes a tensor in each of two layers."""

    def __init__(self, makes):
        super().__init__()
        self.makes, self.layer = makes, nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(2):
            made = self.makes(x)
            x = self.layer(x) + 0 * made.float().mean()
        return x


def gathers(x):
    outputs = torch.zeros(LENGTH, 4)
    outputs[:3] = x
    return outputs


def train(instrumented, makes, steps=STEPS):
    """Return the functions whose operations made the same, "in" those of which most of a line did, and the losses."""
    calls = instrumented.instrumentation.context.calls

    def site(frame):
        while frame is not None and frame.f_code.co_filename != __file__:
            frame = frame.f_back
        return None if frame is None else CallSite("train.py", frame.f_lineno, __file__)

    calls.site = site
    torch.manual_seed(0)
    model, losses = Model(makes), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = instrumented.train(
        optimizer,
        lambda: model(torch.randn(3, 4)).square().mean(),
        steps,
        lambda loss: losses.append(loss.item()),
    )
    found = {}
    for line in facts.constants:
        if line.is_whole or 0.8 < line.part < 1:
            name = line.function if line.is_whole else f"in {line.function}"
            found[name] = min(found.get(name, line.times), line.times)
    return found, losses


@pytest.mark.parametrize(
    ("makes", "name"),
    [
        (lambda x: filled(), "filled"),
        (lambda x: causal(), "causal"),
        (lambda x: angles(), "angles"),
        (lambda x: of_a_list(), "of_a_list"),
        (lambda x: of_unchanged_data(), "of_unchanged_data"),
        (of_its_shape, "of_its_shape"),
        (normalized, "in normalized"),
        (normalized_by_batch, ""),
        (lambda x: of_lengths(x, torch.randint(LENGTH, (3,))), ""),
        (lambda x: noise(), ""),
        (lambda x: dropped(), ""),
        (lambda x: filled_by_numpy(), ""),
        (lambda x: of_data_that_changes(), ""),
        (of_short_lists, ""),
        (lambda x: of_few_figures(), "of_few_figures"),
        (of_rewards, ""),
        (lambda x: of_few_figures() * torch.tensor(x[0, :3].tolist()), "of_few_figures"),
        (lambda x: of_other_lengths(), ""),
        (gathers, ""),
        (lambda x: by_ranks(), ""),
    ],
)
def test_functions_that_make_the_same_are_found_and_losses_stay(instrumented, makes, name):
    found, losses = train(instrumented, makes)
    found = {each: times for each, times in found.items() if "lambda" not in each and "forward" not in each}
    assert found == ({name: 2} if name else {})
    detector = instrumented.instrumentation.context.detector
    assert "update_ends" not in vars(detector)
    instrumented.instrumentation.close()
    torch.manual_seed(0)
    model = Model(makes)
    optimizer, plain = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(STEPS):
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plain.append(loss.item())
    assert losses == plain


def test_the_last_step_whose_operations_are_named_is_known(instrumented):
    modes = []

    def seen(x):
        modes.append(len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))
        return causal()

    train(instrumented, seen)
    last = max(step for step, count in enumerate(modes[::2], 1) if count)  # a pass calls it twice
    assert instrumented.instrumentation.early_steps.named_steps == last > 24


def test_nothing_is_named_below_a_mode_of_the_program(instrumented):
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Seeing():
        assert train(instrumented, lambda x: causal())[0] == {}


def test_a_run_that_ends_meanwhile_leaves_no_mode_behind(instrumented):
    train(instrumented, lambda x: causal(), steps=28)
    instrumented.instrumentation.close()
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_no_mode_is_left_in_a_child(instrumented):
    seen = []

    def forks(x):
        child = os.fork()
        if not child:
            instrumented.instrumentation.after_fork_in_child()
            os._exit(len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))
        seen.append(os.waitpid(child, 0)[1])
        return torch.ones(1)

    train(instrumented, forks)
    assert set(seen) == {0}
