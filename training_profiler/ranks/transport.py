"""Sends and reads messages between ranks, on the channel's thread."""

import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.identity import Rank, cannot_answer, process_groups
from training_profiler.ranks.message import (
    MOST_MESSAGE_BYTES,
    Heartbeat,
    Message,
    message_interval_s,
    unpack,
    unresponsive_after_s,
)
from training_profiler.safety.files import NotRegularFileError, is_folder, make_inner_folder, read_file, replace_file

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
    distributed = process_groups()
    with suppress(AttributeError, ValueError, RuntimeError):  # the group is being destroyed
        group = None if distributed is None else distributed.group.WORLD
        return 0 if group is None else id(group)
    return 0


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


FOLDER: Final = "ranks"


class FolderStore:
    """One file a rank, replaced in one piece: ``ranks/3.json``, in later attempts ``ranks/3-attempt1.json``.

    Raises:
        OSError: a file cannot be written or read.
    """

    def __init__(self, run_folder: Path, attempt: int) -> None:
        self._folder = run_folder / FOLDER
        self._suffix = f"-attempt{attempt}.json" if attempt else ".json"
        self._stamps: dict[int, tuple[int, int]] = {}  # of the files read

    def send(self, rank: int, data: bytes) -> None:
        """Write the message of ``rank``."""
        make_inner_folder(self._folder)
        path = self._folder / f"{rank}{self._suffix}"
        replace_file(path, data, path.with_suffix(".part"))

    def read(self, world_size: int | None = None) -> Mapping[int, bytes]:
        """Return the messages that are new since the last call, by rank; those of ``world_size`` and above are others'.

        A message that cannot be read is tried again when its file has changed.
        """
        messages = {}
        for rank, path, stamp in self._files():
            if self._stamps.get(rank) != stamp and (world_size is None or rank < world_size):
                with suppress(FileNotFoundError):  # being replaced
                    with suppress(NotRegularFileError):
                        messages[rank] = read_file(path, MOST_MESSAGE_BYTES)
                    self._stamps[rank] = stamp
        return messages

    def _files(self) -> list[tuple[int, Path, tuple[int, int]]]:
        pattern = re.compile(r"(\d{1,9})" + re.escape(self._suffix))
        if os.path.lexists(self._folder) and not is_folder(self._folder):
            return []
        found = []
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:  # no rank has written a message yet
            for entry in entries:
                if match := pattern.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append((int(match[1]), Path(entry.path), (status.st_mtime_ns, status.st_ino)))
        return found


T = TypeVar("T")
TRIES: Final = 5  # to connect to a group's store: another thread may be using it
ARRIVAL_S: Final = 0.2  # within which the last message of a rank that has ended must arrive
RUN_NAME: Final = re.compile(r"[\w.-]{1,200}")
BY_STORE, BY_FILE = range(2)
_LOST: Final = (RuntimeError, ValueError, TypeError, AttributeError)  # c10d's errors are RuntimeErrors


class ReceivedMessage(NamedTuple):
    """The latest message of one rank."""

    data: bytes  # its measurements; empty before its first summary
    age_s: float
    heartbeat: Heartbeat = Heartbeat()
    is_final: bool = False
    stacks: bytes = b""


class _Arrival(NamedTuple):
    way: int
    message: Message
    at_ns: int  # when it arrived


