import sys

import pytest
import torch

from training_profiler.instrumentation.patches.optimizer import OpenUpdates


class Optimizer:
    """A fake optimizer: calls its hooks around ``step``; ``inner`` steps inside and may raise."""

    def __init__(self, updates, inner=None, error=None):
        self.updates = updates
        self.inner = inner
        self.error = error
        self.begun = []
        self.ended = []

    def step(self):
        self.begun.append(self.updates.begin(self, sys._getframe()))
        if self.inner is not None:
            self.inner()
        if self.error is not None:
            raise self.error
        self.ended.append(self.updates.end(self))


@pytest.fixture
def updates() -> OpenUpdates:
    return OpenUpdates()


def test_update_after_a_failed_one_is_outermost_and_reports_it(updates):
    optimizer = Optimizer(updates, error=ValueError())
    with pytest.raises(ValueError):  # noqa: PT011
        optimizer.step()
    assert optimizer.ended == []
    optimizer.error = None
    optimizer.step()
    optimizer.step()
    assert optimizer.begun == [(True, False), (True, True), (True, False)]
    assert optimizer.ended == [True, True]


def test_a_failed_update_is_not_taken_for_a_caller_whose_frame_lies_where_its_own_was(updates):
    optimizer = Optimizer(updates)
    updates.open.append((id(optimizer), id(sys._getframe()), Optimizer.step.__code__))
    optimizer.step()
    assert optimizer.begun == [(True, True)]


def test_failed_inner_update_ends_with_the_outer(updates):
    inner = Optimizer(updates, error=ValueError())

    def attempt():
        with pytest.raises(ValueError):  # noqa: PT011
            inner.step()

    outer = Optimizer(updates, attempt)
    outer.step()
    assert outer.ended == [True]
    assert updates.open == []


def test_end_without_begin_is_ignored(updates):
    assert not updates.end(Optimizer(updates))


class RandomSearch(torch.optim.Optimizer):
    """Needs no gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        self.param_groups[0]["params"][0].data.add_(0.1)


def clearing_itself(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
    return optimizer


# A backward pass, a gradient that is set as evolution strategies do, an update, clearing, other work for 1 s.
UPDATES = {
    "gradients are cleared at the begin of a step": (torch.optim.SGD, 3 * "zbu.", 3),
    "a schedule is plotted before and after": (torch.optim.Adam, "uuuuu" + 3 * "buz" + "uuuuu", 3),
    "no backward pass": (torch.optim.SGD, 4 * "gu", 4),
    "an update clears its gradients itself": (clearing_itself, 4 * "bu", 4),
    "an optimizer of the user's needs no gradients": (RandomSearch, 4 * "u", 4),
}


@pytest.mark.parametrize(("kind", "events", "count"), UPDATES.values(), ids=UPDATES)
def test_updates_are_steps_where_they_may_change_something(instrumented, kind, events, count):
    weight = torch.zeros(2, requires_grad=True)
    optimizer = kind([weight])
    do = {
        "b": lambda: weight.sum().backward(),
        "g": lambda: setattr(weight, "grad", torch.ones(2)),
        "u": optimizer.step,
        "z": optimizer.zero_grad,
        ".": lambda: instrumented.clock.advance(1.0),
    }
    for event in events:
        do[event]()
    instrumented.instrumentation.close()
    totals = instrumented.run.totals()
    update = next(id for id, name in instrumented.run.names.names.items() if name == "optimizer_step")
    assert totals.steps.count == totals.sections.count[update] == count
    assert totals.sections.total_ns[update] < 1e9  # what lies between an update and clearing is not the optimizer's
