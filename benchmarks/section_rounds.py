"""Times rounds of empty sections in a child process of ``section_cost``; prints ns per section as JSON."""

import gc
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import process_time_ns
from timeit import Timer
from typing import Any, Final

REFERENCE: Final = "nullcontext behind a function"
SECTIONS_A_STEP: Final = 1000
STEPS_A_ROUND: Final = {"off": 20, "on": 100}
ROUNDS: Final = {"off": 400, "on": 40}

# The code of a user, once a step. Without {} it is the empty loop, whose time is subtracted.
LOOP: Final = "for _ in range(sections_a_step):\n    {}pass"
SECTION: Final = "with section('empty'): "
STEP: Final = "with section('step'):\n    for _ in range(sections_a_step):\n        with section('empty'): pass\n{}"

_shared = nullcontext()


def reference(name: str) -> AbstractContextManager[None]:
    """Return the shared context that does nothing."""
    return _shared


@dataclass(frozen=True)
class Contender:
    """A way to time a section: its code, and a function that discards its recorded data."""

    statement: str
    names: Mapping[str, object]
    discard: Callable[[], object] = lambda: None

    def timer(self) -> Timer:
        """Return a timer of CPU time with code of its own, so that contenders do not specialize each other's."""
        names = {"gc": gc, "sections_a_step": SECTIONS_A_STEP, **self.names}
        # timeit disables the garbage collector; a training has it enabled.
        return Timer(self.statement, "gc.enable()", process_time_ns, names)


def off() -> dict[str, Contender]:
    """Return the profiler switched off, with torch loaded, and the reference."""
    import torch  # noqa: F401

    from training_profiler import is_profiling_enabled, profile_section

    assert not is_profiling_enabled()
    flat = LOOP.format(SECTION)
    return {
        REFERENCE: Contender(flat, {"section": reference}),
        "training_profiler, off": Contender(flat, {"section": profile_section}),
    }


def on(log_every: int) -> tuple[dict[str, Contender], list[str]]:
    """Return the profiler in a real session, the other installed profilers, and the names of the missing ones."""
    import torch
    import torch._dynamo  # noqa: F401, as every program does that makes an optimizer

    from training_profiler import (
        is_profiling_enabled,
        profile_section,
        profile_step,
        start_training_profiling,
    )

    start_training_profiling(log_every=log_every)
    assert is_profiling_enabled()
    nested = STEP.format("")
    contenders = {
        REFERENCE: Contender(nested, {"section": reference}),
        "training_profiler": Contender(
            STEP.format("profile_step()"), {"section": profile_section, "profile_step": profile_step}
        ),
    }
    missing = []
    try:
        from codetiming import Timer as CodeTimer

        timers = {name: CodeTimer(name, logger=None) for name in ("empty", "step")}
        loop = nested.replace("section('empty')", "timer")
        names = {"section": timers.__getitem__, "timer": timers["empty"]}
        contenders["codetiming.Timer, prebuilt"] = Contender(loop, names, CodeTimer.timers.clear)
    except ImportError:
        missing.append("codetiming")
    try:
        from lightning.pytorch.profilers import SimpleProfiler

        simple = SimpleProfiler()
        contenders["lightning SimpleProfiler"] = Contender(
            nested, {"section": simple.profile}, simple.recorded_durations.clear
        )
    except ImportError:
        missing.append("lightning")
    contenders["torch record_function"] = Contender(nested, {"section": torch.profiler.record_function})
    return contenders, missing


def rounds_of(contenders: Mapping[str, Contender], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the net CPU time of a section in ns, one entry a round; contenders take turns in each round."""
    empty = Contender(LOOP.format(""), {}).timer()
    timers = {name: contender.timer() for name, contender in contenders.items()}
    sections_ns: dict[str, list[float]] = {name: [] for name in timers}
    for round_number in range(-2, rounds):  # two for warming up
        order = list(timers) if round_number % 2 else list(reversed(timers))
        empty_ns = empty.timeit(steps)
        for name in order:
            net_ns = (timers[name].timeit(steps) - empty_ns) / (steps * SECTIONS_A_STEP)
            contenders[name].discard()
            if round_number >= 0:
                sections_ns[name].append(net_ns)
    return sections_ns


def main(state: str, log_every: str = "1000000") -> None:
    """Measure with profiling ``"off"`` or ``"on"``, which the environment must match."""
    missing: list[str] = []
    contenders: dict[str, Any]
    if state == "off":
        contenders = off()
    else:
        contenders, missing = on(int(log_every))
    result = {"ns": rounds_of(contenders, ROUNDS[state], STEPS_A_ROUND[state]), "missing": missing}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
