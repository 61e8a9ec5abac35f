"""The rule about a model that acts in an environment: how its rollouts split, and what makes them shorter."""

from typing import Final

from training_profiler.base.framework_frames import ENVIRONMENT, REPLAY
from training_profiler.base.sections import FORWARD_PASS, FORWARD_WITHOUT_GRAD, ROLLOUT
from training_profiler.base.units import ms_text
from training_profiler.diagnosis.finding import Action, Change, Finding, Fix
from training_profiler.diagnosis.places import NAMED_FROM, places_named, places_text
from training_profiler.diagnosis.registry import RULES, cost_of_steps
from training_profiler.model.snapshot import LineStats, Snapshot

SINGLE_ROWS: Final = 1.5  # rows of an action, on average: calls for one observation
MOST_ENVIRONMENTS: Final = 16
LITTLE: Final = 0.25  # of the environment's time: what the policy may take beside it
_BUFFER_CALLS: Final = frozenset(("add", "append", "push", "store", "extend"))
_ENVIRONMENT_CALLS: Final = frozenset(("step", "reset"))


@RULES.rule(
    "rollout-heavy",
    0.15,  # of step time
    label="ROLLOUT",
    says_where=True,
    claims=(ROLLOUT, FORWARD_WITHOUT_GRAD),
    saves=(0.3, 1.2),
    changes=(Change.OTHER_BATCHES,),
    try_=("num_threads",),
)
def rollout_heavy(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag rollouts over 15 % of step time in which the policy gets one observation a call; None for larger batches.

    More environments share a call. One of as many rows takes longer by what a row takes in the training's forward pass.
    """
    rollout, policy = snapshot.sections.get(ROLLOUT), snapshot.sections.get(FORWARD_WITHOUT_GRAD)
    acting, training = snapshot.program.acting, snapshot.sections.get(FORWARD_PASS)
    if rollout is None or policy is None or training is None or acting is None or acting.rows > SINGLE_ROWS:
        return None
    if not (policy.count and training.count and policy.total_s):
        return None
    policy_s = snapshot.total_of_step_s(FORWARD_WITHOUT_GRAD) or 0.0
    whole_s = snapshot.total_of_step_s(ROLLOUT) or 0.0
    if policy.parent != ROLLOUT:
        whole_s += policy_s
    others_s = max(0.0, whole_s - policy_s)
    number = next((n for n in (2, 4, 8, MOST_ENVIRONMENTS) if policy_s <= LITTLE * n * others_s), MOST_ENVIRONMENTS)
    call_s, row_s = policy.total_s / policy.count, training.total_s / training.count / acting.training_rows
    left = min(1.0, 1 / number + (1 - 1 / number) * row_s / call_s)  # of the policy's time: each row takes its own
    saved = 0.9 * (1 - left) * policy_s / whole_s if whole_s else 0.0  # environments at once have work of their own
    cost, parts = cost_of_steps(snapshot, threshold, whole_s, saved=saved), _parts(snapshot, others_s)
    split = ", ".join(
        f"{name} {part_s / whole_s:.0%}" for name, part_s in (("policy", policy_s), *parts) if part_s >= 0.01 * whole_s
    )
    lines = _lines(snapshot, rollout.share + policy.share)
    action = f"{number} environments at once (gymnasium.vector, VecEnv), each 1/{number} of the steps"
    device = ", the policy on the CPU while it acts" if snapshot.device is not None else ""
    message = (
        f"{cost.share:.1%} of step time is spent in rollouts ({cost.per_step} per step: {split}), with one observation "
        f"a call of the policy ({policy.count} calls, {ms_text(call_s)} each)"
    )
    return cost.finding(
        f"{message}; above all in {lines}" if lines else message,
        Fix(
            f"Let {number} environments act at once: one call of the policy serves all of them. Act under "
            f"torch.inference_mode(), with torch.set_num_threads(1){device}",
            (Change.OTHER_BATCHES,),
            (Action(action, (Change.OTHER_BATCHES,)),),
        ),
        calls=policy.count,
        rows=acting.rows,
        environments=number,
        policy_s=policy_s,
        lines=lines,
        **{f"{name}_s": part_s for name, part_s in parts},
    )


def _lines(snapshot: Snapshot, share: float) -> str:
    lines = [line for name in (ROLLOUT, FORWARD_WITHOUT_GRAD) for line in snapshot.lines_of_steps(name)]
    named = places_named(sorted(lines, key=lambda line: -line.share), share)
    return places_text([place for place in named if place.share >= NAMED_FROM * share], share)


def _parts(snapshot: Snapshot, others_s: float) -> list[tuple[str, float]]:
    """Return the time beside the policy by what it is for, as far as lines say; the rest is "other"."""
    lines = snapshot.lines_of_steps(ROLLOUT)
    whole = sum(line.share for line in lines)
    known = [(name, sum(line.share for line in lines if _is(line, phase, calls))) for name, phase, calls in _KINDS]
    parts = [(name, others_s * share / whole) for name, share in known if whole and share]
    rest_s = others_s - sum(part_s for _, part_s in parts)
    return [*parts, *([("other", rest_s)] if rest_s > 0 else [])]


_KINDS: Final = (("environment", ENVIRONMENT, _ENVIRONMENT_CALLS), ("buffers", REPLAY, _BUFFER_CALLS))


def _is(line: LineStats, phase: str, calls: frozenset[str]) -> bool:
    if line.phase:
        return line.phase.endswith(phase)
    return any(name.rpartition(".")[2] in calls and share > 0.5 * line.share for name, share in line.called.items())
