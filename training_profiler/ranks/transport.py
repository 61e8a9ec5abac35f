"""What the board's thread does each time it wakes: sends what is to be told, and on rank 0 reads what others told."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.ranks.folder import FolderStore
from training_profiler.ranks.identity import Rank
from training_profiler.ranks.liveness import message_interval_s, unresponsive_after_s
from training_profiler.ranks.message import Heartbeat, Message, unpack
from training_profiler.ranks.store import GroupStore, connect, default_store, group_mark
from training_profiler.units import NS_PER_S

TRIES: Final = 5  # to connect to a group's store: it may just be in use
RUN_NAME: Final = re.compile(r"[\w.-]{1,200}")
BY_STORE, BY_FILE = range(2)
_LOST: Final = (RuntimeError, ValueError, TypeError, AttributeError)  # c10d's errors are RuntimeErrors


class ReceivedMessage(NamedTuple):
    """What one rank told last."""

    data: bytes  # what it has measured; empty before it tells of that
    heard_s_ago: float
    alive: Heartbeat = Heartbeat()
    is_final: bool = False


class _Heard(NamedTuple):
    way: int
    message: Message
    at_ns: int  # when it was new here


class RankTransport:
    """Carries messages by the group's store while there is one, else by files; the thread's own, so without locks."""

    def __init__(
        self,
        rank: Rank,
        has_agent_store: bool,
        clock: Callable[[], int],
        find_store: Callable[[], Any] = default_store,
        group: Callable[[], int] = group_mark,
    ) -> None:
        self.rank = rank
        self.folder: Path | None = None
        self.run_name: str | None = None
        self.serial = 0  # how many sessions this process had before that told anything
        self.garbled = 0  # messages that could not be understood
        self.lost: str | None = None  # why the last telling has not arrived anywhere
        self.begin_ns = clock()
        self.heard: dict[int, _Heard] = {}
        self._has_agent_store = has_agent_store
        self._clock = clock
        self._find_store, self._group = find_store, group
        self._store: GroupStore | None = None
        self._of_group = 0
        self._tries = 0  # left to find the store of that group
        self._files: FolderStore | None = None
        self._seen: dict[tuple[int, int], bytes] = {}  # what a rank told last by either way
        self._next_read_ns = 0
        self._named = False

    @property
    def every_s(self) -> float:
        """Time between two readings, and between two signs of life of a rank, in s."""
        return message_interval_s(self.rank.who.world_size)

    def use_folder(self, folder: Path) -> None:
        """Use files in this run folder where there is no store."""
        self.folder = folder

    def begin(self, serial: int) -> None:
        """Set how many sessions of this process used other ranks' messages before this one."""
        self.serial = serial

    def fail(self, reason: str) -> None:
        """Keep why the latest message cannot be sent."""
        self.lost = reason

    def look(self) -> None:
        """Connect where that is possible by now, and let go of a connection that would no longer serve."""
        self.rank.note()
        if self._store is not None and not self._store.is_alive():
            self._store = None
        group = self._group()
        if not group:
            if not self._has_agent_store:  # its server may be gone the next moment
                self._store = None
        elif group != self._of_group:
            self._of_group, self._tries, self._store = group, TRIES, None
        if group and self._store is None and self._tries:
            self._tries -= 1
            self._connect()
        if self._files is None and self.folder is not None:
            self._files = FolderStore(self.folder, self.rank.who.attempt)

    def _connect(self) -> None:
        store = self._find_store()  # kept no longer than it takes, for who has it keeps the server and its port
        if store is None:
            return
        self._tries, self._named = 0, False
        try:
            self._store = connect(store, f"{self.rank.who.attempt}.{self.serial}")
        except _LOST:
            self._store = None

    def _try_store(self, work: Callable[[GroupStore], None]) -> bool:
        """Return whether the store did it; one that fails is not asked again."""
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

    def settle_name(self, own: str | None) -> None:
        """Tell the name of the run's folder on rank 0; on others ask for it."""
        if self.rank.who.rank == 0:
            if own is not None and not self._named:
                self._named = self._try_store(lambda store: store.name_run(own))
        elif self.run_name is None:
            self._try_store(self._ask_for_name)

    def _ask_for_name(self, store: GroupStore) -> None:
        name = store.run_name()
        if name is not None and RUN_NAME.fullmatch(name) and name.strip("."):
            self.run_name = name

    def read(self, is_now: bool = False) -> None:
        """Read what others have told, where that is due; what is new bears the present time."""
        now_ns = self._clock()
        if self.rank.who.rank != 0 or (now_ns < self._next_read_ns and not is_now):
            return
        self._next_read_ns = now_ns + int(self.every_s * NS_PER_S)
        world_size = self.rank.who.world_size
        others = [rank for rank in range(1, world_size) if not self._is_final(rank)]
        self._try_store(lambda store: self._take(store.read(others), BY_STORE))
        if self._files is not None:
            try:
                told = self._files.read()
            except OSError:  # a file that is being replaced, or a disk that is away for a moment
                return
            self._take({rank: packed for rank, packed in told.items() if 0 < rank < world_size}, BY_FILE)

    def _is_final(self, rank: int) -> bool:
        return rank in self.heard and self.heard[rank].message.is_final

    def _take(self, told: Mapping[int, bytes], way: int) -> None:
        now_ns = self._clock()
        for rank, packed in told.items():
            if self._seen.get((way, rank)) == packed:
                continue
            self._seen[way, rank] = packed
            try:
                message = unpack(packed)
            except (ValueError, TypeError, RecursionError):
                self.garbled += 1
                continue
            before = self.heard.get(rank)
            # A file may be from before the group was there, and older than what came by the store.
            is_older = before is not None and way != before.way and message.beat < before.message.beat
            if not is_older and (message.is_final or not self._is_final(rank)):
                self.heard[rank] = _Heard(way, message, now_ns)

    def awaited(self) -> int:
        """Return how many ranks are still to tell their last, of those that may be expected to."""
        if not self.heard and not self.rank.has_group:  # a program that a rank has started has no others
            return 0
        now_ns, world_size = self._clock(), self.rank.who.world_size
        patience_ns = int(unresponsive_after_s(self.every_s) * NS_PER_S)
        waiting = 0
        for rank in range(1, world_size):
            heard = self.heard.get(rank)
            if heard is None or not heard.message.is_final:
                since_ns = self.begin_ns if heard is None else heard.at_ns
                waiting += now_ns - since_ns <= patience_ns
        return waiting

    def told(self) -> dict[int, ReceivedMessage]:
        """Return what others told last; may be called by any thread."""
        now_ns = self._clock()
        return {
            rank: ReceivedMessage(
                one.message.data, (now_ns - one.at_ns) / NS_PER_S, one.message.alive, one.message.is_final
            )
            for rank, one in sorted(self.heard.copy().items())
        }

    def close(self) -> None:
        """Let go of the connection."""
        self._store = None
