"""Batches that never reach a backward pass are an evaluation, whether gradients are enabled or not."""

import pytest

from tests.support.fake_training import FakeLoader, FakeModule, FakeOptimizer, Loss, epochs, phases
from training_profiler.recording.data_loader import LoaderRegistry


def with_grad(training):
    """Return the number and the seconds of evaluations' forward passes with gradients."""
    count, spent_ns = training.detector.phases.with_grad.pop()
    return count, spent_ns / 1e9


def test_train_mode_evaluation_is_found_at_the_next_batch(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        for batch in val_loader:
            model(batch)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2))
    assert stats.total_s["validation_epoch"] == 2 * 4 * 2.5
    assert with_grad(training) == (8, 16.0)
    assert stats.step_s == [7.0] * 6


def test_loss_of_train_mode_evaluation_is_part_of_it(training, model, optimizer, loader, val_loader):
    loss = Loss(training)
    for _ in range(2):
        training.train(model, loader, optimizer)
        for batch in val_loader:
            model(batch)
            loss(batch)
        training.save(4)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(4, times=2), checkpointing=2)
    assert stats.total_s["validation_epoch"] == 2 * 4 * 3.5
    assert stats.step_s == [7.0] * 6


def test_evaluation_amid_an_endless_training_iterator_is_found(training, model, optimizer, val_loader):
    batches = iter(FakeLoader(training, 6))
    for number in range(6):
        model(next(batches))
        training.backward()
        training.update(optimizer)
        if number % 3 == 2:
            for _, batch in zip(range(2), val_loader, strict=False):
                model(batch)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 2
    assert with_grad(training)[0] == stats.counts["validation_epoch/forward_pass"] == 4
    assert (stats.counts["forward_pass"], stats.counts["data_loading"]) == (6, 6)
    assert stats.step_s == [7.0] * 6


def test_losses_summed_over_a_loader_are_training(training, model, optimizer, loader):
    for _ in range(2):
        for batch in loader:
            model(batch)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 6
    assert "validation_epoch" not in stats.counts
    assert stats.step_s == [13.0] * 2


def test_single_batches_of_two_loaders_are_training(training, model, optimizer):
    one, other = FakeLoader(training, 3), FakeLoader(training, 3)
    for _ in range(3):
        model(next(iter(one)))
        model(next(iter(other)))
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 6
    assert "validation_epoch" not in stats.counts


def test_eval_mode_with_gradients_is_counted(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        model.eval()
        for batch in val_loader:
            model(batch)
        model.train()
    assert training.finish().counts == epochs(2, **phases(4, times=2))
    assert with_grad(training) == (8, 16.0)


def test_concurrent_evaluation_loaders_without_gradients_have_none(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        training.train(model, loader, optimizer)
        for batches in zip(val_loader, FakeLoader(training, 4), strict=True):
            with training.no_grad():
                model(*batches)
    assert training.finish().counts["validation_epoch/forward_pass"] == 8
    assert with_grad(training) == (0, 0)


@pytest.mark.parametrize("calls", [1, 5])
def test_eval_mode_with_gradients_and_without_a_loader_is_evaluation(training, model, optimizer, calls):
    for _ in range(4):
        model.train()
        model(0)
        training.backward()
        training.update(optimizer)
        model.eval()
        for _ in range(calls):
            model(0)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 4
    assert with_grad(training) == (4 * calls, 8.0 * calls)
    assert stats.counts["validation_epoch/forward_pass"] == 4 * calls
    assert stats.counts["forward_pass"] == 4
    assert stats.step_s == [6.0] * 4


def test_training_in_eval_mode_is_training(training, model, optimizer):
    for number in range(6):
        model.train(number < 2)
        model(0)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 6, "backward_pass": 6, "optimizer_step": 6}
    assert stats.step_s == [6.0] * 6


def test_discriminator_in_eval_mode_is_part_of_the_step(training):
    generator, critic = FakeModule(training), FakeModule(training)
    optimizers = FakeOptimizer(), FakeOptimizer()
    for _ in range(4):
        critic.train()
        critic(0)
        training.backward()
        training.update(optimizers[0])
        critic.eval()
        critic(0)  # features of real samples
        generator(0)
        critic(0)
        training.backward()
        training.update(optimizers[1])
    stats = training.finish()
    assert stats.counts["forward_pass"] == 16
    assert "validation_epoch" not in stats.counts
    assert stats.step_s == [16.0] * 4


def test_acting_in_eval_mode_with_gradients_is_part_of_the_step(training, model, optimizer):
    def select_action():
        model.eval()
        model(0)
        model.train()

    for _ in range(4):
        for _ in range(3):
            select_action()
        model(0)
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 16
    assert "validation_epoch" not in stats.counts


def test_pass_that_is_only_read_is_not_an_evaluation(training, model, optimizer, loader, val_loader):
    training.train(model, loader, optimizer)
    for _ in val_loader:
        pass
    training.train(model, loader, optimizer)
    assert "validation_epoch" not in training.finish().counts


def known_loaders(training, *loaders):
    """Let the passes of these loaders be counted, as those of data loaders are."""
    registry = LoaderRegistry()
    counts = {id(loader): registry.add_inferred() for loader in loaders}
    training.detector.phases.passes.use_loaders(lambda iterator: counts[id(iterator.loader)])
    return list(counts.values())


def test_a_single_batch_of_another_loader_after_the_training_is_evaluation(training, model, optimizer, loader):
    test_loader = FakeLoader(training, 5)
    train_counts, test_counts = known_loaders(training, loader, test_loader)
    training.train(model, loader, optimizer)
    model(next(iter(test_loader)))
    stats = training.finish()
    assert stats.counts == epochs(1, **phases(1))
    assert (train_counts.of("train").batches, test_counts.of("val").batches) == (3, 1)
    assert with_grad(training)[0] == 1


def test_a_batch_that_a_run_ended_in_is_training_of_its_loader(training, model, optimizer, loader):
    known_loaders(training, loader)
    training.train(model, loader, optimizer)
    model(next(iter(loader)))  # and the program ends, perhaps because the loss is not a number
    stats = training.finish()
    assert "validation_epoch" not in stats.counts
    assert stats.counts["forward_pass"] == 4


def test_a_training_that_fails_at_its_first_batch_has_no_evaluation(training, model, loader):
    known_loaders(training, loader)
    model(next(iter(loader)))
    assert "validation_epoch" not in training.finish().counts
