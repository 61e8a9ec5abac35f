"""Events written in two halves: a begin (ph "B") and an end (ph "E") of the same thread."""

import numpy as np

from training_profiler.trace_analysis.load.columns import Bools, Ints


def pairs_of(at_ns: Ints, is_begin: Bools, thread: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the indices of begins, those of their ends, and those of halves without a counterpart.

    An end closes the newest open event of its thread. The recording began or ended during an event that has one half.
    """
    begins, threads = is_begin.tolist(), thread.tolist()
    open_of: dict[int, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    alone: list[int] = []
    for i in np.argsort(at_ns, kind="stable").tolist():
        open_halves = open_of.setdefault(threads[i], [])
        if begins[i]:
            open_halves.append(i)
        elif open_halves:
            pairs.append((open_halves.pop(), i))
        else:
            alone.append(i)
    alone += [i for open_halves in open_of.values() for i in open_halves]
    pairs.sort()
    firsts, lasts = np.array(pairs, np.int64).reshape(-1, 2).T
    return firsts, lasts, np.array(alone, np.int64)
