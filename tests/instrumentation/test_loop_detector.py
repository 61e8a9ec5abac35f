import itertools

import pytest

from tests.support.fake_training import EPOCH, FakeLoader, FakeModule, FakeOptimizer, Loss
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING


def test_training_loop_has_steps_of_fetch_forward_backward_update(training, model, optimizer, loader):
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts == EPOCH
    assert stats.total_s == {
        "data_loading": 3.0,
        "first_fetch": 1.0,
        "forward_pass": 6.0,
        "backward_pass": 9.0,
        "optimizer_step": 3.0,
    }
    assert stats.step_s == [7.0, 7.0, 7.0]


def test_loop_begins_with_its_first_fetch(training, model, optimizer, loader):
    training.spend(5)
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert training.loop_begin_s == 5.0
    assert stats.self_s[""] == 5.0
    assert stats.step_s == [7.0, 7.0, 7.0]


def test_loop_without_loader_begins_with_its_first_forward_pass(training, model, optimizer):
    for _ in range(3):
        training.spend(4)  # a batch from a memory map
        model(0)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert training.loop_begin_s == 4.0
    assert stats.counts == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}
    assert stats.step_s == [6.0, 10.0, 10.0]


def test_time_after_the_last_step_is_outside_steps(training, model, optimizer, loader):
    training.train(model, loader, optimizer)
    training.spend(9)
    stats = training.finish()
    assert stats.step_s == [7.0, 7.0, 7.0]
    assert stats.self_s[""] == 9.0


def test_single_step_training_has_one_step(training, model, optimizer):
    training.train(model, FakeLoader(training, 1), optimizer)
    stats = training.finish()
    assert stats.counts == dict.fromkeys(EPOCH, 1)
    assert stats.step_s == [7.0]


def test_accumulated_gradients_make_one_step(training, model, optimizer):
    for number, batch in enumerate(FakeLoader(training, 8), 1):
        model(batch)
        training.backward()
        if number % 4 == 0:
            training.update(optimizer)
    stats = training.finish()
    assert (stats.counts["forward_pass"], stats.counts["backward_pass"]) == (8, 8)
    assert stats.step_s == [25.0, 25.0]


def test_skipped_update_ends_no_step(training, model, optimizer, loader):
    for number, batch in enumerate(loader):
        model(batch)
        training.backward()
        training.update(optimizer, is_skipped=number == 1)
    stats = training.finish()
    assert stats.step_s == [7.0, 14.0]
    assert training.detector.updates == 2


def test_two_alternating_optimizers_make_one_step(training, optimizer):
    generator, critic = FakeModule(training), FakeModule(training)
    other = FakeOptimizer()
    for batch in FakeLoader(training, 3):
        for one, its_optimizer in ((critic, optimizer), (generator, other)):
            one(batch)
            training.backward()
            training.update(its_optimizer)
    stats = training.finish()
    assert stats.counts == {
        "data_loading": 3,
        "first_fetch": 1,
        "forward_pass": 6,
        "backward_pass": 6,
        "optimizer_step": 6,
    }
    assert stats.step_s == [13.0, 13.0, 13.0]


def test_evaluation_and_drains_keep_step_times_of_two_optimizers(training, optimizer):
    generator, critic = FakeModule(training), FakeModule(training)
    other = FakeOptimizer()
    for batch in FakeLoader(training, 3):
        for one, its_optimizer in ((critic, optimizer), (generator, other)):
            one(batch)
            training.backward()
            training.update(its_optimizer)
        with training.no_grad():
            for noise in FakeLoader(training, 5):
                generator(noise)
        training.spend(2)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 3
    assert stats.step_s == [13.0, 15.0, 15.0]  # includes the two seconds after the step before


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
