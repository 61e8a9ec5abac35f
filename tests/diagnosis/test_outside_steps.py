"""The rule about a run whose time lies outside its training steps."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.snapshot.snapshot import OUTSIDE_STEPS, LineStats

ACT = LineStats("dqn.py", 51, "Qnet.forward", 0.50, 100)
ENVIRONMENT = LineStats("dqn.py", 95, "main", 0.25, 50)
IMPORTS = LineStats("dqn.py", 2, "<module>", 0.05, 10)


def run_with(passes_s=50.0, rest_s=25.0, before_s=5.0, lines=(ENVIRONMENT,), steps=100):
    """Return a run of 100 s with steps of 100 ms, and so many seconds between them."""
    run = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5}, steps=steps)
    forward = run.sections["forward_pass"]
    sections = {
        **run.sections,
        "forward_pass": replace(forward, self_s=forward.step_self_s + passes_s),
        OUTSIDE_STEPS: replace(forward, name=OUTSIDE_STEPS, count=0, self_s=rest_s + before_s, step_self_s=0.0),
    }
    return replace(
        run,
        wall_s=100.0,
        sections=sections,
        step=replace(run.step, before_s=before_s),
        lines={OUTSIDE_STEPS: (*lines, IMPORTS), "forward_pass": (ACT,)},
        settled_lines={OUTSIDE_STEPS: lines},
    )


SAYS = {
    "outside-steps": {
        "an agent that acts": run_with(),
        "passes of steps are not its lines": run_with(1.0, 60.0, lines=(replace(ENVIRONMENT, share=0.6),)),
        "one kind": run_with(0.0, 50.0, lines=(replace(ENVIRONMENT, share=0.5),)),
        "a part of the run in no section, without passes": run_with(passes_s=15.0, rest_s=20.0),
    }
}
SILENT = {
    "outside-steps": {
        "most in steps": run_with(passes_s=24.0, rest_s=15.0),
        "start-up": run_with(rest_s=0.0, passes_s=0.0, before_s=90.0),
        "no lines": run_with(lines=(), passes_s=0.5, rest_s=80.0),
        "few samples": run_with(lines=(replace(ENVIRONMENT, samples=9),), passes_s=0.5, rest_s=80.0),
        "a notebook between cells": run_with(0.5, 90.0, lines=(replace(ENVIRONMENT, share=0.14),)),
        "few steps": run_with(steps=9),
        "a short run": replace(run_with(passes_s=5.0, rest_s=3.0), wall_s=12.0),
        "no steps": replace(run_with(), step=None),
    }
}
