"""Rules about workers that are started again for each pass, outside of steps."""

from dataclasses import replace

from tests.support.loader_workers import WORKERS
from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.snapshot import LoaderStats, Snapshot

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


SLOW = replace(WORKERS, batch_avg_s=0.3)
ONCE = training()
LOADS_LONG = replace(ONCE.sections["data_loading"], total_s=20.0)
LONGER = seconds("validation_epoch", 40.0)
SAYS = {
    TRAINING: {
        "for each pass": training(),
        # Loading between steps counts as the end of workers up to their start.
        "loading between steps": replace(ONCE, sections={**ONCE.sections, "data_loading": LOADS_LONG}),
    },
    VALIDATION: {
        "for each pass": validating(),
        "under its plain name": validating(prefix=""),
        "batches take long": validating(SLOW),
        "made again": validating(SLOW, is_remade=True),
        "made again, and kept": validating(SLOW, is_remade=True, persistent_workers=True),
    },
    "validation-heavy": {
        "beside its workers": replace(validating(), sections={**validating().sections, "validation_epoch": LONGER})
    },
}
SILENT = {
    TRAINING: {"once": training(count=1), "of a validation": validating(prefix="")},
    VALIDATION: {"kept": validating(persistent_workers=True), "none": validating(num_workers=0)},
    "validation-heavy": {"workers have its seconds": validating()},
}
