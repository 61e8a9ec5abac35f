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


def test_single_update_is_outermost(updates):
    optimizer = Optimizer(updates)
    for _ in range(3):
        optimizer.step()
    assert optimizer.begun == [(True, False)] * 3
    assert optimizer.ended == [True] * 3
    assert updates.open == []


def test_nested_update_is_not_outermost(updates):
    inner = Optimizer(updates)
    outer = Optimizer(updates, inner.step)
    outer.step()
    assert (inner.begun, inner.ended) == ([(False, False)], [False])
    assert (outer.begun, outer.ended) == ([(True, False)], [True])


def test_base_class_update_is_part_of_the_subclass_update(updates):
    class Subclass(Optimizer):
        def step(self):
            self.begun.append(self.updates.begin(self, sys._getframe()))
            super().step()
            self.ended.append(self.updates.end(self))

    optimizer = Subclass(updates)
    optimizer.step()
    assert optimizer.begun == [(True, False), (False, False)]
    assert optimizer.ended == [False, True]


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


def test_update_without_frame_is_outermost(updates):
    assert updates.begin(self_made := object(), None) == (True, False)
    assert updates.end(self_made)


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
