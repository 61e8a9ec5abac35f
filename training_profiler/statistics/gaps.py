"""Stretches of a thread's time that one section owns, apart from the leaves in them."""

from typing import NamedTuple

import numpy as np

from training_profiler.statistics.histogram import Ints
from training_profiler.statistics.sweep import Leaves, Sweep


class Gaps(NamedTuple):
    """Consecutive stretches that together cover the time of a batch; no cut lies inside one."""

    begin_ns: Ints
    durations_ns: Ints
    owners: Ints  # section id, 0 for none
    roots: Ints  # of the owner, see Spans.roots

    def count_leaves(self, leaves: Leaves) -> Ints:
        """Return how many leaves lie in each gap."""
        if len(self.begin_ns) == 1:
            return np.array([len(leaves.ids)])
        first = np.searchsorted(leaves.begin_ns, self.begin_ns)
        first[0] = 0
        return np.diff(first, append=len(leaves.ids))

    def sum_leaves(self, durations_ns: Ints, leaves_in_gap: Ints) -> Ints:
        """Return the time that leaves take of each gap, in ns."""
        until = np.concatenate([[0], np.cumsum(durations_ns)])
        end = np.cumsum(leaves_in_gap)
        return np.asarray(until[end] - until[end - leaves_in_gap], np.int64)


def gaps_between(result: Sweep, cuts_ns: Ints, from_ns: int, until_ns: int) -> Gaps:
    """Return the gaps from ``from_ns`` to ``until_ns``: each event and each cut begins one."""
    owners = np.concatenate([[0], result.owners])
    roots = np.concatenate([[0], result.owner_roots])
    begin_ns = np.concatenate([[from_ns], np.maximum(result.times_ns, from_ns)])
    if len(cuts_ns):
        at = np.searchsorted(result.times_ns, cuts_ns, side="right")
        owners = np.insert(owners, at + 1, owners[at])
        roots = np.insert(roots, at + 1, roots[at])
        begin_ns = np.insert(begin_ns, at + 1, np.maximum(cuts_ns, from_ns))
    durations_ns = np.maximum(np.diff(begin_ns, append=until_ns), 0)
    return Gaps(begin_ns, durations_ns, owners, roots)


def first_span_ns(result: Sweep, ids: Ints) -> int | None:
    """Return how long the first span of these sections took; None without any."""
    leaves, spans = result.leaves, result.spans
    found: list[tuple[np.int64, np.int64]] = []
    for id in ids.tolist():
        rows = np.flatnonzero(leaves.ids == id)[:1]
        found += zip(leaves.begin_ns[rows], leaves.durations_ns[rows], strict=True)
        rows = np.flatnonzero(spans.ids == id)
        found += zip(spans.begin_ns[rows], spans.end_ns[rows] - spans.begin_ns[rows], strict=True)
    return int(min(found)[1]) if found else None
