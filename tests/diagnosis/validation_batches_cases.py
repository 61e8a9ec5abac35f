"""Validation that gives the model a few samples at once."""

from dataclasses import replace

from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import ProgramFacts, RowFacts
from training_profiler.model.snapshot import LoaderStats, Snapshot

ONE_BY_ONE = RowFacts(1000, 1000, 1.0, 768.0, 1000, 1000, 1, 64.0, 768.0)
TRAINING = LoaderStats("train", 100, 6400, 0.64, num_workers=0)
VALIDATION = LoaderStats("val", 5000, 5000, 1.0, "val", num_workers=0, made_at="train.py:9")


def run_with(
    facts: RowFacts = ONE_BY_ONE, *loaders: LoaderStats, passes: int = 5000, forward: float = 0.32
) -> Snapshot:
    """Return 10 s of 100 steps, 3.2 s of them forward passes, and ten validations of 10 s."""
    run = snapshot_of({"forward_pass": forward, "backward_pass": 0.3}, steps=100, step_s=0.1)
    total_s = {"validation_epoch": 10.0, "validation_epoch/data_loading": 1.0, "validation_epoch/forward_pass": 8.0}
    counts = {"validation_epoch": 10, "validation_epoch/data_loading": 5000, "validation_epoch/forward_pass": passes}
    self_s = {**total_s, "validation_epoch": 1.0}
    sections = {
        name: section_stats(
            name, self_s[name] / 20, self_s=self_s[name], count=counts[name], total_s=total_s[name], step_total_s=0.0
        )
        for name in total_s
    }
    return replace(
        run,
        wall_s=20.0,
        sections={**run.sections, **sections},
        loaders=loaders or (TRAINING, VALIDATION),
        program=ProgramFacts(rows=facts),
    )


BY_BATCH = ONE_BY_ONE._replace(batches=16, few_batches=16, most=64)
BY_TOKEN = ONE_BY_ONE._replace(batches=100, few_batches=100, most=10)
SAYS = {
    "validation-tiny-batches": {
        # 5000 samples of 0.5 ms, and 5000 / 64 passes of at least 1.6 ms; the training loads a sample in 0.1 ms.
        "one sample": run_with(),
        "a loop over the samples of a batch": run_with(BY_BATCH, TRAINING, replace(VALIDATION, batches=80)),
        "each token of each sample": run_with(BY_TOKEN, TRAINING, replace(VALIDATION, batches=500, samples=500)),
    }
}
FACTS = {
    "hardly any call": {"calls": 20, "few": 20, "batches": 20, "few_batches": 20},
    "most calls have many rows": {"few": 500},
    "few batches are followed by one: a text is made": {"few_batches": 10},
    "many after one batch: a text is made beside": {"most": 400},
    "samples are larger": {"elements": 2000.0},
    "the training has few as well": {"training_rows": 6.0, "rows": 1.0},
    "rows of the training are not its samples": {"training_rows": 20.0},
    "other passes than the ones looked at": {"batches": 100, "few_batches": 100, "most": 10},
}
SILENT = {
    "validation-tiny-batches": {
        **{name: run_with(ONE_BY_ONE._replace(**facts)) for name, facts in FACTS.items()},
        "no loader of a validation": run_with(ONE_BY_ONE, TRAINING),
        "no loader of the training": run_with(ONE_BY_ONE, VALIDATION),
        "one batch a validation": run_with(ONE_BY_ONE, TRAINING, replace(VALIDATION, batches=10)),
        "a sample takes as long in the training": run_with(forward=0.6),
        "nothing is known": replace(run_with(), program=ProgramFacts()),
        "a small part of the run": replace(run_with(), wall_s=400.0),
    }
}
