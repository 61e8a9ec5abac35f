"""The steps of a loop are known by its source or a trainer, and where neither says how many, nothing is said."""

import ast
import contextlib
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.inspections import loop_length
from training_profiler.inspections.loop_length import TRAINERS, LoopLength, loops_at, value_of

EVERY, INSIDE = "for e in range(1, args.epochs + 1):", "for i, (x, y) in enumerate(tqdm(loader)):"
# Programs around the line ``backward()``, how many steps each has, at one a batch or at one in two batches; 0: unknown.
LOOPS = {
    "steps": ("for step in range(10, 50):\n    backward()", 40),
    "trange": ("for step in trange(n):\n    backward()", 40),
    "epochs of a loader": (f"{EVERY}\n    {INSIDE}\n        backward()", 50),
    "in a function": (f"def one():\n    {INSIDE}\n        backward()\n{EVERY}\n    one()", 50),
    "accumulated": (f"{EVERY}\n    {INSIDE}\n        backward(i % 2 == 1)", 25),
    "a key": ("for step in range(config['steps']):\n    with_grad = 1\n    if with_grad:\n        backward()", 40),
    "an inner loop that breaks": ("for step in range(40):\n    for k in (1, 2):\n        break\n    backward()", 40),
    "a break": ("for step in range(40):\n    backward()\n    if step == 20:\n        break", 0),
    "a break in the inner loop": (
        f"{EVERY}\n    {INSIDE}\n        backward()\n        if i > 3:\n            break",
        0,
    ),
    "a return": (
        "def f():\n    for step in range(40):\n        backward()\n        if step == 20:\n            return\nf()",
        0,
    ),
    "no length": ("for step in iter(int, 1):\n    if backward() == 30:\n        raise StopIteration", 0),
    "any iterable": ("for step in [*range(40)]:\n    backward()", 0),
    "a property": ("for step in range(later.steps):\n    backward()", 0),
}


class Later:
    steps = property(lambda self: 40)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_length, "beside_the_training", lambda name, read: read())

    def run(source, length=None):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(source))
        loader, passed, updates = DataLoader(TensorDataset(torch.zeros(10, 1), torch.zeros(10))), [], 0
        found = length or LoopLength(lambda: passed[-1] if passed else None)

        def batches(given):
            iterator = iter(given)
            passed.append(SimpleNamespace(fetches=0, iterator=lambda: iterator))
            for batch in iterator:
                passed[-1].fetches += 1
                yield batch

        def backward(has_updated=True):
            nonlocal updates
            found.backward_begins(sys._getframe(1), updates, updates)
            updates += has_updated
            return updates

        names = {"backward": backward, "tqdm": batches, "trange": range, "loader": loader, "n": 40}
        names |= {"args": SimpleNamespace(epochs=5), "config": {"steps": 40}, "later": Later(), "__name__": "__main__"}

        def train():  # on a thread, where no plugin of pytest is below it
            with contextlib.suppress(StopIteration):
                exec(compile(path.read_text(), str(path), "exec"), names)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        return found.expected_steps

    return run


@pytest.mark.parametrize("case", LOOPS)
def test_steps_are_those_of_loops_that_nothing_ends_early(run, case):
    source, steps = LOOPS[case]
    assert run(source) == steps


def test_a_library_that_calls_the_program_may_loop(run, monkeypatch):
    source = "def f(step):\n    for again in range(40):\n        backward()\ncall_once(f)"
    names = {"__name__": "somelearner.loop"}
    exec(compile("def call_once(f):\n    f(0)", "/lib/site-packages/somelearner/loop.py", "exec"), names)
    monkeypatch.setattr("builtins.call_once", names["call_once"], raising=False)
    assert run(source) == 0
    names["__name__"] = "hydra.main"
    assert run(source) == 40


class Trainer:
    """Of each of the frameworks: what is under way."""

    max_steps, max_epochs, num_training_batches, current_epoch = -1, 3, 100, 1
    fit_loop = SimpleNamespace(batch_idx=20)


@pytest.mark.parametrize(
    ("package", "state", "expected"),
    [
        ("transformers", {"state": SimpleNamespace(global_step=7, max_steps=90)}, (7, 90)),
        ("lightning", {}, (120, 300)),
        ("lightning", {"max_steps": 150, "global_step": 120}, (120, 150)),
        ("lightning", {"num_training_batches": float("inf")}, None),
        ("ignite", {"state": SimpleNamespace(iteration=11, max_epochs=2, epoch_length=30)}, (10, 60)),
    ],
)
def test_a_trainer_says_how_far_it_is(package, state, expected):
    names = {"__name__": f"{package}.trainer", "seen": TRAINERS[package], "sys": sys}
    exec("def fit(self):\n    return seen(sys._getframe())", names)
    trainer = Trainer()
    vars(trainer).update(state)
    assert names["fit"](trainer) == expected


def test_a_loop_of_keras_is_read_from_its_variables():
    epoch_iterator, names = SimpleNamespace(num_batches=25), {"seen": TRAINERS["keras"], "sys": sys}
    exec("def fit(epoch_iterator, epoch, epochs, begin_step):\n    return seen(sys._getframe())", names)
    assert names["fit"](epoch_iterator, 2, 4, 5) == (55, 100)


def test_values_are_read_without_running_code():
    names = {"n": 3, "held": {"a": 4}, "later": Later(), "kind": type("kind", (dict,), {})(a=1)}
    for text, value in {"n + 1": 4, "held['a'] - n": 1, "later.steps": None, "kind['a']": None, "f(n)": None}.items():
        assert value_of(ast.parse(text, mode="eval").body, names) == value
    assert loops_at(ast.parse("for a in b:\n    x = [c for c in d]"), "<listcomp>", 2) is None


def test_a_real_training_knows_its_steps_and_tokens(instrumented):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.rnn = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True)

        def forward(self, ids):
            return self.rnn(self.table(ids))[0]

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of():
        return sum(model(torch.zeros(2, 8, dtype=torch.int64)).square().mean() for _ in range(2))

    facts = instrumented.train(optimizer, loss_of, 40)
    assert facts.has_token_ids
    assert instrumented.instrumentation.pop_work().tokens == 40 * 2 * 2 * 8
