"""A model that acts in an environment: with one observation a call, or with several."""

from dataclasses import replace

from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.program import NOTHING_KNOWN, ActingFacts
from training_profiler.model.snapshot import DeviceTimingStats, LineStats, Snapshot


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
    "rollout-heavy": {
        "lines say what is beside the policy": acting(),
        "a library's phases say it": acting(lines=PHASES),
        "nothing says it": acting(lines=()),
        "the policy takes most": acting(policy=0.6, others=0.05),
        "the environment takes most": acting(policy=0.1, others=0.4),
        "a row takes half as long in a batch": acting(training_rows=13.3),
        "on a GPU": replace(acting(), device=DeviceTimingStats("cuda", "NVIDIA A100", "events", 100)),
    }
}
SILENT = {
    "rollout-heavy": {
        "environments act together": acting(rows=8.0),
        "calls differ": replace(acting(), program=NOTHING_KNOWN),
        # An observation takes as long in a batch of eight as alone: a large model.
        "each row takes its time": acting(training_rows=6.0),
        "rollouts take little": acting(policy=0.08, others=0.06),
        "no rollouts": snapshot_of({"backward_pass": 0.5, "forward_without_grad": 0.5}),
    }
}
