"""Where messages between ranks lie: keys in the process group's store, or files in the run folder."""

import itertools
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.identity import Rank, process_groups
from training_profiler.ranks.message import MOST_MESSAGE_BYTES, message_interval_s
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


NO_WAY: Final = "there is neither a store nor a folder that the ranks have in common"
TRIES: Final = 5  # to connect to a group's store: another thread may be using it
_LOST: Final = (RuntimeError, ValueError, TypeError, AttributeError)  # c10d's errors are RuntimeErrors
_session_numbers = itertools.count()


class Stores:
    """The group's store while there is one, and files in the run's folder. The channel's thread alone uses both.

    ``has_agent_store`` is whether the store outlives the process group, because the launcher keeps it.
    """

    def __init__(self, rank: Rank, has_agent_store: bool, clock: Callable[[], int]) -> None:
        self.rank, self.clock, self._has_agent_store = rank, clock, has_agent_store
        self.wakes: SimpleQueue[None] = SimpleQueue()  # of the thread; put() may be interrupted by itself
        self._find_store: Callable[[], Any] = default_store
        self._mark: Callable[[], int] = group_mark
        self._session_number = 0  # sessions of this process before this one that sent messages
        self.folder: Path | None = None  # of the run, on a disk that the ranks may have in common
        self.files: FolderStore | None = None
        self.group: GroupStore | None = None
        self.group_ns = clock()  # when the latest process group was found, or the run began
        self._of_group = 0
        self._tries = 0  # left to find the store of that group

    @property
    def every_s(self) -> float:
        """Time between two readings, and between two heartbeats of a rank, in s."""
        return message_interval_s(self.rank.who.world_size)

    def next_ns(self) -> int:
        """Return when to read, or to send a heartbeat, again."""
        return self.clock() + int(self.every_s * NS_PER_S)

    def begin_session(self) -> None:
        """Use keys of its own for the messages of this session."""
        self._session_number = next(_session_numbers)

    def use_folder(self, folder: Path) -> None:
        """Send messages through files in this run folder if the ranks have no store."""
        if folder != self.folder:
            self.folder = folder
            self.wakes.put(None)

    def connect(self) -> None:
        """Connect to the group's store if there is one, and drop a connection that no longer works."""
        self.rank.detect_process_group()
        if self.group is not None and not self.group.is_alive():
            self.group = None
        mark = self._mark()
        if not mark:
            if not self._has_agent_store:  # its server may be gone at any time
                self.group = None
        elif mark != self._of_group:
            self._of_group, self._tries, self.group = mark, TRIES, None
            self.group_ns = self.clock()
        if mark and self.group is None and self._tries:
            self._tries -= 1
            store = self._find_store()  # never kept: a reference keeps the server and its port alive
            if store is not None:
                self._tries = 0
                with suppress(*_LOST):
                    self.group = connect(store, f"{self.rank.who.attempt}.{self._session_number}")
        if self.files is None and self.folder is not None:
            self.files = FolderStore(self.folder, self.rank.who.attempt)

    def disconnect(self) -> None:
        """Let go of the group's store."""
        self.group = None

    def ask(self, work: Callable[[GroupStore], object]) -> bool:
        """Return whether the group's store did ``work``. One that fails is not used again."""
        if self.group is None or not self.group.is_alive():
            return False
        try:
            work(self.group)
        except _LOST:
            self.group = None
            return False
        return True

    def send(self, data: bytes) -> str | None:
        """Send the message of this rank, by a file if there is no store; return why that failed, or None."""
        rank = self.rank.who.rank
        if self.ask(lambda store: store.send(rank, data)):
            return None
        if self.files is None:
            return NO_WAY
        try:
            self.files.send(rank, data)
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return None
