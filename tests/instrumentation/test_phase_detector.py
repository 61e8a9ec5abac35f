"""Which fetches and calls belong to an evaluation, beyond the rows of test_loops.py."""

import itertools

import pytest

from tests.support.fake_training import FakeLoader, FakeModule, epochs, phases
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING
from training_profiler.instrumentation.loop_detection.phase_detector import MAX_MISSES
from training_profiler.recording.data_loader import LoaderRegistry


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
    assert training.detector.phases.with_grad.pop() == (0, 0)


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


@pytest.mark.parametrize("has_fetched", [False, True])
def test_long_evaluation_without_loader_is_drained_meanwhile(training, optimizer, loader, has_fetched):
    model = FakeModule(training, seconds=0.25)
    training.train(model, loader, optimizer)
    if has_fetched:  # a batch, of which it is not known yet what it is for
        next(iter(loader))
    calls = MAX_PENDING // 4 + 1_000
    with training.no_grad():
        for _ in range(calls):
            model(0)
    assert len(training.pending.events) < MAX_PENDING
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert (stats.counts["validation_epoch"], stats.counts["validation_epoch/forward_pass"]) == (1, calls)
    if not has_fetched:
        assert stats.counts == epochs(2, **{"validation_epoch": 1, "validation_epoch/forward_pass": calls})
        assert stats.total_s["validation_epoch"] == calls / 4


def test_pass_mistaken_for_evaluation_becomes_training_after_some_steps(training, model, optimizer):
    with training.no_grad():
        batches = iter(FakeLoader(training, 20))
        model(next(batches))  # to inspect a first batch
    training.train(model, itertools.islice(batches, 10), optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 10
    assert stats.counts["data_loading"] == 10 - MAX_MISSES - 1


def test_gradients_within_an_evaluation_are_no_training(training, optimizer):
    """A potential computes forces as gradients of its energy in each forward pass, in evaluations as well."""

    def gradient(*_):
        training.detector.backward_begins()
        training.clock.advance(1.0)
        training.detector.backward_ends()

    model = FakeModule(training, work=gradient)
    for _ in range(3):
        training.train(model, range(4), optimizer)
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


def with_grad(training):
    """Return the number and the seconds of evaluations' forward passes with gradients."""
    count, spent_ns = training.detector.phases.with_grad.pop()
    return count, spent_ns / 1e9


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
