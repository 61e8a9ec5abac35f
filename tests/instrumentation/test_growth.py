"""What is kept and what grows from step to step is seen, and so are the lines that do it."""

import ast
import sys
import threading
import warnings
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from training_profiler.inspections.growth import (
    TENSOR_BYTES,
    GrowthWatch,
    bytes_of,
    has_grown,
    subnormal_part,
    variables,
)
from training_profiler.inspections.kept_graphs import (
    kept_at,
    lines_of_methods,
    lines_that_add,
    lines_that_keep,
    lines_that_put,
    lines_that_work_through,
)
from training_profiler.model.program import GRAPH, HOOKS, SIZE, SUBNORMAL, UPDATED, CallSite

STEPS = 40


class Watched:
    """A training whose backward passes are watched."""

    def __init__(self, model, monkeypatch):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.detector = SimpleNamespace(backwards=0, updates=0, inferred_updates=0)
        program = SimpleNamespace(optimizers=[self.optimizer], place_of=lambda frame: "train.py:9")
        self.watch = GrowthWatch(program, lambda: self.detector, self.sleep)
        self.is_awake, self.seen = True, 0
        monkeypatch.setattr("training_profiler.inspections.growth.FREE_NS", 10**12)

    def sleep(self):
        self.is_awake = False

    def begins(self, loss, frame):
        self.is_awake = self.is_awake or self.watch.is_due()
        if self.is_awake:
            self.seen += 1
            self.watch.backward_begins((loss,), {}, frame, True)
        self.detector.backwards += 1

    def backward(self, loss, **kwargs):
        self.begins(loss, sys._getframe(1))
        loss.backward(**kwargs)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.detector.updates += 1

    def grown(self, kind):
        for thread in threading.enumerate():
            if thread.name.endswith("growth"):  # it reads source
                thread.join(60)
        return {each.name: each for each in self.watch.facts() if each.kind == kind}


@pytest.fixture
def training(monkeypatch):
    return Watched(nn.Linear(4, 4), monkeypatch)


# The loops are functions of their own: pytest uses locals() in tests, whose variables are then left alone.


def carries_state(training, is_tuple):
    state = (torch.zeros(2, 4),)
    scale = torch.ones(4, requires_grad=True)
    for _ in range(STEPS):
        made = state[0] * 0.5 + scale
        state = (made,) if is_tuple else [made]
        training.backward(training.model(made.detach()).sum() + made.sum(), retain_graph=True)
        del made


@pytest.mark.parametrize("is_tuple", [False, True])
def test_a_state_that_is_not_detached_makes_the_graph_grow(training, is_tuple):
    carries_state(training, is_tuple)
    (found,) = training.grown(GRAPH).values()
    assert found.name in ("state", "made")
    assert found.place == "train.py:9"
    assert found.points[-1][1] > 3 * found.points[0][1]
    assert 3 < found.own < 20


def adds_losses(training):
    total = 0.0
    for _ in range(STEPS):
        scale = torch.ones(4, requires_grad=True)
        total = total + (scale * 2).sum()
        training.backward(total, retain_graph=True)


def test_a_sum_of_losses_makes_the_graph_grow(training):
    adds_losses(training)
    assert training.grown(GRAPH)["total"].points[-1][1] > 3 * training.grown(GRAPH)["total"].own


def detached(training):
    state = torch.zeros(2, 4)
    for _ in range(STEPS):
        state = training.model(state.detach())
        training.backward(state.sum())


def made_once(training):
    features = torch.ones(2, 4, requires_grad=True) * 2
    for _ in range(STEPS):
        training.backward(training.model(features).sum(), retain_graph=True)


def shared_by_micro_batches(training):
    for _ in range(STEPS):
        state = torch.ones(2, 4)
        for _ in range(4):
            state = training.model(state)
            training.begins(state.sum(), sys._getframe())
        training.backward(state.sum())


@pytest.mark.parametrize("train", [detached, made_once, shared_by_micro_batches])
def test_other_graphs_do_not_grow(training, train):
    train(training)
    assert training.grown(GRAPH) == {}


@pytest.mark.parametrize(("amounts", "is_grown"), [((0, 0, 9, 9, 0, 9), False), ((0, 4, 0, 8, 0, 60), True)])
def test_a_generator_from_before_the_step_of_its_discriminator_does_not_grow(amounts, is_grown):
    assert has_grown(GRAPH, list(enumerate(amounts))) == is_grown  # every other look is at the discriminator's loss


def in_updates_of(micro_batches, training):
    state = torch.zeros(2, 4)
    for number in range(2000):
        state = training.model(state.detach() if number % micro_batches == 0 else state)
        training.begins(state.sum(), sys._getframe())
        if number % micro_batches == micro_batches - 1:
            training.detector.updates += 1


