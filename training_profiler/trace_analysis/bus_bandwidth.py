"""How fast collectives are, beside what the link between the devices can do.

Collectives move different amounts for the same message, so a rate in bytes of the message says little. The bus
bandwidth of nccl-tests (its doc/PERFORMANCE.md) is what each device must send over its link at least, and has the same
limit for all of them: message / time x factor, with n devices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec
import numpy as np

from training_profiler.base.units import NS_PER_S
from training_profiler.tables.peaks import DeviceLink, link_of
from training_profiler.trace_analysis.communication import kind_of
from training_profiler.trace_analysis.load.columns import Bools, Columns, Ints

_BYTES_PER_GB: Final = 1e9
# The message of an all-gather and of a reduce-scatter is the whole that n devices hold together.
FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}


@dataclass(frozen=True, slots=True)
class BusBandwidth:
    """All runs of one kind of collective with the same message in groups of the same size."""

    kind: str
    message_bytes: int | None  # None if unknown, as below
    group_size: int | None
    count: int
    total_ns: int  # waiting for other devices included
    shortest_ns: int
    link: DeviceLink | None  # between the devices of the group
    lacks: tuple[str, ...]  # what would have to be known for the rest

    @property
    def mean_gb_s(self) -> float | None:
        """The bus bandwidth of all runs, in 1e9 bytes per second; None if it is unknown."""
        return self._gb_s(self.total_ns / self.count)

    @property
    def best_gb_s(self) -> float | None:
        """That of the shortest run, which waited least."""
        return self._gb_s(self.shortest_ns)

    @property
    def share_of_link(self) -> float | None:
        """The best as a share of what the link can do; None if that is unknown, or less than the best."""
        best = self.best_gb_s
        return None if best is None or self.link is None or self.is_above_link else best / self.link.gb_s

    @property
    def is_above_link(self) -> bool:
        """Whether devices cannot have sent what the formula counts, because the switch added the values."""
        return self.link is not None and (self.best_gb_s or 0) > self.link.gb_s

    def _gb_s(self, ns: float) -> float | None:
        if self.message_bytes is None or self.group_size is None or self.kind not in FACTORS or not ns:
            return None
        return self.message_bytes * FACTORS[self.kind](self.group_size) / _BYTES_PER_GB / (ns / NS_PER_S)


def bus_bandwidths(columns: Columns, communicates: Bools) -> tuple[BusBandwidth, ...]:
    """Return the collectives by kind, message, group size and link, those with most time first."""
    groups: dict[tuple[str, int | None, int | None, DeviceLink | None], list[int]] = {}
    for row in np.flatnonzero(communicates).tolist():
        kind, size = kind_of(columns, row), _group_size(columns, row)
        groups.setdefault((kind, _message(columns, row, kind, size), size, _link(columns, row)), []).append(row)
    found = [_bandwidth(columns, *key, np.array(rows)) for key, rows in groups.items()]
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.kind, row.message_bytes or 0)))


def _bandwidth(
    columns: Columns, kind: str, message: int | None, size: int | None, link: DeviceLink | None, rows: Ints
) -> BusBandwidth:
    lengths = (columns.end_ns - columns.begin_ns)[rows]
    unknown = {
        "kind of collective": kind not in FACTORS,
        "message size": message is None,
        "group size": size is None,
        "link between the devices": link is None,
    }
    lacks = tuple(what for what, is_unknown in unknown.items() if is_unknown)
    return BusBandwidth(kind, message, size, len(rows), int(lengths.sum()), int(lengths.min()), link, lacks)


def _group_size(columns: Columns, row: int) -> int | None:
    size = int(columns.messages.group_size[row])
    if size < 1:
        ranks = _ranks(columns, row)
        size = 0 if ranks is None else len(ranks)
    return size if size > 1 else None


def _message(columns: Columns, row: int, kind: str, size: int | None) -> int | None:
    """Return the bytes of the message as nccl-tests counts them."""
    sent, received = int(columns.messages.sent_bytes[row]), int(columns.messages.received_bytes[row])
    if kind == "all_gather":
        message = received if received > 0 else sent * (size or 0)
    elif kind in ("all_reduce", "reduce_scatter", "all_to_all"):
        message = sent
    else:
        message = max(sent, received)
    return message if message > 0 else None


def _ranks(columns: Columns, row: int) -> list[int] | None:
    """Return the ranks of the group; None if the trace does not have them, or not all of them."""
    written = columns.messages.group_ranks
    return _decoded(written.texts[written.index[row]].strip('"'))


@cache
def _decoded(ranks: str) -> list[int] | None:
    try:
        return msgspec.json.decode(ranks, type=list[int])
    except msgspec.DecodeError:
        return None


def _link(columns: Columns, row: int) -> DeviceLink | None:
    """Return the link between the devices of the group, if they are known to be in one node.

    A trace lists the devices of its node, and launchers number the ranks of a node one after another.
    """
    devices, name = len(columns.device_names), columns.name_of_device(int(columns.device[row]))
    if not name or len(set(columns.device_names)) > 1:
        return None
    ranks = _ranks(columns, row)
    if ranks is None:
        is_inside = columns.world_size is not None and 1 < columns.world_size <= devices
    else:
        is_inside = len({rank // devices for rank in ranks}) == 1
    return link_of(name) if is_inside else None
