"""Rules about sections that take too much: each fires, is silent just below, and without data."""

from dataclasses import replace

import pytest

from tests.support.loader_workers import machine
from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.model.program import OptimizerFacts
from training_profiler.model.snapshot import EpochStats, LineStats, LoaderStats, Snapshot
from training_profiler.reports.verdict import saved_share, verdict

OF_STEP = {
    "data_loading": "data-loading-bound",
    "data_generation": "data-generation-bound",
    "data_transfer": "data-transfer",
    "forward_pass": "forward-dominates",
    "optimizer_step": "optimizer-heavy",
    "metrics_computation": "metrics-heavy",
    "logging": "logging-heavy",
    "ema_update": "ema-heavy",
    "synchronization": "synchronization-heavy",
}
OF_RUN = {
    "validation_epoch": "validation-heavy",
    "sampling": "sampling-heavy",
    "checkpointing": "checkpointing-heavy",
}


def run_of_validation(*inner: str) -> Snapshot:
    snapshot = snapshot_of({"forward_pass": 0.5})
    times_s = {"validation_epoch": 2.0, **{f"validation_epoch/{name}": 0.9 for name in inner}}
    sections = {name: section_stats(name, 0.2, count=4, total_s=s, avg_s=s / 4) for name, s in times_s.items()}
    return replace(snapshot, sections=snapshot.sections | sections)


def of_run(section: str, total_s: float) -> Snapshot:
    snapshot = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5})
    stats = section_stats(section, count=4, avg_s=total_s / 4)
    return replace(snapshot, wall_s=100.0, sections={**snapshot.sections, section: stats})


def in_backward(function: str, called: dict[str, float], share: float = 0.4) -> Snapshot:
    run = snapshot_of({"data_loading": 0.375, "forward_pass": 0.125, "backward_pass": 0.5})
    return replace(run, lines={"backward_pass": (LineStats("m.py", 9, function, share, 100, called=called),)})


@pytest.mark.parametrize(("after_s", "saved_s", "share"), [(0.0, 10.0, 0.1), (12.0, 4.0, 4 / 88), (20.0, 10.0, None)])
def test_validation_saves_its_part_of_the_training_time(after_s, saved_s, share):
    run = of_run("validation_epoch", 20.0)
    run = in_sections(run, validation_epoch={"total_s": 20.0, "self_s": 20.0, "after_s": after_s})
    found = next(each for each in diagnose(run) if each.code == "validation-heavy")
    assert (found.potential_saving_s, saved_share(run, found)) == (pytest.approx(saved_s), pytest.approx(share))
    assert ("after the last step" in verdict(run, [found]).saving) == (share is None)


def test_a_saving_in_steps_is_that_of_a_step_times_all_steps():
    run = snapshot_of({"data_loading": 0.5}, steps=40, step_s=0.1, settled_count=30, settled_s=3.0)
    run = in_sections(run, data_loading={"settled_total_s": 1.5})
    found = next(each for each in diagnose(run) if each.code == "data-loading-bound")
    assert (found.potential_saving_s, saved_share(run, found)) == (pytest.approx(2.0), pytest.approx(0.5))
    assert 40 * (found.step_s - found.step_if_fixed_s) == pytest.approx(found.potential_saving_s)
    inspected = replace(run, wall_s=run.wall_s + 6.0, step=replace(run.step, inspected_s=6.0))
    assert saved_share(inspected, found) == pytest.approx(0.5)  # of the training without the profiler's inspections
    faster_at_first = replace(run, step=replace(run.step, total_s=3.5))
    found = next(each for each in diagnose(faster_at_first) if each.code == "data-loading-bound")
    assert found.potential_saving_s == pytest.approx(0.5 * 3.5)


def test_no_rule_fires_without_data():
    assert diagnose(Snapshot()) == []


def in_sections(run: Snapshot, **changes: dict[str, object]) -> Snapshot:
    """Return the run with other figures of some sections."""
    changed = {name: replace(run.sections[name], **figures) for name, figures in changes.items()}
    return replace(run, sections=run.sections | changed)


