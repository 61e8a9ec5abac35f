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


def test_code_between_an_update_and_clearing_gradients_is_not_the_optimizers(instrumented):
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()  # at the begin of a step, as most programs do
        weight.sum().backward()
        optimizer.step()
        instrumented.clock.advance(1.0)
    instrumented.instrumentation.close()
    sections = instrumented.run.totals().sections
    update = next(id for id, name in instrumented.run.names.names.items() if name == "optimizer_step")
    assert sections.count[update] == 3
    assert sections.total_ns[update] < 1e9


def updates_of(instrumented) -> int:
    """Return how many spans of optimizer updates there are, which is also how many steps there are."""
    instrumented.instrumentation.close()
    totals = instrumented.run.totals()
    ids = [id for id, name in instrumented.run.names.names.items() if name == "optimizer_step"]
    spans = sum(totals.sections.count[id] for id in ids if id < len(totals.sections.count))
    assert totals.steps.count == spans
    return spans


def test_a_loop_that_plots_a_schedule_has_no_updates(instrumented):
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    for _ in range(5):
        optimizer.step()  # no parameter has a gradient
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(5):
        optimizer.step()
    assert updates_of(instrumented) == 3


def test_gradients_without_a_backward_pass_are_used_by_updates(instrumented):
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        weight.grad = torch.ones(2)  # as evolution strategies do
        optimizer.step()
    assert updates_of(instrumented) == 4


def test_an_update_that_clears_its_gradients_itself_counts(instrumented):
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
    for _ in range(4):
        weight.sum().backward()
        optimizer.step()
    assert updates_of(instrumented) == 4


def test_an_optimizer_of_the_users_may_need_no_gradients(instrumented):
    class RandomSearch(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self):
            self.param_groups[0]["params"][0].data.add_(0.1)

    optimizer = RandomSearch([torch.zeros(2, requires_grad=True)])
    for _ in range(4):
        optimizer.step()
    assert updates_of(instrumented) == 4
