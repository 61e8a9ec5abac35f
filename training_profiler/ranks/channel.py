"""Carries messages between ranks, through c10d's store or files in the run folder."""

import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.identity import Rank, cannot_answer
from training_profiler.ranks.message import (
    Heartbeat,
    Message,
    ReceivedMessage,
    message_interval_s,
    unpack,
    unresponsive_after_s,
)
from training_profiler.ranks.stores import FolderStore, GroupStore, connect, default_store, group_mark
from training_profiler.safety.fault_guard import BackgroundThread, Guard

PART: Final = "ranks"
OWN_SEND_S: Final = 0.2  # for this rank's final message, which takes a millisecond
HURRIED_S: Final = 0.5  # for the other ranks, if this one ends by a signal or an exception
SOON_S: Final = 0.02  # between two polls while the run's folder is unknown, and at the end; with
SOON_OF_INTERVAL: Final = 50  # many ranks, this many polls between two reads
BEGINNING_S: Final = 2.0  # polls for the folder are that frequent for this long, or ten polls
REST: Final = 10  # pause before the next read, in durations of the last one
TRIES: Final = 5  # to connect to a group's store: another thread may be using it
ARRIVAL_S: Final = 0.2  # within which the last message of a rank that has ended must arrive
RUN_NAME: Final = re.compile(r"[\w.-]{1,200}")
BY_STORE, BY_FILE = range(2)
NO_WAY: Final = "there is neither a store nor a folder that the ranks have in common"
_LOST: Final = (RuntimeError, ValueError, TypeError, AttributeError)  # c10d's errors are RuntimeErrors
_session_numbers = itertools.count()
T = TypeVar("T")


class _Arrival(NamedTuple):
    way: int
    message: Message
    at_ns: int  # when it arrived


