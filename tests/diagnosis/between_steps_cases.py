"""Rules about validation, and about what lies before the first step, between steps, or in an environment."""

from dataclasses import replace

from tests.support.loader_workers import WORKERS
from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import (
    NOTHING_KNOWN,
    ActingFacts,
    CallFacts,
    CallSite,
    FetchedBefore,
    PassesBefore,
    ProgramFacts,
    RowFacts,
)
from training_profiler.model.snapshot import (
    OUTSIDE_STEPS,
    DeviceTimingStats,
    LineStats,
    LoaderStats,
    SectionStats,
    Snapshot,
    StartupPart,
    StartupStats,
)


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


ACT = LineStats("dqn.py", 51, "Qnet.forward", 0.50, 100)
ENVIRONMENT = LineStats("dqn.py", 95, "main", 0.25, 50)
TRAINER = replace(ENVIRONMENT, share=0.5, inside="lightning/loops/fit_loop.py:484 _FitLoop.on_advance_end")
SAVES = "callback on_train_epoch_end (ModelCheckpoint) > saving"
WRITES = replace(ENVIRONMENT, function="report", called={"writer.writerow": 0.2})
LOADS = replace(ENVIRONMENT, function="sample_pairs", called={"json.load": 0.2})
PLOTS = replace(ENVIRONMENT, function="Plotter.on_epoch_end", phase="callback on_epoch_end (Plotter)")
IMPORTS = LineStats("dqn.py", 2, "<module>", 0.05, 10)


def run_outside(passes_s=50.0, rest_s=25.0, before_s=5.0, lines=(ENVIRONMENT,), steps=100, after_s=0.0):
    """Return a run of 100 s with steps of 100 ms, and so many seconds between them."""
    run = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5}, steps=steps)
    forward = run.sections["forward_pass"]
    sections = {
        **run.sections,
        "forward_pass": replace(forward, self_s=forward.step_self_s + passes_s),
        OUTSIDE_STEPS: SectionStats(OUTSIDE_STEPS, 0, 0.0, rest_s + before_s, 0.5, before_s=before_s, after_s=after_s),
    }
    return replace(
        run,
        wall_s=100.0,
        sections=sections,
        step=replace(run.step, before_s=before_s),
        lines={OUTSIDE_STEPS: (*lines, IMPORTS), "forward_pass": (ACT,)},
        settled_lines={OUTSIDE_STEPS: lines},
    )


def in_epochs(epochs, *, saves_s=0.0, phases=None, rest_s=25.0, calls=(), **changes):
    """Return the run of 100 s and 100 steps in so many epochs, with checkpoints between them."""
    run = run_outside(passes_s=0.0, rest_s=rest_s, lines=(TRAINER,))
    saves = replace(run.sections["backward_pass"], name="checkpointing", self_s=saves_s, step_self_s=0.0)
    sections = run.sections | ({"checkpointing": saves} if saves_s else {})
    return replace(
        run, program=ProgramFacts(epochs=epochs, calls=calls), sections=sections, phases=phases or {}, **changes
    )


def begun(*parts, wall_s=60.0, has_steps=True):
    total_s = sum(part.seconds for part in parts)
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.6})
    return replace(run, wall_s=wall_s, startup=StartupStats(total_s, has_steps, parts))


def making_in_steps(number=12):
    """The steps take data from a line, of which the start runs line 12 for most of its time."""
    run = begun(StartupPart("other code", 42.0, (("train.py:12 batches", 36.0), ("train.py:20 main", 4.0))))
    other = replace(run.sections["forward_pass"], share=0.2)
    lines = {"other": (LineStats("train.py", number, "batches", 0.15, 90),)}
    return replace(run, sections={**run.sections, "other": other}, lines=lines)


OF_TEXTS = replace(TRAINING, data_set="Texts")
IMPORTED = StartupPart(
    "imports",
    23.0,
    (
        ("train.py:3 unused import big.part", 12.0),
        ("train.py:1 import torch", 7.0),
        ("train.py:4 unused import b", 3.0),
    ),
)
OF_A_CLASS = StartupPart("other code", 9.0, (("train.py:12 Texts.__init__", 8.0),))
TOKENIZED = StartupPart("data set", 42.0, (("train.py:12 load", 36.0), ("train.py:14 load", 4.0)))


SKIPPED = FetchedBefore(100, 4.0, "train.py:12", True)
BY_TRAINER = CallFacts("loader", "DataLoader", CallSite("train.py", 9, inside="transformers/trainer.py:812 get_loader"))


def fetched(facts=SKIPPED, is_map_style=True, **others):
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.6})
    loaders = (replace(TRAINING, is_map_style=is_map_style),)
    return replace(run, program=ProgramFacts(fetched_before=facts, **others), loaders=loaders)


SKIPS = LineStats("data.py", 9, "sample", 0.10, 100)


