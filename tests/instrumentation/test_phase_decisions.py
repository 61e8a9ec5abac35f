"""Cases in which calls could belong to a step or to evaluation."""

import itertools

from tests.support.fake_training import FakeLoader, FakeModule, Loss, epochs, phases
from training_profiler.instrumentation.loop_detection.no_grad_runs import MAX_TEACHER_CALLS
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING
from training_profiler.instrumentation.loop_detection.phase_detector import MAX_MISSES


def test_micro_batches_fetched_ahead_belong_to_the_step(training, model, optimizer):
    batches = iter(FakeLoader(training, 6))
    for _ in range(2):
        for batch in [next(batches) for _ in range(3)]:
            model(batch)
            training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert (stats.counts["data_loading"], stats.counts["forward_pass"]) == (6, 6)
    assert stats.step_s == [19.0, 19.0]


def test_frozen_teacher_is_part_of_the_step(training, model, optimizer, loader):
    teacher = FakeModule(training, requires_grad=False, seconds=5)
    for batch in loader:
        with training.no_grad():
            teacher(batch)
        model(batch)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts == epochs(1, forward_without_grad=3)
    assert stats.total_s["forward_without_grad"] == 15.0
    assert stats.step_s == [12.0] * 3


def test_frozen_teacher_without_loader_is_part_of_the_step(training, model, optimizer):
    teacher = FakeModule(training, requires_grad=False, seconds=5)
    for _ in range(3):
        for _ in range(MAX_TEACHER_CALLS):
            with training.no_grad():
                teacher(0)
        model(0)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_without_grad"] == 3 * MAX_TEACHER_CALLS
    assert stats.step_s == [5.0 * MAX_TEACHER_CALLS + 6.0] * 3


def test_many_frozen_calls_without_loader_are_evaluation(training, model, optimizer):
    judge = FakeModule(training, requires_grad=False, seconds=1)
    for _ in range(3):
        with training.no_grad():
            for _ in range(MAX_TEACHER_CALLS + 1):
                judge(0)
        model(0)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["validation_epoch/forward_pass"] == 3 * (MAX_TEACHER_CALLS + 1)
    assert stats.counts["validation_epoch"] == 3
    assert stats.step_s == [6.0] * 3


def test_no_grad_call_of_trained_module_within_step_is_not_evaluation(training, model, optimizer, loader):
    for batch in loader:
        model(batch)
        with training.no_grad():
            model(batch)  # e.g. the target of double Q-learning
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts == epochs(1, forward_without_grad=3)
    assert stats.step_s == [9.0] * 3


def test_sampling_between_steps_is_evaluation(training, model, optimizer, loader):
    for number, batch in enumerate(loader):
        model(batch)
        training.backward()
        training.update(optimizer)
        if number == 1:
            with training.no_grad():  # in train mode
                for _ in range(20):
                    model(0)
    stats = training.finish()
    assert stats.counts == epochs(1, **{"validation_epoch": 1, "validation_epoch/forward_pass": 20})
    assert stats.total_s["validation_epoch"] == 40.0
    assert stats.step_s == [7.0] * 3


def test_sampling_without_a_loader_ends_with_its_last_call(training, model, optimizer):
    for _ in range(3):
        model(0)
        training.backward()
        training.update(optimizer)
        with training.no_grad():
            model(0)
        training.spend(0.5)
    stats = training.finish()
    assert stats.counts["validation_epoch/forward_pass"] == 3
    assert stats.total_s["validation_epoch"] == 6.0
    assert stats.step_s == [6.0, 6.5, 6.5]  # time after the last step is outside steps


def test_evaluation_can_begin_with_module_without_parameters(training, model, optimizer, loader):
    normalize = Loss(training)
    training.train(model, loader, optimizer)
    with training.no_grad():
        for _ in range(4):
            normalize(0)
            model(0)
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts == epochs(2, **{"validation_epoch": 1, "validation_epoch/forward_pass": 4})
    assert stats.total_s["validation_epoch"] == 12.0
    assert stats.total_s["validation_epoch/forward_pass"] == 12.0
    assert stats.total_s["forward_pass"] == 12.0


def test_loss_extends_the_forward_pass_of_evaluation(training, model, optimizer, loader, val_loader):
    loss = Loss(training)
    training.train(model, loader, optimizer)
    with training.no_grad():
        for batch in val_loader:
            model(batch)
            loss(batch)
    stats = training.finish()
    assert stats.counts == epochs(1, **phases())
    assert stats.total_s["validation_epoch/forward_pass"] == 12.0
    assert stats.total_s["validation_epoch"] == 14.0


def test_pass_for_data_statistics_is_not_evaluation(training, model, optimizer, loader, val_loader):
    for _ in FakeLoader(training, 5):
        training.spend(0.5)
    training.train(model, loader, optimizer)
    with training.no_grad():
        for batch in val_loader:
            model(batch)
    stats = training.finish()
    assert stats.counts == epochs(1, **phases()) | {"data_loading": 8, "first_fetch": 2}
    assert training.loop_begin_s == 7.5
    assert stats.step_s == [7.0] * 3