class RankChannel:
    """Messages between ranks, through the group's store while there is one, else through files.

    A thread carries them, and it alone uses stores and files; only ``close`` waits.

    Args:
        rank: which rank this is.
        wait_s: the longest time that ``close`` may take.
        has_agent_store: whether the store outlives the process group, because the launcher keeps it.
        guard: runs what may fail, and disables it if it does.
        clock: monotonic, in ns.
        heartbeat: returns how this rank is doing; called on the thread.
        on_messages: called with the latest messages of all ranks, on rank 0, on the thread, before the end of the run.
        stacks: returns the stacks to send with each message, if any; called on the thread.
    """

    def __init__(
        self,
        rank: Rank,
        wait_s: float,
        has_agent_store: bool,
        guard: Guard,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        heartbeat: Callable[[], Heartbeat] = Heartbeat,
        on_messages: Callable[[Mapping[int, ReceivedMessage]], None] = lambda messages: None,
        stacks: Callable[[], bytes] = bytes,
    ) -> None:
        self._rank, self._wait_s, self._has_agent_store = rank, wait_s, has_agent_store
        self._guard, self._clock = guard, clock
        self._heartbeat, self._on_messages, self._stacks = heartbeat, on_messages, stacks
        self._find_store: Callable[[], Any] = default_store
        self._group: Callable[[], int] = group_mark
        self._is_gone: Callable[[str], bool] = cannot_answer
        self._thread: BackgroundThread | None = None
        self._wakes: SimpleQueue[None] = SimpleQueue()  # put() may be interrupted by itself
        self._until_ns: int | None = None  # when ``close`` stops waiting; None before the end
        self._is_over = False
        self._session_number = 0  # sessions of this process before this one that sent messages
        self._begin_ns = self._group_ns = clock()  # of the channel, and of the latest process group
        # Where messages lie.
        self._folder: Path | None = None
        self._files: FolderStore | None = None
        self._store: GroupStore | None = None
        self._of_group = 0
        self._tries = 0  # left to find the store of that group
        # What is sent.
        self._outbox: deque[tuple[bytes, bool]] = deque(maxlen=1)  # not yet fetched by the thread; whether it is final
        self._unsent: tuple[bytes, bool] | None = None  # fetched by the thread and not yet sent
        self._latest = b""
        self._lost: str | None = None  # why the latest message has not arrived
        self._sequence = self._next_beat_ns = 0
        self._name: str | None = None
        self._is_named = False
        self._request_ns = self._sent_request_ns = 0  # when stacks were asked for, on rank 0
        # What is read.
        self._arrivals: dict[int, _Arrival] = {}
        self._seen: dict[tuple[int, int], bytes] = {}  # the latest message of a rank, by store and by file
        self._gone_ns: dict[int, int] = {}  # when a rank was first found to have ended without a final message
        self._garbled = 0  # messages that could not be decoded
        self._wants_read, self._next_soon_ns, self._next_read_ns, self._next_request_ns = False, 0, 0, 0
        self._took_s = 0.0  # by the latest poll
        self.run_name: str | None = None
        """The name of the run's folder as rank 0 sent it; None until then."""
        self.asked_ns = 0
        """When rank 0 last asked this rank for its stacks, by the wall clock; 0 if it never did."""

    def use_folder(self, folder: Path) -> None:
        """Send messages through files in this run folder if the ranks have no store."""
        if folder != self._folder:
            self._folder = folder
            self._wakes.put(None)

    def reconfigure(self, wait_s: float) -> None:
        """Let ``close`` take at most ``wait_s`` from now on."""
        self._wait_s = wait_s

    def start(self) -> None:
        """Start the thread, if there are other ranks; wakes it the second time, for a process group may be new."""
        if self._thread is not None:
            self._wakes.put(None)
        elif not self._is_over and self._rank.is_one_of_many():
            self._session_number = next(_session_numbers)
            self._thread = BackgroundThread("ranks", self._run, self._guard, PART)
            try:
                self._thread.start()
            except RuntimeError as error:  # too many threads, or the interpreter is ending (from Python 3.12 on)
                self._thread, self._is_over, self._lost = None, True, str(error)

    @property
    def cpu_ns(self) -> int:
        """CPU time of the thread, in ns."""
        return 0 if self._thread is None else self._thread.cpu_ns

    @property
    def every_s(self) -> float:
        """Time between two readings, and between two heartbeats of a rank, in s."""
        return message_interval_s(self._rank.who.world_size)

    def name_run(self, name: str) -> None:
        """Send the name of the run's folder to the other ranks."""
        if self._name != name:
            self._name = name
            self._wakes.put(None)

    def send(self, data: bytes, is_final: bool = False) -> None:
        """Send the measurements of this rank so far, in place of unsent ones; never waits."""
        self._outbox.append((data, is_final))
        self._wakes.put(None)

    def ask_for_stacks(self, asked_ns: int) -> None:
        """Ask the other ranks for their stacks, on rank 0. ``asked_ns`` identifies the request."""
        self._request_ns = asked_ns
        self._wakes.put(None)

    def send_stacks_soon(self) -> None:
        """Send a heartbeat now, because there are stacks to send with it."""
        self._next_beat_ns = 0
        self._wakes.put(None)

    def read_soon(self) -> None:
        """On rank 0, have the thread read messages soon: a report is due. At most once per heartbeat interval."""
        now_ns = self._clock()
        if self._rank.is_one_of_many() and not self._rank.who.rank and now_ns >= self._next_soon_ns:
            self._next_soon_ns = now_ns + self._every_ns
            self._wants_read = True
            self._wakes.put(None)

    def received(self) -> dict[int, ReceivedMessage]:
        """Return the latest message of each other rank that has arrived, by rank; may be called by any thread."""
        now_ns = self._clock()
        return {
            rank: ReceivedMessage(
                message.data, (now_ns - at_ns) / NS_PER_S, message.heartbeat, message.is_final, message.stacks
            )
            for rank, (_, message, at_ns) in sorted(self._arrivals.copy().items())
        }

    def close(self, is_hurried: bool = False) -> None:
        """Send the latest message; on rank 0 wait at most ``wait_s`` for the other ranks' final messages."""
        thread, self._thread, self._is_over = self._thread, None, True
        if thread is None:
            return
        for_others_s = 0.0 if self._rank.who.rank else HURRIED_S if is_hurried else self._wait_s
        wait_s = min(self._wait_s, max(for_others_s, OWN_SEND_S))
        self._until_ns = self._clock() + int(wait_s * NS_PER_S)
        self._wakes.put(None)
        # A thread that waits for a hanging server is left alone: it ends with the process.
        thread.join(wait_s + OWN_SEND_S)

    def after_fork_in_child(self) -> None:
        """Drop the thread and send nothing more: the channel belongs to the parent."""
        self._thread, self._is_over = None, True

    def notes(self) -> list[str]:
        """Return sentences on messages that did not arrive."""
        notes = []
        if self._garbled:
            notes.append(f"ranks: {self._garbled} messages of other ranks could not be decoded")
        if self._lost is not None and self._rank.who.rank:
            notes.append(f"ranks: the last measurements of this rank did not reach rank 0: {self._lost}")
        return notes

    @property
    def _every_ns(self) -> int:
        return int(self.every_s * NS_PER_S)

    def _run(self, thread: BackgroundThread) -> None:
        try:
            while not self.poll_once():
                thread.measure_cpu()
                with suppress(Empty):
                    self._wakes.get(timeout=self._pause_s())
                    while True:
                        self._wakes.get_nowait()
        finally:
            self._store = None

    def _pause_s(self) -> float:
        soon_s = max(SOON_S, self.every_s / SOON_OF_INTERVAL)
        if self._until_ns is not None:
            return max(SOON_S, REST * self._took_s)
        is_named = (self.run_name if self._rank.who.rank else self._name) is not None
        if not is_named and self._clock() - self._group_ns < max(BEGINNING_S, 10 * soon_s) * NS_PER_S:
            return soon_s
        return self.every_s

    def poll_once(self) -> bool:
        """Send and read once; return whether ``close`` need not wait for anything more."""
        begin_ns = self._clock()
        is_ending = self._until_ns is not None  # asked first: a message handed over before the end is still sent
        self.connect()
        self.exchange_name()
        self.exchange_request()
        if self._rank.who.rank == 0:
            wants_read, self._wants_read = self._wants_read, False
            self.read(is_now=is_ending or wants_read)
            if not is_ending:
                self._on_messages(self.received())
            is_through = not self.awaited()
        else:
            is_through = self._send()
        self._took_s = (self._clock() - begin_ns) / NS_PER_S
        return is_ending and (is_through or self._clock() >= (self._until_ns or 0))

    def _send(self) -> bool:
        """Send a new message, or a heartbeat if one is due; return whether nothing is left to send."""
        with suppress(IndexError):
            self._unsent = self._outbox.popleft()
        if self._unsent is None:
            if self._clock() >= self._next_beat_ns and self._until_ns is None:
                self._send_data(self._latest, is_final=False)
            return True
        data, is_final = self._unsent
        if self._send_data(data, is_final):
            self._latest, self._unsent = data, None
        return self._unsent is None and not self._outbox

    def _send_data(self, data: bytes, is_final: bool) -> bool:
        self._sequence += 1
        self._next_beat_ns = self._clock() + self._every_ns
        return self.send_message(Message(self._heartbeat(), data, is_final, self._sequence, self._stacks()))

    def send_message(self, message: Message) -> bool:
        """Return whether a message of this rank is on its way."""
        packed, number = message.pack(), self._rank.who.rank
        lost = None
        if not self._try_store(lambda store: store.send(number, packed)):
            try:
                if self._files is None:
                    lost = NO_WAY
                else:
                    self._files.send(number, packed)
            except OSError as error:
                lost = f"{type(error).__name__}: {error}"
        self._lost = lost
        return lost is None

    def connect(self) -> None:
        """Connect to the store if there is one, and drop a connection that no longer works."""
        self._rank.detect_process_group()
        if self._store is not None and not self._store.is_alive():
            self._store = None
        group = self._group()
        if not group:
            if not self._has_agent_store:  # its server may be gone at any time
                self._store = None
        elif group != self._of_group:
            self._of_group, self._tries, self._store = group, TRIES, None
            self._group_ns = self._clock()
        if group and self._store is None and self._tries:
            self._tries -= 1
            store = self._find_store()  # never kept: a reference keeps the server and its port alive
            if store is not None:
                self._tries, self._is_named, self._sent_request_ns = 0, False, 0
                with suppress(*_LOST):
                    self._store = connect(store, f"{self._rank.who.attempt}.{self._session_number}")
        if self._files is None and self._folder is not None:
            self._files = FolderStore(self._folder, self._rank.who.attempt)

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

    def _answer(self, question: Callable[[GroupStore], T]) -> T | None:
        """Return what the store answers; None without one."""
        answers: list[T] = []
        self._try_store(lambda store: answers.append(question(store)))
        return answers[0] if answers else None

    def exchange_name(self) -> None:
        """Send the name of the run's folder on rank 0; read it on the other ranks."""
        name = self._name
        if self._rank.who.rank == 0:
            if name is not None and not self._is_named:
                self._is_named = self._try_store(lambda store: store.name_run(name))
        elif self.run_name is None:
            answer = self._answer(GroupStore.run_name)
            if answer is not None and RUN_NAME.fullmatch(answer) and answer.strip("."):
                self.run_name = answer

    def exchange_request(self) -> None:
        """Send to the other ranks, on rank 0, that stacks were asked for; on the others read whether they were."""
        asked_ns = self._request_ns
        if self._rank.who.rank == 0:
            if asked_ns > self._sent_request_ns and self._try_store(lambda store: store.ask_for_stacks(asked_ns)):
                self._sent_request_ns = asked_ns
        elif self._clock() >= self._next_request_ns:
            self._next_request_ns = self._clock() + self._every_ns
            self.asked_ns = max(self.asked_ns, self._answer(GroupStore.stacks_asked) or 0)

    def read(self, is_now: bool = False) -> None:
        """Read the other ranks' messages on rank 0 if that is due, and keep when new ones arrived."""
        now_ns = self._clock()
        if self._rank.who.rank != 0 or (now_ns < self._next_read_ns and not is_now):
            return
        self._next_read_ns = now_ns + self._every_ns
        world_size = self._rank.who.world_size
        running = [rank for rank in range(1, world_size) if not self._is_final(rank)]
        self._try_store(lambda store: self._accept(store.read(running), BY_STORE))
        if self._files is not None:
            with suppress(OSError):  # the file is being replaced, or the disk is briefly away
                messages = self._files.read(world_size)
                self._accept({rank: packed for rank, packed in messages.items() if 0 < rank < world_size}, BY_FILE)

    def _is_final(self, rank: int) -> bool:
        return rank in self._arrivals and self._arrivals[rank].message.is_final

    def _accept(self, messages: Mapping[int, bytes], way: int) -> None:
        now_ns = self._clock()
        for rank, packed in messages.items():
            if self._seen.get((way, rank)) == packed:
                continue
            self._seen[way, rank] = packed
            try:
                message = unpack(packed)
            except (ValueError, TypeError, RecursionError):
                self._garbled += 1
                continue
            before = self._arrivals.get(rank)
            # A file may be from before the group was there, and older than the message in the store.
            is_older = before is not None and way != before.way and message.sequence < before.message.sequence
            if not is_older and (message.is_final or not self._is_final(rank)):
                self._arrivals[rank] = _Arrival(way, message, now_ns)

    def awaited(self) -> int:
        """Return how many responsive ranks have not sent their final message."""
        if not self._arrivals and not self._rank.has_group:  # a program started by a rank has no other ranks
            return 0
        now_ns, patience_ns = self._clock(), int(unresponsive_after_s(self.every_s) * NS_PER_S)
        waiting = 0
        for rank in range(1, self._rank.who.world_size):
            arrival = self._arrivals.get(rank)
            if not self._is_final(rank):
                since_ns = self._begin_ns if arrival is None else arrival.at_ns
                waiting += now_ns - since_ns <= patience_ns and not self._has_gone(rank, arrival, now_ns)
        return waiting

    def _has_gone(self, rank: int, arrival: _Arrival | None, now_ns: int) -> bool:
        """Return whether a rank on this machine was killed or stopped, so that nothing more of it can arrive."""
        if arrival is None or not self._is_gone(arrival.message.heartbeat.process):
            self._gone_ns.pop(rank, None)
            return False
        return now_ns - self._gone_ns.setdefault(rank, now_ns) >= ARRIVAL_S * NS_PER_S