PASSES = ("data_loading", "forward_pass")
BATCHES = run_of_validation(*PASSES)
TWO_VALIDATIONS = tuple(LoaderStats(name, 40, None, wait_s, phase="val") for name, wait_s in (("a", 1.0), ("b", 5.0)))
WAITS = in_sections(BATCHES, **{"validation_epoch/data_loading": {"total_s": 1.5}})
ONE_PASS = run_of_validation("forward_pass")
METRICS = snapshot_of({"metrics_computation": 0.2}, steps=100, step_s=0.125)
ON_CUDA = OptimizerFacts("AdamW", 8, ("float32",), ("cuda",))
CLIPPING = replace(METRICS, program=METRICS.program._replace(optimizer=ON_CUDA))
STATISTICS = of_run("batch_norm_update", 20.0)
HALF = snapshot_of({"forward_pass": 0.25, "backward_pass": 0.5}, steps=64, step_s=0.125)
IN_NO_SECTION = (
    LineStats("train.py", 212, "estimate_loss", share=0.1675, samples=67),
    LineStats("train.py", 88, "get_batch", share=0.0625, samples=25),
    LineStats("train.py", 90, "get_batch", share=0.005, samples=2),
)
COMPUTING = replace(
    snapshot_of({"forward_pass": 0.1, "backward_pass": 0.55}, steps=64, step_s=0.125), lines={"other": IN_NO_SECTION}
)
SYNCHRONIZED = {"data_loading": 0.125, "forward_pass": 0.125, "backward_pass": 0.5, "synchronization": 0.25}
IN_BACKWARD = snapshot_of(SYNCHRONIZED, steps=64, step_s=0.125)
GRADIENTS = snapshot_of({"forward_pass": 0.15, "backward_pass": 0.8})
OUTSIDE = section_stats("(outside steps)", 0.9, count=0, avg_s=None, self_s=90.0)
COMPUTED = snapshot_of({"backward_pass": 1.0})


def waiting(share: float) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.8, "synchronization": share})
    return in_sections(run, synchronization={"parent": "forward_pass"})


def clipping_each(parameters: int, inside: str = "") -> Snapshot:
    run = in_sections(METRICS, metrics_computation={"count": parameters * 100})
    share = run.sections["metrics_computation"].share
    line = LineStats("train.py", 9, "clip", share, 100, inside=inside, called={"nn.utils.clip_grad_norm_": share})
    return replace(run, lines={"metrics_computation": (line,)})


def after_a_start(section: str, total_s: float, before_s: float = 0.0) -> Snapshot:
    """Return a run of 100 s that began to train after 90 s; ``before_s`` of the section lie before that."""
    run = of_run(section, total_s)
    step = replace(run.step, before_s=90.0)
    return in_sections(replace(run, step=step), **{section: {"self_s": total_s, "before_s": before_s}})


