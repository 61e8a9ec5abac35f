"""The rule about recurrent layers that get one step of a sequence a call."""

from typing import Final, NamedTuple

from training_profiler.base.units import ms_text
from training_profiler.diagnosis.registry import MIN_SAVING_S, RULES, has_enough_steps
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import ProgramFacts, RecurrentFacts
from training_profiler.snapshot.snapshot import Snapshot

TIME_STEP_LOOP: Final = "time-step-loop"
CELL: Final = "Cell"
SMALL_WORK: Final = 100_000  # products of a step in one gate; with fewer, starting operators takes most of the time


class _Takes(NamedTuple):
    """Of a layer's time with a call for each step, what one call for all takes, forward and backward.

    Medians of one thread on a CPU: three sizes of little work, five of much.
    """

    little: float
    much: float


WHOLE_SEQUENCE_TAKES: Final = {
    "LSTM": _Takes(0.1, 0.5),
    "GRU": _Takes(0.75, 0.75),
    "RNN": _Takes(0.3, 0.7),
    "LSTMCell": _Takes(0.12, 0.8),
    "GRUCell": _Takes(1.0, 0.9),
    "RNNCell": _Takes(0.5, 0.85),
}
AROUND_TAKES: Final = _Takes(0.15, 0.45)  # what is around the layer: nn.Embedding and nn.Linear


def saved_by_whole_sequences(facts: RecurrentFacts | None) -> float:
    """Return the part of forward and backward passes that one call of a recurrent layer for all steps saves."""
    if facts is None or not facts.is_known:
        return 0.0
    takes = WHOLE_SEQUENCE_TAKES.get(facts.kind, _Takes(1.0, 1.0))
    is_little = facts.work < SMALL_WORK
    taken, around = ((each.little if is_little else each.much) for each in (takes, AROUND_TAKES))
    return facts.part * (1 - taken) + max(0.0, facts.loop - facts.part) * (1 - around)


def is_on_cpu(program: ProgramFacts) -> bool:
    """Return whether modules are computed on the CPU, operator by operator."""
    return program.optimizer is not None and program.optimizer.devices == ("cpu",) and program.compiled is None


@RULES.rule(TIME_STEP_LOOP, threshold=0.10)  # of step time
def time_step_loop(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a recurrent layer or cell with a call for each step of a sequence, where all inputs are known before.

    On the CPU only. None where an input may depend on an output of the layer, as in attention over its state, or where
    the state is changed between two steps.
    """
    step, facts = snapshot.step, snapshot.program.recurrent
    if step is None or facts is None or not has_enough_steps(snapshot) or not is_on_cpu(snapshot.program):
        return None
    computing_s = snapshot.computing_s()
    potential_saving_s = computing_s * saved_by_whole_sequences(facts)
    share = potential_saving_s / step.settled_s if step.settled_s else 0.0
    if share <= threshold or potential_saving_s < MIN_SAVING_S:
        return None
    at = f" ({facts.place})" if facts.place else ""
    layer = facts.kind.removesuffix(CELL)
    how = f"Let {layer}" if layer == facts.kind else f"Use {layer} instead of {facts.kind} and let it"
    return Finding(
        code=TIME_STEP_LOOP,
        message=f"{facts.kind}{at} is called {facts.calls:.0f} times a step, for one step of a sequence each, though "
        f"no input depends on its output: the loop takes {facts.loop:.0%} of the forward pass "
        f"({ms_text(facts.loop * computing_s / step.settled_count)} with its part of the backward pass)",
        evidence={
            "share_of_step": share,
            "threshold": threshold,
            "calls": facts.calls,
            "part_of_forward": facts.part,
            "loop_of_forward": facts.loop,
            "lines": facts.place,
        },
        potential_saving_s=potential_saving_s,
        fix=f"{how} compute a whole batch or sequence at once, and the layers around it as well: those that give its "
        "input before, those that take its output after",
    )