def streaming(first_s=20.0, count=1, total_s=20.0, lines=(SKIPS,), is_map_style=False, workers=None, others=(SKIPS,)):
    """Return a run of 100 s whose first batch takes 20 s, and others 50 ms."""
    run = snapshot_of({"data_loading": 0.5, "backward_pass": 0.5}, steps=100)
    fetches = replace(run.sections["data_loading"], p50_s=0.05)
    first = replace(fetches, name="first_fetch", count=count, total_s=total_s, max_s=first_s, share=0.1)
    loader = replace(TRAINING, name="Stream", is_map_style=is_map_style, workers=workers)
    return replace(
        run,
        wall_s=100.0,
        sections={**run.sections, "data_loading": fetches, "first_fetch": first},
        lines={"first_fetch": lines, "data_loading": others},
        loaders=(loader,),
    )


def line(number: int, share: float, called: str = "", phase: str = "") -> LineStats:
    return LineStats("ppo.py", number, "main", share, 50, phase=phase, called={called: share} if called else {})


LINES = (line(9, 0.1, "env.step"), line(10, 0.05, "buffer.add"), line(11, 0.05))
METHODS = (
    replace(line(9, 0.1), function="Cart.step"),
    replace(line(12, 0.02), function="Buffer.add"),
    line(10, 0.08, "torch.tensor"),
)
PHASES = (line(4, 0.15, phase="rollout > environment"), line(4, 0.05, phase="rollout > replay buffer"))