class RankTransport:
    """Carries messages through the group's store while there is one, else through files. Used by one thread only."""

    def __init__(
        self,
        rank: Rank,
        has_agent_store: bool,
        clock: Callable[[], int],
        find_store: Callable[[], Any] = default_store,
        group: Callable[[], int] = group_mark,
        is_gone: Callable[[str], bool] = cannot_answer,
    ) -> None:
        self.rank = rank
        self._is_gone = is_gone
        self._gone_ns: dict[int, int] = {}  # when a rank was first found to have ended without a final message
        self.folder: Path | None = None
        self.run_name: str | None = None
        self.session_number = 0  # sessions of this process before this one that sent messages
        self.garbled = 0  # messages that could not be decoded
        self.lost: str | None = None  # why the latest message has not arrived
        self.begin_ns = self.group_ns = clock()  # of the transport, and of the latest process group
        self.arrivals: dict[int, _Arrival] = {}
        self._has_agent_store = has_agent_store
        self._clock = clock
        self._find_store, self._group = find_store, group
        self._store: GroupStore | None = None
        self._of_group = 0
        self._tries = 0  # left to find the store of that group
        self._files: FolderStore | None = None
        self._seen: dict[tuple[int, int], bytes] = {}  # the latest message of a rank, by store and by file
        self._next_read_ns = 0
        self._named = False
        self.asked_ns = 0  # when stacks were last asked for through the store, by the wall clock
        self._sent_asked_ns = self._next_asked_ns = 0

    @property
    def every_s(self) -> float:
        """Time between two readings, and between two heartbeats of a rank, in s."""
        return message_interval_s(self.rank.who.world_size)

    def use_folder(self, folder: Path) -> None:
        """Use files in this run folder if there is no store."""
        self.folder = folder

    def begin(self, session_number: int) -> None:
        """Set how many sessions of this process sent messages before this one."""
        self.session_number = session_number

    def fail(self, reason: str) -> None:
        """Keep why the latest message cannot be sent."""
        self.lost = reason

    def connect(self) -> None:
        """Connect to the store if there is one, and drop a connection that no longer works."""
        self.rank.detect_process_group()
        if self._store is not None and not self._store.is_alive():
            self._store = None
        group = self._group()
        if not group:
            if not self._has_agent_store:  # its server may be gone at any time
                self._store = None
        elif group != self._of_group:
            self._of_group, self._tries, self._store = group, TRIES, None
            self.group_ns = self._clock()
        if group and self._store is None and self._tries:
            self._tries -= 1
            store = self._find_store()  # never kept: a reference keeps the server and its port alive
            if store is not None:
                self._tries, self._named, self._sent_asked_ns = 0, False, 0
                with suppress(*_LOST):
                    self._store = connect(store, f"{self.rank.who.attempt}.{self.session_number}")
        if self._files is None and self.folder is not None:
            self._files = FolderStore(self.folder, self.rank.who.attempt)

    def _try_store(self, work: Callable[[GroupStore], None]) -> bool:
        """Return whether the store did it; a store that fails is not used again."""
        if self._store is None or not self._store.is_alive():
            return False
        try:
            work(self._store)
        except _LOST:
            self._store = None
            return False
        return True

    def send(self, message: Message) -> bool:
        """Return whether a message of this rank is on its way."""
        packed, number = message.pack(), self.rank.who.rank
        self.lost = None
        if self._try_store(lambda store: store.send(number, packed)):
            return True
        if self._files is None:
            self.lost = "there is neither a store nor a folder that the ranks have in common"
        else:
            try:
                self._files.send(number, packed)
            except OSError as error:
                self.lost = f"{type(error).__name__}: {error}"
        return self.lost is None

    def exchange_name(self, own: str | None) -> None:
        """Send the name of the run's folder on rank 0; read it on the other ranks."""
        if self.rank.who.rank == 0:
            if own is not None and not self._named:
                self._named = self._try_store(lambda store: store.name_run(own))
        elif self.run_name is None:
            name = self._answer(GroupStore.run_name)
            if name is not None and RUN_NAME.fullmatch(name) and name.strip("."):
                self.run_name = name

    def exchange_request(self, asked_ns: int) -> None:
        """Send to the other ranks, on rank 0, that stacks were asked for; on the others read whether they were."""
        if self.rank.who.rank == 0:
            if asked_ns > self._sent_asked_ns and self._try_store(lambda store: store.ask_for_stacks(asked_ns)):
                self._sent_asked_ns = asked_ns
        elif self._clock() >= self._next_asked_ns:
            self._next_asked_ns = self._clock() + int(self.every_s * NS_PER_S)
            self.asked_ns = max(self.asked_ns, self._answer(GroupStore.stacks_asked) or 0)

    def _answer(self, question: Callable[[GroupStore], T]) -> T | None:
        """Return what the store answers; None without one."""
        answers: list[T] = []
        self._try_store(lambda store: answers.append(question(store)))
        return answers[0] if answers else None

    def read(self, is_now: bool = False) -> None:
        """Read the other ranks' messages if that is due, and keep when new ones arrived."""
        now_ns = self._clock()
        if self.rank.who.rank != 0 or (now_ns < self._next_read_ns and not is_now):
            return
        self._next_read_ns = now_ns + int(self.every_s * NS_PER_S)
        world_size = self.rank.who.world_size
        awaited = [rank for rank in range(1, world_size) if not self._is_final(rank)]
        self._try_store(lambda store: self._accept(store.read(awaited), BY_STORE))
        if self._files is not None:
            try:
                messages = self._files.read(world_size)
            except OSError:  # the file is being replaced, or the disk is briefly away
                return
            self._accept({rank: packed for rank, packed in messages.items() if 0 < rank < world_size}, BY_FILE)

    def _is_final(self, rank: int) -> bool:
        return rank in self.arrivals and self.arrivals[rank].message.is_final

    def _accept(self, messages: Mapping[int, bytes], way: int) -> None:
        now_ns = self._clock()
        for rank, packed in messages.items():
            if self._seen.get((way, rank)) == packed:
                continue
            self._seen[way, rank] = packed
            try:
                message = unpack(packed)
            except (ValueError, TypeError, RecursionError):
                self.garbled += 1
                continue
            before = self.arrivals.get(rank)
            # A file may be from before the group was there, and older than the message in the store.
            is_older = before is not None and way != before.way and message.sequence < before.message.sequence
            if not is_older and (message.is_final or not self._is_final(rank)):
                self.arrivals[rank] = _Arrival(way, message, now_ns)

    def awaited(self) -> int:
        """Return how many responsive ranks have not sent their final message."""
        if not self.arrivals and not self.rank.has_group:  # a program started by a rank has no other ranks
            return 0
        now_ns, patience_ns = self._clock(), int(unresponsive_after_s(self.every_s) * NS_PER_S)
        waiting = 0
        for rank in range(1, self.rank.who.world_size):
            arrival = self.arrivals.get(rank)
            if not self._is_final(rank):
                since_ns = self.begin_ns if arrival is None else arrival.at_ns
                waiting += now_ns - since_ns <= patience_ns and not self._has_gone(rank, arrival, now_ns)
        return waiting

    def _has_gone(self, rank: int, arrival: _Arrival | None, now_ns: int) -> bool:
        """Return whether a rank on this machine was killed or stopped, so that nothing more of it can arrive."""
        if arrival is None or not self._is_gone(arrival.message.heartbeat.process):
            self._gone_ns.pop(rank, None)
            return False
        return now_ns - self._gone_ns.setdefault(rank, now_ns) >= ARRIVAL_S * NS_PER_S

    def received(self) -> dict[int, ReceivedMessage]:
        """Return the latest message of each other rank; may be called by any thread."""
        now_ns = self._clock()
        return {
            rank: ReceivedMessage(
                message.data, (now_ns - at_ns) / NS_PER_S, message.heartbeat, message.is_final, message.stacks
            )
            for rank, (_, message, at_ns) in sorted(self.arrivals.copy().items())
        }

    def close(self) -> None:
        """Drop the connection."""
        self._store = None
