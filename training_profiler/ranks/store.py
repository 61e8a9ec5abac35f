"""Messages between ranks through c10d's store, on a connection of our own to the process group's server."""

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
    """The keys of this session in a c10d store; used by the channel's thread alone.

    Keys exist from the beginning and are empty until the rank sends: c10d waits for a missing key.

    Args:
        client: a connection that the training does not use.
        space: prefix of the keys, different for each session.
    """

    def __init__(self, client: Any, space: str) -> None:
        self._client = client
        self._space = f"{PREFIX}/{space}"
        self._descriptor = descriptor_of(client)
        self._prepared: set[int] = set()

    def is_alive(self) -> bool:
        """Return whether the server is there: torch writes to stderr if it is called and is not."""
        return is_connected(self._descriptor)

    def send(self, rank: int, data: bytes) -> None:
        """Store the message of ``rank``; does not wait for the server's answer."""
        self._client.set(f"{self._space}/{rank}", data)

    def read(self, ranks: Iterable[int]) -> Mapping[int, bytes]:
        """Return the latest message of each of these ranks that has sent one."""
        messages: dict[int, bytes] = {}
        ranks = list(ranks)
        for rank in ranks:
            if rank not in self._prepared:
                self._client.compare_set(f"{self._space}/{rank}", "", "")  # leaves what is there as it is
                self._prepared.add(rank)
        for first in range(0, len(ranks), KEYS_AT_ONCE):
            chunk = ranks[first : first + KEYS_AT_ONCE]
            values = self._client.multi_get([f"{self._space}/{rank}" for rank in chunk])
            messages |= {rank: bytes(value) for rank, value in zip(chunk, values, strict=True) if value}
        return messages

    def ask_for_stacks(self, asked_ns: int) -> None:
        """Store when the stacks of all ranks were last asked for."""
        self._client.set(f"{self._space}/stacks", str(asked_ns).encode())

    def stacks_asked(self) -> int:
        """Return when they were; 0 if they never were."""
        answer = bytes(self._client.compare_set(f"{self._space}/stacks", "", ""))  # leaves what is there as it is
        return int(answer) if answer.isdigit() else 0

    def name_run(self, name: str) -> None:
        """Store the name of the run's folder."""
        self._client.set(f"{self._space}/run", name.encode())

    def run_name(self) -> str | None:
        """Return that name; None as long as rank 0 has not stored it."""
        key = f"{self._space}/run"
        return bytes(self._client.get(key)).decode("utf-8", "replace") if self._client.check([key]) else None


def group_mark() -> int:
    """Return a number that identifies the process group; 0 without one."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return 0
        group = distributed.group.WORLD
    except (AttributeError, ValueError, RuntimeError):  # being imported, or the group is being destroyed
        return 0
    return 0 if group is None else id(group)


def default_store() -> Any:
    """Return the store of the process group, by a private name of torch; None without a usable one.

    A kept reference keeps the server and its port alive.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        store = c10d._get_default_store()  # type: ignore[union-attr]
    except (AttributeError, ValueError, KeyError, RuntimeError):  # no such name, or the group was just destroyed
        return None
    return store if is_connected(descriptor_of(store)) and hasattr(store, "clone") else None


def connect(store: Any, space: str) -> GroupStore:
    """Return a connection of our own to the server of ``store``."""
    client = store.clone()
    client.set_timeout(TIMEOUT)
    return GroupStore(client, space)


def descriptor_of(store: Any) -> int | None:
    """Return the descriptor of a store's socket; None if the store is not a TCPStore, or its descriptor is unknown."""
    for _ in range(10):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    match = re.search(r"fd=(\d+)", repr(store)) if type(store).__name__ == "TCPStore" else None
    return None if match is None else int(match.group(1))


def is_connected(descriptor: int | None) -> bool:
    """Return whether the other end of an idle socket is there: nothing is to be read, not even its end."""
    if descriptor is None:
        return False
    poll = select.poll()
    poll.register(descriptor, GONE)
    return not poll.poll(0)