def acting(
    rows: float = 1.0, policy: float = 0.3, others: float = 0.2, lines=LINES, training_rows: float = 64.0
) -> Snapshot:
    """Return a run of 10 s in steps, of which 2,000 calls of the policy and what is beside them take these shares.

    A forward pass of the training takes 10 ms.
    """
    passes = {"forward_pass": 0.1, "backward_pass": 0.9 - policy - others}
    run = snapshot_of({**passes, "forward_without_grad": policy, "rollout": others})
    seconds = {"forward_without_grad": policy * 10, "rollout": (policy + others) * 10}
    sections = {
        name: section_stats(name, run.sections[name].share, count=2000, total_s=total_s, step_total_s=total_s)
        for name, total_s in seconds.items()
    }
    sections["forward_without_grad"] = replace(sections["forward_without_grad"], parent="rollout")
    run = replace(run, sections={**run.sections, **sections}, lines={"rollout": lines})
    return replace(run, program=run.program._replace(acting=ActingFacts(rows, training_rows)))


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
    "slow-startup": {
        "a data set": begun(StartupPart("imports", 3.0), TOKENIZED),
        "the class of a loader's data set": replace(begun(OF_A_CLASS), loaders=(OF_TEXTS,)),
        "other code by its line": begun(StartupPart("other code", 42.0, (("train.py:5 <module>", 41.0),))),
        "a line that makes data in steps": making_in_steps(),
        "a line that stands in steps for other data": making_in_steps(number=13),
    },
    "unused-imports": {
        "of two packages": begun(IMPORTED),
    },
    "fetched-before-training": {
        "by number": fetched(),
        "of a stream": fetched(is_map_style=False),
        "by a trainer": fetched(is_map_style=False, calls=(BY_TRAINER,)),
        "its line is not known": fetched(SKIPPED._replace(place="")),
        "a pass over the data": fetched(SKIPPED._replace(is_skipped=False)),
    },
    "stream-begins-late": {
        "a line makes samples": streaming(),
        "a worker makes them": streaming(lines=(), workers=replace(WORKERS, batch_max_s=19.0)),
    },
    "short-epochs": {
        "what stands between them": in_epochs(20),
        "a trainer's checkpoints": in_epochs(
            20,
            saves_s=5.0,
            phases={SAVES: 0.2},
            settled_lines={OUTSIDE_STEPS: (replace(TRAINER, share=0.2, phase=SAVES), replace(TRAINER, share=0.1))},
        ),
        "the program's own checkpoints": in_epochs(20, saves_s=15.0),
        "those of Hugging Face's trainer": in_epochs(20, saves_s=15.0, calls=(BY_TRAINER,)),
    },
    "outside-steps": {
        "long epochs": in_epochs(10, step=replace(run_outside().step, total_s=11.0)),
        "an agent that acts": run_outside(),
        "passes of steps are not its lines": run_outside(1.0, 60.0, lines=(replace(ENVIRONMENT, share=0.6),)),
        "callbacks at the ends of epochs": run_outside(0.0, 25.0, lines=(PLOTS, replace(ENVIRONMENT, share=0.05))),
        "the end of each epoch writes": in_epochs(20, settled_lines={OUTSIDE_STEPS: (WRITES,)}, saves_s=5.0),
        "the end of each epoch reads": in_epochs(20, settled_lines={OUTSIDE_STEPS: (LOADS,)}),
        "beside what a trainer does there": in_epochs(
            20, settled_lines={OUTSIDE_STEPS: (TRAINER, WRITES)}, rest_s=60.0
        ),
        "data that the program makes again": in_epochs(20, settled_lines={OUTSIDE_STEPS: (ENVIRONMENT,)}),
        "one kind": run_outside(0.0, 50.0, lines=(replace(ENVIRONMENT, share=0.5),)),
        "a part of the run in no section, without passes": run_outside(passes_s=15.0, rest_s=20.0),
    },
    "rollout-heavy": {
        "lines say what is beside the policy": acting(),
        "a library's phases say it": acting(lines=PHASES),
        "nothing says it": acting(lines=()),
        "methods of the program say it": acting(lines=METHODS),
        "the loop that trains acts as well": replace(
            acting(lines=METHODS), lines={"rollout": METHODS, "backward_pass": (line(20, 0.1),)}
        ),
        "the policy takes most": acting(policy=0.6, others=0.05),
        "the environment takes most": acting(policy=0.1, others=0.4),
        "a row takes half as long in a batch": acting(training_rows=13.3),
        "on a GPU": replace(acting(), device=DeviceTimingStats("cuda", "NVIDIA A100", "events", 100)),
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
    "slow-startup": {
        "a tenth of the run": begun(TOKENIZED, wall_s=400.0),
        "a class of no data set": begun(OF_A_CLASS),
        "a short one of a data set": begun(replace(TOKENIZED, lines=(("train.py:12 load", 3.0),)), wall_s=11.0),
        "a short start": begun(StartupPart("other code", 10.0, (("train.py:12 load", 10.0),)), wall_s=11.0),
        "imports": begun(StartupPart("imports", 42.0, (("train.py:1 <module>", 42.0),))),
        "compiling": begun(StartupPart("compile", 42.0, (("train.py:9 <module>", 42.0),))),
        "no line of the program": begun(StartupPart("other code", 42.0)),
        "no steps": begun(TOKENIZED, has_steps=False),
        "nothing seen": begun(),
    },
    "unused-imports": {
        "a tenth of the run": begun(IMPORTED, wall_s=400.0),
        "a second": begun(replace(IMPORTED, lines=(("train.py:3 unused import big", 1.0),)), wall_s=5.0),
        "named": begun(StartupPart("imports", 42.0, (("train.py:1 import big", 42.0),))),
        "too few steps": replace(begun(IMPORTED), step=None),
        "nothing seen": begun(),
    },
    "fetched-before-training": {
        "nothing": fetched(None),
        "a tenth of the run": fetched(SKIPPED._replace(seconds=1.0)),
        "no steps": replace(fetched(), step=None),
    },
    "stream-begins-late": {
        "each pass": streaming(count=3, total_s=60.0),
        "by number": streaming(is_map_style=True),
        "a short one": replace(streaming(first_s=3.0, total_s=3.0), wall_s=20.0),
        "other lines, as of a file that is read": streaming(lines=(replace(SKIPS, function="Stream.__iter__"),)),
        "no lines of other batches": streaming(others=()),
        "workers that start slowly": streaming(lines=(), workers=replace(WORKERS, batch_max_s=1.0)),
    },
    "short-epochs": {
        "few epochs": in_epochs(9),
        "long epochs": in_epochs(10, step=replace(run_outside().step, total_s=11.0)),
        "little time between them": in_epochs(20, rest_s=14.0),
        "a notebook between cells": in_epochs(
            20, rest_s=80.0, settled_lines={OUTSIDE_STEPS: (replace(TRAINER, share=0.1),)}
        ),
        "checkpoints within steps": in_epochs(20, rest_s=0.0),
        "data that the program makes again": in_epochs(20, settled_lines={OUTSIDE_STEPS: (ENVIRONMENT,)}),
        "no steps": replace(in_epochs(20), step=None),
    },
    "outside-steps": {
        "short epochs have their own rule": in_epochs(20),
        "most in steps": run_outside(passes_s=24.0, rest_s=9.0),
        "start-up": run_outside(rest_s=0.0, passes_s=0.0, before_s=90.0),
        "a hang after the last step": run_outside(0.5, 80.0, after_s=79.5),
        "no lines": run_outside(lines=(), passes_s=0.5, rest_s=80.0),
        "few samples": run_outside(lines=(replace(ENVIRONMENT, samples=29),), passes_s=0.5, rest_s=80.0),
        "a notebook between cells": run_outside(0.5, 90.0, lines=(replace(ENVIRONMENT, share=0.09),)),
        "no steps": replace(run_outside(), step=None),
    },
    "rollout-heavy": {
        "environments act together": acting(rows=8.0),
        "calls differ": replace(acting(), program=NOTHING_KNOWN),
        # An observation takes as long in a batch of eight as alone: a large model.
        "each row takes its time": acting(training_rows=6.0),
        "rollouts take little": acting(policy=0.08, others=0.06),
        "no rollouts": snapshot_of({"backward_pass": 0.5, "forward_without_grad": 0.5}),
    },
}