def test_statistics_pass_within_the_loop_is_not_evaluation(training, model, optimizer, loader):
    for batch in loader:
        for _ in FakeLoader(training, 2):
            pass
        model(batch)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts == epochs(1) | {"data_loading": 9, "first_fetch": 4}
    assert stats.step_s == [9.0] * 3


def test_long_evaluation_is_drained_meanwhile(training, model, optimizer, loader):
    drains = []
    on_full = training.recorder.on_full
    training.recorder.on_full = lambda: (drains.append(training.recorder.watermark_ns), on_full())
    training.train(model, loader, optimizer)
    drains.clear()
    model.seconds = 0.25
    with training.no_grad():
        for batch in FakeLoader(training, 100, seconds=0.25):
            model(batch)
    assert len(drains) == 50
    assert len(training.pending.events) < 20
    model.seconds = 2.0
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(100))
    assert stats.total_s["validation_epoch"] == 50.0
    assert stats.step_s == [7.0] * 6


def test_long_evaluation_without_loader_is_drained_meanwhile(training, optimizer, loader):
    model = FakeModule(training, seconds=0.25)
    training.train(model, loader, optimizer)
    calls = MAX_PENDING // 4 + 1_000
    with training.no_grad():
        for _ in range(calls):
            model(0)
    assert len(training.pending.events) < MAX_PENDING
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts == epochs(2, **{"validation_epoch": 1, "validation_epoch/forward_pass": calls})
    assert stats.total_s["validation_epoch"] == calls / 4


def test_long_evaluation_after_unresolved_fetch_is_recognized(training, optimizer, loader):
    model = FakeModule(training, seconds=0.25)
    training.train(model, loader, optimizer)
    next(iter(loader))
    calls = MAX_PENDING // 4 + 1_000
    with training.no_grad():
        for _ in range(calls):
            model(0)
    assert len(training.pending.events) < MAX_PENDING
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 1
    assert stats.counts["validation_epoch/forward_pass"] == calls


def test_pass_mistaken_for_evaluation_becomes_training_after_some_steps(training, model, optimizer):
    with training.no_grad():
        batches = iter(FakeLoader(training, 20))
        model(next(batches))  # to inspect a first batch
    for batch in itertools.islice(batches, 10):
        model(batch)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 10
    assert stats.counts["data_loading"] == 10 - MAX_MISSES - 1


def test_pass_evaluated_at_each_step_stays_evaluation(training, model, optimizer):
    batches = iter(FakeLoader(training, 12))
    validation = iter(FakeLoader(training, 12, seconds=0.5))
    for _ in range(12):
        model(next(batches))
        training.backward()
        training.update(optimizer)
        with training.no_grad():
            model(next(validation))
    stats = training.finish()
    assert stats.counts["validation_epoch/data_loading"] == stats.counts["validation_epoch/forward_pass"] == 12
    assert stats.counts["data_loading"] == 12
    assert stats.step_s == [7.0] * 12


def test_evaluation_between_fetch_and_forward_pass_is_outside_the_step(training, model, optimizer, loader, val_loader):
    for batch in loader:
        with training.no_grad():
            for other in val_loader:
                model(other)
        model(batch)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts == epochs(1, **phases(4, times=3))
    assert stats.step_s == [6.0, 7.0, 7.0]  # the first batch was drained before the training was detected


def test_evaluation_between_micro_batches_is_outside_the_step(training, model, optimizer, val_loader):
    batches = iter(FakeLoader(training, 4))
    for _ in range(2):
        for _ in range(2):
            model(next(batches))
            training.backward()
            with training.no_grad():
                for batch in val_loader:
                    model(batch)
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 4
    assert stats.counts["forward_pass"] == 4
    assert stats.step_s == [13.0, 13.0]


def test_gradients_within_an_evaluation_are_no_training(training, optimizer):
    """A potential computes forces as gradients of its energy in each forward pass, in evaluations as well."""

    def gradient(*_):
        training.detector.backward_begins()
        training.clock.advance(1.0)
        training.detector.backward_ends()

    model = FakeModule(training, work=gradient)
    for _ in range(3):
        for _ in range(4):
            model(0)
            training.backward()
            training.update(optimizer)
        model.eval()
        with training.no_grad():
            for _ in range(5):
                model(0)
        model.train()
    stats = training.finish()
    assert (stats.counts["validation_epoch"], stats.counts["validation_epoch/forward_pass"]) == (3, 15)
    assert stats.total_s["validation_epoch"] == 3 * 5 * 3.0
    assert (stats.counts["forward_pass"], stats.counts["optimizer_step"]) == (12, 12)
    assert stats.total_s["forward_pass"] == 12 * 3.0
