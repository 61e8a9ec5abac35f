"""Rules about validation: gradients that nothing uses, a few samples at once, and workers that start for each pass."""

from dataclasses import replace

from tests.support.loader_workers import WORKERS
from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import PassesBefore, ProgramFacts, RowFacts
from training_profiler.model.snapshot import LineStats, LoaderStats, Snapshot


def run_with(count, spent_s):
    return replace(snapshot_of({"backward_pass": 1.0}), with_grad_count=count, with_grad_s=spent_s)


def validating(share, spent_s, others):
    """Return a run of 10 s in steps, whose validation takes ``share`` of that, ``spent_s`` of it with gradients."""
    run = run_with(100, spent_s)
    section = section_stats("validation_epoch", share, count=10, total_s=share * 10, step_total_s=0.0)
    return replace(run, sections={**snapshot_of(others).sections, "validation_epoch": section})


def prepared(count, spent_s, of=10, share=0.5):
    run = validating(share, 0.0, {"optimizer_step": 0.2, "backward_pass": 0.8})
    section = replace(run.sections["validation_epoch"], count=of)
    run = replace(run, sections={**run.sections, "validation_epoch": section}, with_grad_count=0)
    return replace(run, program=run.program._replace(passes_before=PassesBefore(count, spent_s)))


def with_lines(**lines):
    """Return a run with a line in sections outside of steps, by their names with ``__`` for a slash."""
    run, by_section = run_with(12, 1.5), {name.replace("__", "/"): (line,) for name, line in lines.items()}
    sections = {name: section_stats(name, 0.1, total_s=1.0, step_total_s=0.0) for name in by_section}
    return replace(run, lines=by_section, sections={**run.sections, **sections})


LOOP, MODEL = (LineStats("train.py", line, name, 0.1, 40) for line, name in ((42, "evaluate"), (7, "Net.forward")))


ONE_BY_ONE = RowFacts(1000, 1000, 1.0, 768.0, 1000, 1000, 1, 64.0, 768.0)
TRAINING = LoaderStats("train", 100, 6400, 0.64, num_workers=0)
VALIDATION = LoaderStats("val", 5000, 5000, 1.0, "val", num_workers=0, made_at="train.py:9")


def run_of_few(
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


OF_TRAINING, OF_VALIDATION = "workers-restarted", "validation-workers-restarted"
QUICK = replace(WORKERS, batch_avg_s=0.002)


def seconds(name: str, total_s: float, *, count: int = 8, in_steps_s: float = 0.0, parent: str | None = None):
    return replace(
        section_stats(name, total_s / 100, count=count, total_s=total_s),
        parent=parent,
        step_total_s=in_steps_s,
        step_self_s=in_steps_s,
    )


def run_starting(*sections, loaders) -> Snapshot:
    run = replace(snapshot_of({"backward_pass": 0.6, "data_loading": 0.1}, steps=200, step_s=0.1), wall_s=100.0)
    return replace(run, sections={**run.sections, **{each.name: each for each in sections}}, loaders=loaders)


def training(count: int = 8) -> Snapshot:
    return run_starting(
        seconds("data_loading", 10.0, count=200, in_steps_s=3.0),
        seconds("worker_start", 4.0, count=count, parent="data_loading"),
        loaders=(LoaderStats("0", 200, None, 3.0, num_workers=2, persistent_workers=False),),
    )


def starting(workers=QUICK, prefix="validation_epoch/", **loader) -> Snapshot:
    stats = {"num_workers": 2, "persistent_workers": False, "made_at": "train.py:8", **loader}
    return run_starting(
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
    "validation-with-gradients": {
        "a part of its forward passes": run_with(12, 1.5),
        "one pass": run_with(1, 1.5),
        "its line": with_lines(validation_epoch__forward_pass=LOOP),
        "the line of the loop comes before the model's": with_lines(
            validation_epoch__forward_pass=MODEL, validation_epoch=LOOP
        ),
        "before the validation": validating(0.5, 4.0, {"optimizer_step": 0.2, "backward_pass": 0.8}),
        "after a costlier cause": validating(0.2, 1.0, {"data_loading": 0.8, "backward_pass": 0.2}),
    },
    "passes-before-training": {"one pass": prepared(1, 5.0, of=1), "beside validations": prepared(2, 3.0)},
    "validation-heavy": {
        "without these passes": prepared(2, 3.0),
        "beside its workers": replace(starting(), sections={**starting().sections, "validation_epoch": LONGER}),
    },
    "validation-tiny-batches": {
        # 5000 samples of 0.5 ms, and 5000 / 64 passes of at least 1.6 ms; the training loads a sample in 0.1 ms.
        "one sample": run_of_few(),
        "a loop over the samples of a batch": run_of_few(BY_BATCH, TRAINING, replace(VALIDATION, batches=80)),
        "each token of each sample": run_of_few(BY_TOKEN, TRAINING, replace(VALIDATION, batches=500, samples=500)),
    },
    OF_TRAINING: {
        "for each pass": training(),
        # Loading between steps counts as the end of workers up to their start.
        "loading between steps": replace(ONCE, sections={**ONCE.sections, "data_loading": LOADS_LONG}),
    },
    OF_VALIDATION: {
        "for each pass": starting(),
        "under its plain name": starting(prefix=""),
        "batches take long": starting(SLOW),
        "made again": starting(SLOW, is_remade=True),
        "made again, and kept": starting(SLOW, is_remade=True, persistent_workers=True),
    },
}
SILENT = {
    "validation-with-gradients": {
        "none": run_with(0, 0.0),
    },
    "passes-before-training": {"short": prepared(1, 0.5)},
    "validation-heavy": {
        "all of it is before the training": prepared(1, 5.0, of=1),
        "workers have its seconds": starting(),
    },
    "validation-tiny-batches": {
        **{name: run_of_few(ONE_BY_ONE._replace(**facts)) for name, facts in FACTS.items()},
        "no loader of a validation": run_of_few(ONE_BY_ONE, TRAINING),
        "no loader of the training": run_of_few(ONE_BY_ONE, VALIDATION),
        "one batch a validation": run_of_few(ONE_BY_ONE, TRAINING, replace(VALIDATION, batches=10)),
        "a sample takes as long in the training": run_of_few(forward=0.6),
        "nothing is known": replace(run_of_few(), program=ProgramFacts()),
        "a small part of the run": replace(run_of_few(), wall_s=400.0),
    },
    OF_TRAINING: {"once": training(count=1), "of a validation": starting(prefix="")},
    OF_VALIDATION: {"kept": starting(persistent_workers=True), "none": starting(num_workers=0)},
}