SAYS = {code: {"most of ten steps": snapshot_of({section: 0.9}, steps=10)} for section, code in OF_STEP.items()}
SAYS |= {code: {"a fifth of the run": of_run(section, 20.0)} for section, code in OF_RUN.items()}
SAYS["validation-heavy"]["a fifth of a training that takes long to start"] = after_a_start("validation_epoch", 2.0)
SAYS["data-loading-bound"] |= {
    "at the threshold": snapshot_of({"data_loading": 0.15}, steps=64, step_s=0.125),
    "a quarter": snapshot_of({"data_loading": 0.25}, steps=64, step_s=0.125),
}
SAYS["metrics-heavy"] |= {
    "gradients are still clipped": METRICS,
    "more than clipping on CUDA": in_sections(CLIPPING, metrics_computation={"count": 200}),
    "clipping one by one": clipping_each(20),
}
SAYS["validation-heavy"] |= {
    "by name": run_of_validation(),
    "with batches": run_of_validation("data_loading"),
    "with batches and passes": BATCHES,
    "mostly waits": replace(WAITS, machine=machine(1.0)),
    "mostly waits for one of two": replace(WAITS, machine=machine(1.0), loaders=TWO_VALIDATIONS),
    "mostly waits, and no CPU is free": replace(WAITS, machine=machine(7.9)),
    "more passes than batches": in_sections(BATCHES, **{"validation_epoch/forward_pass": {"count": 5}}),
    "passes in eval mode": ONE_PASS,
    "a single one": in_sections(ONE_PASS, validation_epoch={"count": 1}),
}
SAVED_OFTEN = in_sections(of_run("checkpointing", 20.0), checkpointing={"count": 40})
EPOCHS = tuple(EpochStats(at, 9.0, 20, 20, None, None, {}, None, None) for at in range(1, 6))
SAYS["checkpointing-heavy"] |= {
    "forty times": SAVED_OFTEN,
    "forty times in five epochs": replace(SAVED_OFTEN, epochs=EPOCHS),
    "six times in five epochs": in_sections(replace(SAVED_OFTEN, epochs=EPOCHS), checkpointing={"count": 6}),
}
SAYS |= {
    "batch-norm-update-heavy": {"all but one is saved": in_sections(STATISTICS, batch_norm_update={"count": 5})},
    "backward-slow": {
        "four times": snapshot_of({"data_loading": 0.375, "forward_pass": 0.125, "backward_pass": 0.5}),
        "beside time in no section": snapshot_of({"data_loading": 0.2, "forward_pass": 0.1, "backward_pass": 0.6}),
        "beside synchronization": IN_BACKWARD,
        "one a forward pass": GRADIENTS,
        "a method of the user's": in_backward("Sort.backward", {"<python>": 0.4}),
        "a call of backward": in_backward("Trainer.backward", {"loss.backward": 0.4}),
        "another function": in_backward("train", {"<python>": 0.4}),
        "a part": in_backward("Sort.backward", {"<python>": 0.2}, share=0.2),
        "unknown calls": in_backward("Sort.backward", {}),
    },
    "unexplained": {
        "a quarter": HALF,
        "beside modules, with a longer backward pass": COMPUTING,
        "the forward pass of functional code": snapshot_of({"backward_pass": 0.5}, steps=64, step_s=0.125),
        "its lines": replace(HALF, lines={"other": IN_NO_SECTION}),
        "just above": snapshot_of({"backward_pass": 0.899}),
    },
}
SAYS["forward-dominates"] |= {"ranks that wait a little": waiting(0.19)}
SILENT = {
    code: {"open": in_sections(of_run(section, 50.0), **{section: {"count": 0}})} for section, code in OF_RUN.items()
}
SILENT["validation-heavy"] |= {
    "a tenth of a training that takes long to start": after_a_start("validation_epoch", 1.0),
    "most of it before a training": after_a_start("validation_epoch", 2.0, before_s=1.5),
}
SILENT["checkpointing-heavy"] |= {
    "a single one": in_sections(of_run("checkpointing", 20.0), checkpointing={"count": 1})
}
SILENT |= {
    "metrics-heavy": {
        "clipping on CUDA": CLIPPING,
        "a trainer that clips": clipping_each(1, inside="transformers/trainer.py:9 Trainer._clip"),
    },
    "forward-dominates": {
        "at the threshold": snapshot_of({"forward_pass": 0.6}, steps=64, step_s=0.125),
        "ranks that wait": waiting(0.21),
    },
    "batch-norm-update-heavy": {"once": in_sections(STATISTICS, batch_norm_update={"count": 1})},
    "backward-slow": {
        "functional code": snapshot_of({"forward_pass": 0.1, "backward_pass": 0.5}),
        "synchronization in it": in_sections(IN_BACKWARD, synchronization={"parent": "backward_pass"}),
        "three times": snapshot_of({"forward_pass": 0.25, "backward_pass": 0.75}, steps=64, step_s=0.125),
        "no backward pass": snapshot_of({"forward_pass": 0.1}),
        "no forward pass": snapshot_of({"backward_pass": 0.9}),
        # A physics-informed network differentiates its output twice before the loss, and the loss once.
        "gradients of gradients": in_sections(GRADIENTS, backward_pass={"count": 300}),
    },
    "unexplained": {
        "just below": snapshot_of({"backward_pass": 0.901}),
        "no sections": snapshot_of({}),
        "outside steps": replace(COMPUTED, sections={**COMPUTED.sections, "(outside steps)": OUTSIDE}),
    },
}