@pytest.mark.parametrize("micro_batches", [1, 8, 30])
def test_between_looks_it_sleeps_and_knows_the_last_update_when_it_wakes(training, micro_batches):
    in_updates_of(micro_batches, training)
    assert training.grown(GRAPH) == {}
    looks = 11  # after pass 64, each 1.4 times as far as the one before
    assert training.seen <= 66 + looks * (2 * micro_batches + 3)  # of 2,000


def test_passes_that_it_sleeps_through_count(training):
    adds_losses(training)
    training.detector.backwards = 2000
    training.detector = None  # the training has ended
    assert training.grown(GRAPH)["total"].passes == 2000


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook", "of a parameter"])
def test_hooks_that_are_registered_in_the_loop_are_counted(training, register):
    for _ in range(STEPS):
        if register == "of a parameter":
            training.model.weight.register_hook(lambda gradient: None)
        else:
            getattr(training.model, register)(lambda *values: None)
        training.backward(training.model(torch.ones(2, 4)).sum())
    found = training.grown(HOOKS)
    (name,) = {"a parameter"} if register == "of a parameter" else found
    assert found[name].points[-1][1] > 30
    assert found[name].place.startswith("test_growth.py:")


def adds_parameters(training, every):
    for step in range(STEPS):
        if step % every == every - 1:
            training.optimizer.add_param_group({"params": list(nn.Linear(4, 4).parameters())})
        training.backward(training.model(torch.ones(2, 4)).sum())
    return training.grown(UPDATED)


def test_parameters_that_are_given_to_an_optimizer_in_each_step_are_counted(training):
    (found,) = adds_parameters(training, every=1).values()
    assert found.name == "SGD"
    assert found.points[-1][1] > 30


def test_layers_that_join_at_times_are_not_what_grows(training):
    assert adds_parameters(training, every=10) == {}


def test_the_lines_that_give_parameters_to_an_optimizer_are_found():
    lines = (
        "opt.add_param_group(new)",
        "opt.param_groups[0]['params'].extend(new)",
        "for group in opt.param_groups: set(group)",
    )
    assert lines_that_add(ast.parse("\n".join(lines)), "train.py") == "train.py:1, 2"
    assert lines_that_add(ast.parse(lines[2]), "train.py") == ""


@pytest.fixture
def slow_with_subnormals(monkeypatch):
    """Processors differ, and a busy one may seem slow."""
    monkeypatch.setattr("training_profiler.inspections.growth._is_slow", lambda small, is_squared: True)


def test_averages_that_become_subnormal_are_counted(training, slow_with_subnormals):
    training.optimizer = torch.optim.Adam(training.model.parameters(), betas=(0.9, 0.9))
    training.watch._program.optimizers[:] = [training.optimizer]
    for step in range(100):
        training.backward(training.model(torch.ones(2, 4)).sum() * 3e-19 * (step < 1))
    found = training.grown(SUBNORMAL[0])
    assert set(found) == {"exp_avg_sq of Adam"}
    assert found["exp_avg_sq of Adam"].points[-1][1] == 100  # percent
    assert training.grown(SUBNORMAL[1]) == {}


SMALL = torch.tensor([1e-40, 0.0, -2e-40, 1.0])


@pytest.mark.parametrize(
    ("tensor", "percent"),
    [
        (SMALL, 50),
        (SMALL.repeat(5000), 50),
        (SMALL.bfloat16(), 50),
        (SMALL.double(), 0),
        (SMALL.double() * 1e-280, 50),
        (SMALL.half(), 0),
        (torch.zeros(9), 0),
        (torch.ones(0), 0),
        (torch.ones(1, requires_grad=True), 0),
        (SMALL.repeat(4, 1).t(), 0),  # a copy would take time
        (SMALL.to("meta"), 0),
    ],
)
def test_values_that_are_subnormal_are_counted(tensor, percent, slow_with_subnormals):
    random, version = torch.get_rng_state(), tensor._version
    assert subnormal_part([tensor]) == pytest.approx(percent, abs=0.1)
    assert torch.equal(torch.get_rng_state(), random)
    assert tensor._version == version
    torch.set_flush_denormal(True)
    try:
        assert subnormal_part([tensor]) == 0
    finally:
        torch.set_flush_denormal(False)


def lengthens(training):
    bank, losses = torch.zeros(0, 4), []
    for _ in range(STEPS):
        output = training.model(torch.ones(2, 4))
        bank = torch.cat([bank, output.detach()])
        losses.append(output.sum().item())
        training.backward(output.sum())


def test_a_tensor_that_cat_lengthens_is_named(training):
    lengthens(training)
    found = training.grown(SIZE)
    assert set(found) == {"bank"}  # appending is as quick for a long list
    assert found["bank"].points[-1][1] > 200
    assert found["bank"].path == __file__


