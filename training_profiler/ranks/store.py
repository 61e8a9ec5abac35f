"""What ranks tell each other through c10d's store: a connection of our own to the server of the process group."""

import re
import select
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

TIMEOUT: Final = timedelta(seconds=20)  # of one call; torch writes to stderr when one takes longer
KEYS_AT_ONCE: Final = 512  # about 1 MB, which the server answers in 10 ms
PREFIX: Final = "training_profiler"
GONE: Final = select.POLLIN | select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class GroupStore:
    """The board's keys in a store of c10d; for the board's thread alone.

    A key is there from the beginning, empty until its rank tells: c10d waits for one that is missing.

    Args:
        client: a connection of our own; nobody waits for it.
        space: what tells this session's keys from those of another.
    """

    def __init__(self, client: Any, space: str) -> None:
        self._client = client
        self._space = f"{PREFIX}/{space}"
        self._descriptor = descriptor_of(client)
        self._prepared: set[int] = set()

    def is_alive(self) -> bool:
        """Return whether the server is there: torch writes to stderr where one calls it and it is not."""
        return is_connected(self._descriptor)

    def send(self, rank: int, data: bytes) -> None:
        """Hand over what ``rank`` tells; the server need not answer."""
        self._client.set(f"{self._space}/{rank}", data)

    def read(self, ranks: Iterable[int]) -> Mapping[int, bytes]:
        """Return what these ranks have told last, of those that have."""
        told: dict[int, bytes] = {}
        ranks = list(ranks)
        for rank in ranks:
            if rank not in self._prepared:
                self._client.compare_set(f"{self._space}/{rank}", "", "")  # leaves what is there as it is
                self._prepared.add(rank)
        for first in range(0, len(ranks), KEYS_AT_ONCE):
            chunk = ranks[first : first + KEYS_AT_ONCE]
            values = self._client.multi_get([f"{self._space}/{rank}" for rank in chunk])
            told |= {rank: bytes(value) for rank, value in zip(chunk, values, strict=True) if value}
        return told

    def name_run(self, name: str) -> None:
        """Tell the name of the run's folder."""
        self._client.set(f"{self._space}/run", name.encode())

    def run_name(self) -> str | None:
        """Return that name; None where it was not told yet."""
        key = f"{self._space}/run"
        return bytes(self._client.get(key)).decode("utf-8", "replace") if self._client.check([key]) else None


def group_mark() -> int:
    """Return a number of the process group that there is, another one for another group; 0 without any."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return 0
        group = distributed.group.WORLD
    except (AttributeError, ValueError, RuntimeError):  # the training thread just imports it, or the group goes
        return 0
    return 0 if group is None else id(group)


def default_store() -> Any:
    """Return the store of the process group, by a private name of torch; None where there is none that serves.

    Whoever keeps it keeps the server and its port.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        store = c10d._get_default_store()  # type: ignore[union-attr]
    except (AttributeError, ValueError, KeyError, RuntimeError):  # no such name, or the group is gone this very moment
        return None
    return store if is_connected(descriptor_of(store)) and hasattr(store, "clone") else None


def connect(store: Any, space: str) -> GroupStore:
    """Return a connection of our own to the server of ``store``."""
    client = store.clone()
    client.set_timeout(TIMEOUT)
    return GroupStore(client, space)


def descriptor_of(store: Any) -> int | None:
    """Return the descriptor of a store's socket; None where it is no TCPStore, or does not tell."""
    for _ in range(10):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    found = re.search(r"fd=(\d+)", repr(store)) if type(store).__name__ == "TCPStore" else None
    return None if found is None else int(found.group(1))


def is_connected(descriptor: int | None) -> bool:
    """Return whether the other end of an idle socket is there: nothing is to be read, not even its end."""
    if descriptor is None:
        return False
    poll = select.poll()
    poll.register(descriptor, GONE)
    return not poll.poll(0)
