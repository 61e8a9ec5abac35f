"""Which fetches and calls belong to an evaluation."""

import pytest

from tests.support.fake_training import FakeLoader, FakeOptimizer, epochs, phases


def test_no_grad_around_the_loop_is_evaluation(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        model.eval()
        with training.no_grad():
            for batch in val_loader:
                model(batch)
        model.train()
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2))
    assert stats.total_s["validation_epoch"] == 2 * 4 * 2.5
    assert stats.self_s["validation_epoch/forward_pass"] == 16.0
    assert stats.step_s == [7.0] * 6


def test_no_grad_inside_the_loop_is_evaluation_from_its_first_batch(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        for batch in val_loader:
            with training.no_grad():
                model(batch)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2))
    assert stats.total_s["validation_epoch"] == 2 * 4 * 2.5
    assert stats.step_s == [7.0] * 6


def test_eval_mode_with_gradients_is_evaluation(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        model.eval()
        for batch in val_loader:
            model(batch)
        model.train()
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2))
    assert stats.step_s == [7.0] * 6


@pytest.mark.parametrize("is_around", [True, False])
def test_single_batch_can_be_evaluation(training, model, optimizer, loader, val_loader, is_around):
    for _ in range(2):
        training.train(model, loader, optimizer)
        if is_around:
            with training.no_grad():
                model(next(iter(val_loader)))
        else:
            batch = next(iter(val_loader))
            with training.no_grad():
                model(batch)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(1, times=2))
    assert stats.total_s["validation_epoch"] == 2 * 2.5
    assert stats.step_s == [7.0] * 6


def test_evaluation_within_an_epoch_is_outside_steps(training, model, optimizer, loader, val_loader):
    for number, batch in enumerate(loader):
        model(batch)
        training.backward()
        training.update(optimizer)
        if number == 1:
            with training.no_grad():
                model(next(iter(val_loader)))
    stats = training.finish()
    assert stats.counts == epochs(1, **phases(1))
    assert stats.step_s == [7.0, 7.0, 7.0]


def test_aborted_evaluation_ends_with_its_last_forward_pass(training, model, optimizer, loader, val_loader):
    training.train(model, loader, optimizer)
    with training.no_grad():
        for number, batch in enumerate(val_loader):
            model(batch)
            if number == 1:
                break
    training.spend(5)
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(2))
    assert stats.total_s["validation_epoch"] == 5.0
    assert stats.self_s[""] == 5.0
    assert stats.step_s == [7.0, 7.0, 7.0, 12.0, 7.0, 7.0]


def test_evaluation_on_the_training_loader_is_recognized(training, model, optimizer, loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        for batch in loader:
            with training.no_grad():
                model(batch)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(3, times=2))
    assert stats.step_s == [7.0] * 6


def test_evaluation_before_the_first_step_is_outside_the_loop(training, model, optimizer, loader, val_loader):
    with training.no_grad():
        for batch in val_loader:
            model(batch)
    training.spend(2)
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts == epochs(1, **phases())
    assert training.loop_begin_s == 12.0
    assert stats.step_s == [7.0] * 3


def test_evaluation_at_the_end_of_the_run_is_recognized(training, model, optimizer, loader, val_loader):
    training.train(model, loader, optimizer)
    batch = next(iter(val_loader))
    with training.no_grad():
        model(batch)
    stats = training.finish()
    assert stats.counts == epochs(1, **phases(1))
    assert stats.total_s["validation_epoch"] == 2.5


def test_evaluation_without_training_is_recognized(training, model, val_loader):
    for batch in val_loader:
        with training.no_grad():
            model(batch)
    stats = training.finish()
    assert stats.counts == phases()
    assert training.marks == []


def test_evaluation_ends_before_the_checkpoint_that_follows(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        for batch in val_loader:
            with training.no_grad():
                model(batch)
        training.save(4)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2), checkpointing=2)
    assert stats.total_s["validation_epoch"] == 2 * 10.0
    assert stats.total_s["checkpointing"] == 8.0
    assert stats.step_s == [7.0] * 6


def test_checkpoint_between_steps_keeps_the_next_batch_in_its_step(training, model, optimizer, loader):
    for batch in loader:
        model(batch)
        training.backward()
        training.update(optimizer)
        training.save(4)
    stats = training.finish()
    assert stats.counts == epochs(1, checkpointing=3)
    assert stats.step_s == [7.0] * 3


def test_successive_evaluations_are_one(training, model, optimizer, loader, val_loader):
    test_loader = FakeLoader(training, 2, seconds=0.5)
    for _ in range(2):
        training.train(model, loader, optimizer)
        for one in (val_loader, test_loader):
            with training.no_grad():
                for batch in one:
                    model(batch)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 2
    assert stats.counts["validation_epoch/data_loading"] == stats.counts["validation_epoch/forward_pass"] == 12
    assert stats.total_s["validation_epoch"] == 2 * 6 * 2.5


def test_concurrent_evaluation_loaders_are_recognized(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        for batches in zip(val_loader, FakeLoader(training, 4, seconds=0.5), strict=True):
            with training.no_grad():
                model(*batches)
    stats = training.finish()
    assert stats.counts["data_loading"] == 6
    assert stats.counts["validation_epoch"] == 2
    assert stats.counts["validation_epoch/data_loading"] == 16
    assert stats.total_s["validation_epoch"] == 2 * 4 * 3.0


def test_restarted_loader_within_evaluation_opens_no_second_one(training, model, optimizer, loader, val_loader):
    training.train(model, loader, optimizer)
    for batch in val_loader:
        support = next(iter(loader))
        with training.no_grad():
            model(batch, support)
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 1
    assert stats.counts["validation_epoch/data_loading"] == 8
    assert stats.counts["validation_epoch/forward_pass"] == 4
    assert stats.total_s["validation_epoch"] == 4 * (0.5 + 1.0 + 2.0)
    assert stats.step_s == [7.0] * 6


def test_evaluation_with_read_ahead_is_recognized(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        with training.no_grad():
            for batch in ahead(val_loader):
                model(batch)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2))
    assert stats.total_s["validation_epoch"] == 2 * 10.0


def ahead(loader):
    """Yield each batch after the next is fetched."""
    waiting = []
    for batch in loader:
        waiting.append(batch)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting


def test_training_with_read_ahead_is_training(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        for batch in ahead(loader):
            model(batch)
            training.backward()
            training.update(optimizer)
        for batch in val_loader:
            with training.no_grad():
                model(batch)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2))
    # The first step of an epoch fetches two batches, the last none.
    assert stats.step_s == [8.0, 7.0, 6.0] * 2


def test_manual_epoch_ends_evaluation(training, model, optimizer, loader, val_loader):
    training.train(model, loader, optimizer)
    for batch in val_loader:
        with training.no_grad():
            model(batch)
    training.detector.resolve_pending()
    training.spend(4)
    stats = training.finish()
    assert stats.counts == epochs(1, **phases())
    assert stats.total_s["validation_epoch"] == 10.0


def test_manual_epoch_ends_the_pending_step(training, model):
    first, second = FakeOptimizer(), FakeOptimizer()
    for _ in range(2):
        for optimizer in (first, second):
            model(0)
            training.backward()
            training.update(optimizer)
    assert training.steps == 1
    training.detector.resolve_pending()
    assert training.steps == 2
    assert training.finish().step_s == [12.0, 12.0]