class Log:
    def __init__(self):
        self.rows = {"loss": [], "outputs": []}


def keeps_outputs(training):
    log = Log()
    for _ in range(STEPS):
        outputs = training.model(torch.ones(1000, 4))
        training.backward(outputs.sum())
        for _ in range(100):
            log.rows["outputs"].append(outputs.detach().clone())


def adds_rows(training):
    rows = []
    for step in range(STEPS * 3):
        rows.append({f"metric {number}": step for number in range(20)})
        training.backward(training.model(torch.ones(2, 4)).sum())
        sum(row["metric 0"] for row in rows)


def test_rows_count_and_not_what_the_first_few_of_them_hold(training):
    adds_rows(training)
    points = training.grown(SIZE)["rows"].points
    assert points[0][1] < 30
    assert all(rows <= passes for passes, rows in points)


def test_a_container_in_another_one_that_keeps_tensors_is_named_with_what_they_take(training):
    keeps_outputs(training)
    found = training.grown(SIZE)["log.rows"]
    assert found.element_bytes == pytest.approx(16_000 + TENSOR_BYTES, rel=0.01)
    assert found.place.startswith("test_growth.py:")
    line = int(found.place.rpartition(":")[2])
    assert "append(outputs.detach().clone())" in open(__file__).read().splitlines()[line - 1]  # noqa: SIM115


BATCH = torch.zeros(1000)
ARRAY = np.zeros(1000)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([torch.zeros(1000) for _ in range(100)], 100 * (4000 + TENSOR_BYTES)),
        ([BATCH] * 100, 100 * (4000 / 8 + TENSOR_BYTES)),  # of the 8 that are looked at, one counts
        ({step: torch.zeros(1000) for step in range(100)}, 100 * (4000 + TENSOR_BYTES)),
        ([{"x": np.zeros(1000)} for _ in range(100)], 100 * 8100),
        (deque((np.zeros(1000), index) for index in range(100)), 100 * 8100),
        ([ARRAY[:10]], 8100),  # a view keeps all of it
        (["x" * 10_000 for _ in range(50)], 50 * 10_049),
        ({float(number) for number in range(1000)}, 1000 * 24),
        ([], 56),
    ],
)
def test_what_a_variable_keeps_is_weighed(value, wanted):
    assert bytes_of(value, (torch.Tensor,)) == pytest.approx(wanted, rel=0.1, abs=100_000 if type(value) is set else 0)


PUTTING = """
history = []
for step in range(9):
    history.append(step)
    history[step] = step
    history += [step]
    history = torch.cat([history, step])
    rows["loss"].append(step)
    rows.clear()
    log.cache[step] = 1
    other.append(history)
"""


@pytest.mark.parametrize(("name", "lines"), [("history", [4, 5, 6, 7]), ("rows", [8]), ("log.cache", [10])])
def test_lines_that_add_to_a_variable_are_found(name, lines):
    assert sorted(lines_that_put(ast.parse(PUTTING), name)) == lines


def test_variables_of_functions_are_not_kept_alive():
    class Held:
        pass

    def names():
        held = Held()
        found = [name for name, _, _ in variables(sys._getframe(), nn.Module)]
        before = sys.getrefcount(held)
        del held
        return found, before

    found, references = names()
    assert "held" in found
    assert references == 2  # the variable, and the argument


def test_objects_in_a_dict_are_looked_into_and_those_in_a_long_list_are_not():
    class Holder:
        def __init__(self, *held):
            self.meters = dict(enumerate(held))

    def names():
        holder, many = Holder(History(), History()), [History()] * 17
        return [name for name, _, _ in variables(sys._getframe(), nn.Module)], holder, many

    found, *_ = names()
    assert found.count("holder.meters.losses") == 2
    assert "many.losses" not in found


TRAINER = """\
class Handler:
    def __init__(self, callbacks):
        self.callbacks = callbacks

class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.handler = model, Handler(callbacks)

    def fit(self, step):
        return step()
"""


class History:
    def __init__(self):
        self.losses = [0.5]


def test_what_only_the_trainer_of_a_framework_holds_is_looked_at(tmp_path):
    path = tmp_path / "site-packages" / "framework.py"
    framework = {"__name__": "framework"}
    exec(compile(TRAINER, str(path), "exec"), framework)

    class Net(nn.Linear):
        pass

    def names():
        return {name: path for name, _, path in variables(sys._getframe(), nn.Module)}

    trainer = framework["Trainer"](Net(4, 4), [History()])
    found = trainer.fit(names)
    assert found["History.losses"] == found["Net"] == __file__
    assert "Trainer.handler" not in found


