"""The start of the workers of an evaluation's loader is part of the evaluation, not of the next step."""

import pytest

from training_profiler.recording.event_codes import time_only


def start_workers(training, seconds):
    """Record the start of workers as the patch of data loaders does."""
    codes, record = training.detector.codes, training.detector.pending.record
    for code in (time_only(codes.data_loading), codes.worker_start):
        record(code)
    training.clock.advance(seconds)
    for code in (codes.worker_start, time_only(codes.data_loading)):
        record(-code)


def grad_disabled(training, model, val_loader):
    with training.no_grad():
        start_workers(training, 5.0)
        for batch in val_loader:
            model(batch)


def grad_disabled_inside(training, model, val_loader):
    start_workers(training, 5.0)
    for batch in val_loader:
        with training.no_grad():
            model(batch)


def grad_enabled(training, model, val_loader):
    start_workers(training, 5.0)
    for batch in val_loader:
        model(batch)


@pytest.mark.parametrize("evaluate", [grad_disabled, grad_disabled_inside, grad_enabled])
def test_workers_of_an_evaluation_are_part_of_it(training, model, optimizer, loader, val_loader, evaluate):
    for _ in range(2):
        training.train(model, loader, optimizer)
        evaluate(training, model, val_loader)
    stats = training.finish()
    assert stats.step_s == [7.0] * 6
    assert stats.counts["validation_epoch"] == 2
    assert stats.counts["validation_epoch/worker_start"] == 2
    assert stats.total_s["validation_epoch/worker_start"] == 10.0
    assert "worker_start" not in stats.counts


def test_workers_of_the_training_stay_in_its_step(training, model, optimizer, loader, val_loader):
    for _ in range(2):
        start_workers(training, 5.0)
        training.train(model, loader, optimizer)
        with training.no_grad():
            for batch in val_loader:
                model(batch)
    stats = training.finish()
    assert stats.step_s == [7.0, 7.0, 7.0, 12.0, 7.0, 7.0]  # the first is before the loop
    assert stats.counts["worker_start"] == 2
