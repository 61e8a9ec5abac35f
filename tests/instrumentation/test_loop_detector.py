import itertools

import pytest

from tests.support.fake_training import EPOCH, FakeLoader, FakeModule, Loss
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING


def test_manual_steps_replace_inferred_steps(training, model, optimizer, loader):
    for batch in loader:
        model(batch)
        training.backward()
        training.update(optimizer)
        training.spend(1)
        training.detector.use_manual_steps()
        training._end_step(training.clock())
    stats = training.finish()
    assert stats.counts == EPOCH
    assert stats.step_s == [8.0, 8.0, 8.0]


def test_pending_step_is_dropped_for_manual_steps(training, model, optimizer, loader):
    batch = next(iter(loader))
    model(batch)
    training.backward()
    training.update(optimizer)
    training.detector.use_manual_steps()
    training.finish()
    assert training.steps == 0


def test_failing_fetch_is_not_counted(training, model, optimizer, loader):
    batches = iter(loader)
    next(batches)
    one = training.detector.fetch_begins(batches, False)
    training.spend(2)
    training.detector.fetch_fails(one, is_over=False)
    model(next(batches))
    training.backward()
    stats = training.finish()
    assert stats.counts["data_loading"] == 2
    assert stats.total_s["data_loading"] == 2.0
    assert stats.self_s[""] == 2.0


def test_first_fetch_of_empty_loader_is_not_recorded(training):
    assert list(FakeLoader(training, 0)) == []
    stats = training.finish()
    assert stats.counts == {}


def test_events_within_a_failed_fetch_are_kept(training):
    batches = iter(FakeLoader(training, 1))
    one = training.detector.fetch_begins(batches, True)
    with training.run.section("decode"):
        training.spend(2)
    training.detector.fetch_fails(one, is_over=True)
    stats = training.finish()
    assert stats.counts == {"decode": 1}


def test_update_with_repeated_closure_is_one_step(training, model, optimizer):
    def closure():
        model(0)
        training.backward()

    for _ in range(2):
        training.update(optimizer, closure=closure, evaluations=20)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 40, "backward_pass": 40, "optimizer_step": 2}
    assert stats.total_s["optimizer_step"] == 40.0
    assert stats.step_s == [20 * 6.0] * 2


def test_closure_without_module_keeps_update_time(training, optimizer):
    def closure():
        training.spend(5)
        training.backward()

    for _ in range(2):
        training.update(optimizer, closure=closure)
    stats = training.finish()
    assert stats.counts == {"backward_pass": 2, "optimizer_step": 2}
    assert stats.total_s == {"backward_pass": 6.0, "optimizer_step": 12.0}


def test_loss_that_a_trainer_announces_belongs_to_no_update(training, optimizer):
    def closure():
        training.detector.loss_begins()
        training.spend(5)
        training.backward()

    training.detector.loss_begins()  # outside of an update it changes nothing
    for _ in range(2):
        training.update(optimizer, closure=closure)
    stats = training.finish()
    assert stats.counts == {"backward_pass": 2, "optimizer_step": 2}
    assert stats.total_s == {"backward_pass": 6.0, "optimizer_step": 2.0}


def test_update_with_closure_counts_its_last_part(training, model, optimizer):
    def closure():
        model(0)
        training.backward()

    def begin_slowly():
        training.spend(3)
        closure()

    training.update(optimizer, 4, closure=begin_slowly)
    counted = training.codes.optimizer
    spans = [(ns, code) for ns, code in zip(*[iter(training.pending.events)] * 2, strict=True) if abs(code) == counted]
    assert [code for _, code in spans] == [counted, -counted]
    assert spans[1][0] - spans[0][0] == 4e9


def test_update_ending_with_its_closure_counts(training, optimizer):
    training.detector.update_begins()
    training.detector.update.closure_begins()
    training.spend(2)
    training.detector.update_ends(optimizer)
    assert training.finish().counts == {"optimizer_step": 1}


def test_each_gradient_within_an_update_is_a_backward_pass(training, model, optimizer):
    def closure():
        model(0)
        training.backward()
        training.backward(1)

    for _ in range(2):
        training.update(optimizer, closure=closure)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 2, "backward_pass": 4, "optimizer_step": 2}
    assert stats.total_s["optimizer_step"] == 2.0


def test_failed_update_is_ended_by_the_next(training, model, optimizer):
    training.detector.update_begins()
    training.spend(1)
    training.detector.update.end()
    training.spend(1)
    training.update(optimizer)
    stats = training.finish()
    assert stats.total_s["optimizer_step"] == 2.0
    assert training.steps == 1


def test_training_without_updates_is_drained(training, model):
    for _ in range(MAX_PENDING // 8 + 10):
        model(0)
        training.backward()
    assert len(training.pending.events) < MAX_PENDING
    stats = training.finish()
    assert stats.counts == {"forward_pass": MAX_PENDING // 8 + 10, "backward_pass": MAX_PENDING // 8 + 10}
    assert stats.step_s == []


def test_first_gradient_makes_it_a_training(training, model):
    model(0)
    assert not training.detector.has_trained
    training.backward()
    assert training.detector.has_trained


@pytest.mark.parametrize("drain_after", range(40))
def test_drain_times_do_not_change_results(training, model, optimizer, loader, val_loader, drain_after):
    loss = Loss(training)
    moments = itertools.count(1)

    def maybe_drain():
        training.spend(0.25)
        if next(moments) == drain_after:
            training.run.drain()
        training.spend(0.25)

    for _ in range(2):
        for batch in loader:
            maybe_drain()
            model(batch)
            maybe_drain()
            loss(batch)
            training.backward()
            maybe_drain()
            training.update(optimizer)
            maybe_drain()
        for batch in val_loader:
            maybe_drain()
            with training.no_grad():
                model(batch)
            maybe_drain()
        training.spend(0.25)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 2
    assert stats.counts["validation_epoch/forward_pass"] == 8
    assert (stats.counts["data_loading"], stats.counts["forward_pass"]) == (6, 6)
    assert stats.total_s["forward_pass"] == 6 * 3.5  # includes the time between model and loss
    assert stats.total_s["validation_epoch"] == 2 * 4 * 3.5
    assert stats.step_s == [9.5, 10.0, 10.0, 10.25, 10.0, 10.0]


def test_module_that_gets_its_parameters_later_has_forward_passes(training, optimizer):
    model, other = FakeModule(training, parameters=0), FakeModule(training)

    def step():
        other(0)
        with training.run.section("augment"):
            training.spend(1)
        model(0)
        training.backward()
        training.update(optimizer)

    step()
    model._parameters["weight"] = next(iter(other._parameters.values()))
    for _ in range(9):
        step()
    assert training.finish().counts["forward_pass"] == 20 - 1