def test_what_raises_does_not_reach_the_training(training):
    class Odd:
        @property
        def __dict__(self):
            raise RuntimeError

    odd = Odd()
    for _ in range(STEPS):
        training.backward(training.model(torch.ones(2, 4)).sum())
    training.watch.backward_begins((), {}, None, True)
    assert odd


SOURCE = """\
def mean(values):
    return sum(values) / len(values)
def train(history):
    for batch in loader:
        history.append(loss)
        last = history[-1]
        few = history[-50:]
        count = len(history)
        all = sum(history)
        for each in history:
            total += each
        average = mean(history)
    for each in history:
        loss.backward()
    self.history.append(1), self.history()
    torch.save(
        self.history, path)
    with torch.no_grad(), lock:
        print(kept)
    with open(path, "w") as file:
        other(count)
        for each in kept:
            file.write(each)
def score():
    p, count = torch.cat(self.preds), len(self.preds)
    order = p.argsort()
    first = p[0] + count
    few = random.sample(self.preds, 8)
    return few.sum()
"""


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("history", [(1, 2), (9, 9), (10, 11), (12, 12), (13, 13)]),
        ("self.history", [(16, 17)]),
        ("kept", [(19, 19), (20, 20), (22, 23)]),
        ("self.preds", [(25, 25), (26, 26), (28, 28)]),  # few elements take no longer, and a copy of all does
        ("none", []),
    ],
)
def test_lines_that_take_longer_for_more_elements_are_found(name, lines):
    assert sorted(lines_that_work_through(ast.parse(SOURCE), name)) == lines


LOOP = """\
def other(losses, loss):
    losses.append(loss)

def train(losses, total):
    for batch in loader:
        loss = model(batch)
        scaler.scale(loss / 2).backward()
        {}
"""


KEEPING = ("losses.append(loss)", "losses.append((step, loss))", "losses.append(loss / 8)", "total += loss")
KEEPING += ("self.total += loss * len(batch)", "total = total + loss", "history[step] = loss")
NOT_KEEPING = ("losses.append(loss.item())", "losses.append(loss.detach())", "losses.append(float(loss))", "count += 1")
NOT_KEEPING += ("total += loss.item() * len(batch)", "loss += penalty", "last = loss", "losses.append(accuracy)")


@pytest.mark.parametrize("line", [*KEEPING, *NOT_KEEPING])
def test_a_line_that_keeps_the_graph_is_found(line):
    assert kept_at(ast.parse(LOOP.format(line)), 7) == [8] * (line in KEEPING)


def test_a_part_of_the_loss_is_found():
    lines = "losses.append(policy_loss)\nloss = policy_loss + value_loss\nloss.backward()\n"
    assert kept_at(ast.parse(lines), 3) == [1]


METHODS = """\
class Net:
    def training_step(self, batch, index):
        {}
        return {}

    def validation_step(self, batch, index):
        self.losses.append(loss)
        return loss
"""


@pytest.mark.parametrize(
    ("line", "returned", "kept"),
    [
        ("self.losses.append(loss)", "loss", "train.py:3"),
        ("self.total += loss", "{'loss': loss}", "train.py:3"),
        ("self.total += loss", "(loss, outputs) if both else loss", "train.py:3"),
        ("self.losses.append(outputs['loss'])", "outputs", "train.py:3"),
        ("self.losses.append(loss.detach())", "loss", ""),
        ("self.seen.append(batch)", "self.loss(batch)", ""),
    ],
)
def test_a_method_that_keeps_the_loss_it_returns_to_a_trainer_is_found(tmp_path, line, returned, kept):
    (tmp_path / "train.py").write_text(METHODS.format(line, returned))
    assert lines_of_methods(str(tmp_path / "train.py"), "Net") == kept
    assert lines_of_methods(str(tmp_path / "train.py"), "Other") == ""


def test_escapes_in_the_file_are_not_warned_of(tmp_path):
    source = "digits = r'\\\\' + '\\d' + 'it\\'s'\nloss = 1 + \\\n    2\nlosses.append(loss)\nloss.backward()\n"
    (tmp_path / "train.py").write_text(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lines_that_keep(CallSite("train.py", 5, str(tmp_path / "train.py"))) == "train.py:4"


@pytest.mark.parametrize("content", [b"def (", b"\x00", b"x = (" * 5000])
def test_a_file_that_cannot_be_read_has_no_line(tmp_path, content):
    (tmp_path / "train.py").write_bytes(content)
    assert lines_that_keep(CallSite("train.py", 1, str(tmp_path / "train.py"))) == ""
    assert lines_that_keep(CallSite("train.py", 1, str(tmp_path / "missing.py"))) == ""
    assert lines_that_keep(CallSite("<stdin>", 1)) == ""
