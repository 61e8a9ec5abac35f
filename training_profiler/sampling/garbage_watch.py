"""Times garbage collections without running a line of Python in them.

Python calls ``gc.callbacks`` at the begin and the end of each collection. A Ctrl-C that arrives while such a callback
runs Python code is printed and lost, because nothing can be raised out of it. Signal handlers only run between
instructions of Python code, so this callback has none: it consists of builtins.
"""

import gc
import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from types import BuiltinFunctionType
from typing import Any, Final, NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.safety.fault_guard import Guard

PART: Final = "garbage collections"
MOST_WAITING: Final = 65_536  # begins and ends that are not yet drained
COST_NS: Final = 3_000  # of a collection: two calls, with what Python prepares for them, and adding it up
MOST_COST: Final = 0.004  # of the time
LEAST_NS: Final = NS_PER_S // 2  # at a time, to know what it costs
BEGIN, END = "start", "stop"  # phases, as ``gc.callbacks`` are called with them


class Collection(NamedTuple):
    """A garbage collection on the training thread."""

    begin_ns: int
    end_ns: int
    generation: int  # 0 to 2; 2 is a full collection
    is_asked: bool  # for by a call of ``gc.collect``


_Counts = tuple[int, int, int]  # as ``gc.get_count`` returns them
_Moment = tuple[str, int, int, _Counts]  # the phase of a collection, time, thread, counts


class GarbageWatch:
    """Records garbage collections until it is drained. Where they are so many that it costs too much, it rests.

    The ``clock`` has to be written in C, as the clock of the recorder is.
    """

    def __init__(self, guard: Guard, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.since_ns: int | None = None  # since when all collections are recorded; None while they are not
        self._guard, self._clock = guard, clock
        self._moments: deque[_Moment] = deque(maxlen=MOST_WAITING)
        self._callback = _recording(self._moments, clock)
        self._popped = 0  # since then
        self._training = threading.main_thread().ident
        self._resume_ns: int | None = None  # end of a rest
        self._has_ended = False
        self._has_rested = False

    def start(self, *, is_on: bool) -> None:
        """Record from now on, or stop."""
        self.close()
        self.since_ns = None
        if is_on and isinstance(get_ident, BuiltinFunctionType):  # gevent replaces it by one in Python
            self._record()

    def close(self) -> None:
        """Stop. What was recorded stays until it is popped, and is complete up to now: no step comes after it."""
        self._resume_ns, self._has_ended = None, True
        self._remove()

    def _record(self) -> None:
        self._popped, self._resume_ns, self._has_ended = -(len(self._moments) // 2), None, False
        self.since_ns = self._clock()
        gc.callbacks.append(self._callback)

    def _remove(self) -> None:
        # Not by value: a callback of the program may compare in its own way.
        for at in reversed([at for at, callback in enumerate(gc.callbacks) if callback is self._callback]):
            del gc.callbacks[at]

    def after_fork_in_child(self) -> None:
        """Stop in a forked child, and forget what the parent recorded."""
        self.close()
        self.since_ns = None
        self._moments.clear()

    def poll(self) -> None:
        """Rest if recording costs too much, or go on after a rest. Called now and then on the training thread."""
        now_ns = self._clock()
        if self._resume_ns is not None and now_ns >= self._resume_ns:
            self._record()
        if self.since_ns is None or self._has_ended:
            return
        cost_ns = COST_NS * (self._popped + len(self._moments) // 2)
        rest_ns = round(cost_ns / MOST_COST) - (now_ns - self.since_ns)
        if now_ns - self.since_ns >= LEAST_NS and rest_ns > 0:
            self.since_ns, self._resume_ns, self._has_rested = None, now_ns + rest_ns, True
            self._remove()

    def sample_this_thread(self) -> None:
        """Return the collections on the calling thread from now on: the training thread."""
        self._training = get_ident()

    def pop(self) -> list[Collection]:
        """Return the collections on the training thread since the last call, in time order.

        A collection on another thread holds Python's lock, but the training may not need it.
        """
        collections: list[Collection] = []
        self._guard(PART, lambda: collections.extend(self._pop()))
        return collections

    def _pop(self) -> list[Collection]:
        collections, enough = [], gc.get_threshold()[0]
        begin: _Moment | None = None
        moments, training = [self._moments.popleft() for _ in range(len(self._moments))], self._training
        for moment in moments:
            phase, end_ns, thread, counts = moment
            if phase == BEGIN:
                begin = moment
            elif begin is not None and thread == training:  # the oldest begin may have been dropped
                # It has reset the counts up to that of its own generation, and added one to the next.
                generation = 0 if counts[1] else 1 if counts[2] else 2
                # By itself, Python collects when the first count is above.
                is_asked = not gc.isenabled() or not enough or begin[3][0] <= enough
                collections.append(Collection(begin[1], end_ns, generation, is_asked))
        if moments and moments[-1][0] == BEGIN:  # under way
            self._moments.appendleft(moments.pop())
        self._popped += len(moments) // 2
        return collections

    def notes(self) -> list[str]:
        """Return a sentence if there were too many collections to time all of them."""
        if not self._has_rested:
            return []
        most = round(MOST_COST * NS_PER_S / COST_NS)
        return [f"{PART}: timed in a part of the steps, because there were over {most:,} in a second"]


def _recording(moments: "deque[_Moment]", clock: Callable[[], int]) -> Callable[..., Any]:
    """Return a callable for ``gc.callbacks`` that appends the moment of each call, and has no Python code.

    ``getattr(phases, "start", info)`` reads a property. Its getter takes the next of an endless iterator, which reads
    the clock, the thread and the counts, and appends them.
    """

    def recorded(phase: str) -> property:
        now = zip(repeat(phase), iter(clock, None), iter(get_ident, None), iter(gc.get_count, None))
        return property(partial(next, map(moments.append, now)))

    phases = type("Phases", (), {"__slots__": (), BEGIN: recorded(BEGIN), END: recorded(END)})
    return partial(getattr, phases())
