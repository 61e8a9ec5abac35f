"""How soon a thread that waits for the GIL gets it: shortened while lines are sampled."""

import sys
from typing import Any, Final

from training_profiler.instrumentation.patching import Patches

# Longest wait of the sampler for the GIL, in s. With CPython's default of 5 ms most samples fall into large torch
# operations, which release the GIL. A Python function with 27 % of the time then has 1 % of the samples. With this
# value it has 25 % (benchmarks/line_sampler.py). Two busy Python threads become 1 to 3 % slower.
HANDOVER_S: Final = 0.0001


class SwitchInterval:
    """Shortens the interpreter's switch interval; the program goes on to read and set its own.

    If the program sets another value than it had, that value holds.
    """

    def __init__(self) -> None:
        self._programs_s: float | None = None  # what the program has set; None while nothing is shortened
        self._before_s = 0.0
        self._set: Any = None
        self._patches = Patches()

    def shorten(self) -> None:
        """Hand over the GIL soon, unless it is already, or there is none."""
        if self._programs_s is not None or not has_gil() or sys.getswitchinterval() <= HANDOVER_S:
            return
        self._programs_s = self._before_s = sys.getswitchinterval()
        self._set = sys.setswitchinterval
        self._set(HANDOVER_S)
        self._patches.replace(sys, "getswitchinterval", lambda original: self._get_programs)
        self._patches.replace(sys, "setswitchinterval", lambda original: self._set_programs)

    def restore(self) -> None:
        """Use the program's value again."""
        programs_s, self._programs_s = self._programs_s, None
        if programs_s is not None:
            self._patches.undo()
            self._set(programs_s)

    def _get_programs(self) -> float:
        return self._before_s if self._programs_s is None else self._programs_s

    def _set_programs(self, interval: float, /) -> None:
        self._set(interval)  # raises what it raises
        if self._programs_s is not None:
            self._programs_s = float(interval)
            if abs(self._programs_s - self._before_s) < 1e-9:  # as it was, often after something else for a moment
                self._set(HANDOVER_S)


def has_gil() -> bool:
    """Return whether one thread at a time runs Python."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()
