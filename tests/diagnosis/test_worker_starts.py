"""Rules about workers that are started again for each pass, outside of steps."""

from dataclasses import replace

import pytest

from tests.support.loader_workers import WORKERS
from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot

TRAINING, VALIDATION = "workers-restarted", "validation-workers-restarted"
QUICK = replace(WORKERS, batch_avg_s=0.002)


def seconds(name: str, total_s: float, *, count: int = 8, in_steps_s: float = 0.0, parent: str | None = None):
    return replace(
        section_stats(name, total_s / 100, count=count, total_s=total_s),
        parent=parent,
        step_total_s=in_steps_s,
        step_self_s=in_steps_s,
    )


def run_with(*sections, loaders) -> Snapshot:
    run = replace(snapshot_of({"backward_pass": 0.6, "data_loading": 0.1}, steps=200, step_s=0.1), wall_s=100.0)
    return replace(run, sections={**run.sections, **{each.name: each for each in sections}}, loaders=loaders)


def training(count: int = 8) -> Snapshot:
    return run_with(
        seconds("data_loading", 10.0, count=200, in_steps_s=3.0),
        seconds("worker_start", 4.0, count=count, parent="data_loading"),
        loaders=(LoaderStats("0", 200, None, 3.0, num_workers=2, persistent_workers=False),),
    )


def validating(workers=QUICK, prefix="validation_epoch/", **loader) -> Snapshot:
    stats = {"num_workers": 2, "persistent_workers": False, "made_at": "train.py:8", **loader}
    return run_with(
        seconds("data_loading", 3.0, count=200, in_steps_s=3.0),
        seconds("validation_epoch", 12.0),
        seconds("validation_epoch/data_loading", 10.0, count=32, parent="validation_epoch"),
        seconds(f"{prefix}worker_start", 4.0, parent="validation_epoch/data_loading"),
        seconds("validation_epoch/first_fetch", 1.0, parent="validation_epoch/data_loading"),
        loaders=(LoaderStats("1", 32, None, 2.0, phase="val", workers=workers, **stats),),
    )


def found(run: Snapshot, code: str):
    return next((finding for finding in diagnose(run) if finding.code == code), None)


def test_workers_started_between_steps_for_each_pass_are_found():
    finding = found(training(), TRAINING)
    assert finding.message == (
        "The workers of the training loader are started 8 times, once for each pass: 500 ms to start, 375 ms to end, "
        "7.00 s between steps, 7.0% of the run"
    )
    assert finding.potential_saving_s == pytest.approx(7.0 * 7 / 8)
    assert finding.fix.startswith("Set persistent_workers=True")


def test_workers_that_start_once_are_not():
    assert found(training(count=1), TRAINING) is None


def test_loading_between_steps_counts_as_the_end_of_workers_up_to_their_start():
    run = training()
    slow = replace(run.sections["data_loading"], total_s=20.0)
    assert found(replace(run, sections={**run.sections, "data_loading": slow}), TRAINING).evidence["seconds"] == 8.0


def test_workers_of_a_validation_are_not_those_of_the_training():
    assert found(validating(prefix=""), TRAINING) is None


@pytest.mark.parametrize("prefix", ["validation_epoch/", ""])
def test_workers_that_each_validation_starts_are_found(prefix):
    finding = found(validating(prefix=prefix), VALIDATION)
    assert "500 ms to start, 123 ms until the first batch, 500 ms to end" in finding.message
    assert finding.potential_saving_s == pytest.approx(10.0 - 32 * 0.002)
    assert finding.fix == (
        "Set num_workers=0 in the validation's DataLoader at train.py:8: making the 4 batches of a pass takes 8.00 ms, "
        "and taking them over from workers takes longer. Otherwise persistent_workers=True keeps the workers, if the "
        "DataLoader is made once"
    )


def test_validation_whose_batches_take_long_needs_its_workers():
    slow = replace(WORKERS, batch_avg_s=0.3)
    finding = found(validating(slow), VALIDATION)
    assert "num_workers=0" not in finding.fix
    assert finding.potential_saving_s == pytest.approx(8.0 * 7 / 8)
    assert "until the first batch" not in finding.message


def test_workers_that_are_kept_or_not_used_are_no_finding():
    assert found(validating(persistent_workers=True), VALIDATION) is None
    assert found(validating(num_workers=0), VALIDATION) is None


def test_loader_that_is_made_again_for_each_validation_has_to_be_kept_first():
    slow = replace(WORKERS, batch_avg_s=0.3)
    for is_kept in (False, True):
        finding = found(validating(slow, is_remade=True, persistent_workers=is_kept), VALIDATION)
        assert finding.fix.startswith("Make the DataLoader once")


def test_the_validation_claims_no_second_of_its_workers_again():
    run = validating()
    assert found(run, "validation-heavy") is None
    longer = seconds("validation_epoch", 40.0)
    run = replace(run, sections={**run.sections, "validation_epoch": longer})
    workers, whole = found(run, VALIDATION), found(run, "validation-heavy")
    assert whole.potential_saving_s == pytest.approx(20.0 - workers.potential_saving_s)
