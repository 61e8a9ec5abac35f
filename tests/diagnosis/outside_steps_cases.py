"""Runs that spend their time before the first step, between steps, or in an environment."""

from dataclasses import replace

from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import NOTHING_KNOWN, ActingFacts, ProgramFacts
from training_profiler.model.snapshot import (
    OUTSIDE_STEPS,
    DeviceTimingStats,
    LineStats,
    Snapshot,
    StartupPart,
    StartupStats,
)

ACT = LineStats("dqn.py", 51, "Qnet.forward", 0.50, 100)
ENVIRONMENT = LineStats("dqn.py", 95, "main", 0.25, 50)
TRAINER = replace(ENVIRONMENT, share=0.5, inside="lightning/loops/fit_loop.py:484 _FitLoop.on_advance_end")
IMPORTS = LineStats("dqn.py", 2, "<module>", 0.05, 10)


def run_with(passes_s=50.0, rest_s=25.0, before_s=5.0, lines=(ENVIRONMENT,), steps=100):
    """Return a run of 100 s with steps of 100 ms, and so many seconds between them."""
    run = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5}, steps=steps)
    forward = run.sections["forward_pass"]
    sections = {
        **run.sections,
        "forward_pass": replace(forward, self_s=forward.step_self_s + passes_s),
        OUTSIDE_STEPS: replace(
            forward, name=OUTSIDE_STEPS, count=0, self_s=rest_s + before_s, step_self_s=0.0, before_s=before_s
        ),
    }
    return replace(
        run,
        wall_s=100.0,
        sections=sections,
        step=replace(run.step, before_s=before_s),
        lines={OUTSIDE_STEPS: (*lines, IMPORTS), "forward_pass": (ACT,)},
        settled_lines={OUTSIDE_STEPS: lines},
    )


def in_epochs(epochs, *, saves_s=0.0, phases=None, rest_s=25.0, **changes):
    """Return the run of 100 s and 100 steps in so many epochs, with checkpoints between them."""
    run = run_with(passes_s=0.0, rest_s=rest_s, lines=(TRAINER,))
    saves = replace(run.sections["backward_pass"], name="checkpointing", self_s=saves_s, step_self_s=0.0)
    sections = run.sections | ({"checkpointing": saves} if saves_s else {})
    return replace(run, program=ProgramFacts(epochs=epochs), sections=sections, phases=phases or {}, **changes)


def begun(*parts, wall_s=60.0, has_steps=True):
    total_s = sum(part.seconds for part in parts)
    run = snapshot_of({"forward_pass": 0.4, "backward_pass": 0.6})
    return replace(run, wall_s=wall_s, startup=StartupStats(total_s, has_steps, parts))


TOKENIZED = StartupPart("data set", 42.0, (("train.py:12 load", 36.0), ("train.py:14 load", 4.0)))


def line(number: int, share: float, called: str = "", phase: str = "") -> LineStats:
    return LineStats("ppo.py", number, "main", share, 50, phase=phase, called={called: share} if called else {})


LINES = (line(9, 0.1, "env.step"), line(10, 0.05, "buffer.add"), line(11, 0.05))
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
    "slow-startup": {
        "a data set": begun(StartupPart("imports", 3.0), TOKENIZED),
        "other code by its line": begun(StartupPart("other code", 42.0, (("train.py:5 <module>", 41.0),))),
    },
    "short-epochs": {
        "what stands between them": in_epochs(20),
        "a trainer's checkpoints": in_epochs(
            20, saves_s=5.0, phases={"callback on_train_epoch_end (ModelCheckpoint) > saving": 0.2}
        ),
        "the program's own checkpoints": in_epochs(20, saves_s=15.0),
    },
    "outside-steps": {
        "long epochs": in_epochs(10, step=replace(run_with().step, total_s=11.0)),
        "an agent that acts": run_with(),
        "passes of steps are not its lines": run_with(1.0, 60.0, lines=(replace(ENVIRONMENT, share=0.6),)),
        "one kind": run_with(0.0, 50.0, lines=(replace(ENVIRONMENT, share=0.5),)),
        "a part of the run in no section, without passes": run_with(passes_s=15.0, rest_s=20.0),
    },
    "rollout-heavy": {
        "lines say what is beside the policy": acting(),
        "a library's phases say it": acting(lines=PHASES),
        "nothing says it": acting(lines=()),
        "the policy takes most": acting(policy=0.6, others=0.05),
        "the environment takes most": acting(policy=0.1, others=0.4),
        "a row takes half as long in a batch": acting(training_rows=13.3),
        "on a GPU": replace(acting(), device=DeviceTimingStats("cuda", "NVIDIA A100", "events", 100)),
    },
}
SILENT = {
    "slow-startup": {
        "half of the run": begun(TOKENIZED, wall_s=80.0),
        "a short start": begun(StartupPart("data set", 10.0, (("train.py:12 load", 10.0),)), wall_s=11.0),
        "imports": begun(StartupPart("imports", 42.0, (("train.py:1 <module>", 42.0),))),
        "compiling": begun(StartupPart("compile", 42.0, (("train.py:9 <module>", 42.0),))),
        "no line of the program": begun(StartupPart("other code", 42.0)),
        "no steps": begun(TOKENIZED, has_steps=False),
        "nothing seen": begun(),
    },
    "short-epochs": {
        "few epochs": in_epochs(9),
        "long epochs": in_epochs(10, step=replace(run_with().step, total_s=11.0)),
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
        "most in steps": run_with(passes_s=24.0, rest_s=15.0),
        "start-up": run_with(rest_s=0.0, passes_s=0.0, before_s=90.0),
        "no lines": run_with(lines=(), passes_s=0.5, rest_s=80.0),
        "few samples": run_with(lines=(replace(ENVIRONMENT, samples=9),), passes_s=0.5, rest_s=80.0),
        "a notebook between cells": run_with(0.5, 90.0, lines=(replace(ENVIRONMENT, share=0.14),)),
        "a short run": replace(run_with(passes_s=5.0, rest_s=3.0), wall_s=12.0),
        "no steps": replace(run_with(), step=None),
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
