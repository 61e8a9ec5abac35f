"""Sends and reads messages between ranks, on the channel's thread."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.folder import FolderStore
from training_profiler.ranks.identity import Rank
from training_profiler.ranks.liveness import message_interval_s, unresponsive_after_s
from training_profiler.ranks.message import Heartbeat, Message, unpack
from training_profiler.ranks.processes import cannot_answer
from training_profiler.ranks.store import GroupStore, connect, default_store, group_mark

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
            self._connect()
        if self._files is None and self.folder is not None:
            self._files = FolderStore(self.folder, self.rank.who.attempt)

    def _connect(self) -> None:
        store = self._find_store()  # drop the reference at once: it keeps the server and its port alive
        if store is None:
            return
        self._tries, self._named, self._sent_asked_ns = 0, False, 0
        try:
            self._store = connect(store, f"{self.rank.who.attempt}.{self.session_number}")
        except _LOST:
            self._store = None

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
        if self._try_store(lambda store: store.send(number, packed)):
            self.lost = None
            return True
        if self._files is None:
            self.lost = "there is neither a store nor a folder that the ranks have in common"
            return False
        try:
            self._files.send(number, packed)
        except OSError as error:
            self.lost = f"{type(error).__name__}: {error}"
            return False
        self.lost = None
        return True

    def exchange_name(self, own: str | None) -> None:
        """Send the name of the run's folder on rank 0; read it on the other ranks."""
        if self.rank.who.rank == 0:
            if own is not None and not self._named:
                self._named = self._try_store(lambda store: store.name_run(own))
        elif self.run_name is None:
            self._try_store(self._ask_for_name)

    def exchange_request(self, asked_ns: int) -> None:
        """Send to the other ranks, on rank 0, that stacks were asked for; on the others read whether they were."""
        if self.rank.who.rank == 0:
            if asked_ns > self._sent_asked_ns and self._try_store(lambda store: store.ask_for_stacks(asked_ns)):
                self._sent_asked_ns = asked_ns
        elif self._clock() >= self._next_asked_ns:
            self._next_asked_ns = self._clock() + int(self.every_s * NS_PER_S)
            self._try_store(self._look_for_request)

    def _look_for_request(self, store: GroupStore) -> None:
        self.asked_ns = max(self.asked_ns, store.stacks_asked())

    def _ask_for_name(self, store: GroupStore) -> None:
        name = store.run_name()
        if name is not None and RUN_NAME.fullmatch(name) and name.strip("."):
            self.run_name = name

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
        now_ns, world_size = self._clock(), self.rank.who.world_size
        patience_ns = int(unresponsive_after_s(self.every_s) * NS_PER_S)
        waiting = 0
        for rank in range(1, world_size):
            arrival = self.arrivals.get(rank)
            if arrival is None or not arrival.message.is_final:
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
                arrival.message.data,
                (now_ns - arrival.at_ns) / NS_PER_S,
                arrival.message.heartbeat,
                arrival.message.is_final,
                arrival.message.stacks,
            )
            for rank, arrival in sorted(self.arrivals.copy().items())
        }

    def close(self) -> None:
        """Drop the connection."""
        self._store = None
