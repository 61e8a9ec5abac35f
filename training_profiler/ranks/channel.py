"""Carries messages between ranks, through c10d's store or files in the run folder."""

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from queue import Empty
from typing import Final, NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.identity import Rank, cannot_answer
from training_profiler.ranks.message import Heartbeat, Message, ReceivedMessage, unpack, unresponsive_after_s
from training_profiler.ranks.stores import GroupStore, Stores
from training_profiler.safety.fault_guard import BackgroundThread, Guard

PART: Final = "ranks"
OWN_SEND_S: Final = 0.2  # for this rank's final message, which takes a millisecond
HURRIED_S: Final = 0.5  # for the other ranks, if this one ends by a signal or an exception
SOON_S: Final = 0.02  # between two polls while the run's folder is unknown, and at the end; with
SOON_OF_INTERVAL: Final = 50  # many ranks, this many polls between two reads
BEGINNING_S: Final = 2.0  # polls for the folder are that frequent for this long, or ten polls
REST: Final = 10  # pause before the next read, in durations of the last one
ARRIVAL_S: Final = 0.2  # within which the last message of a rank that has ended must arrive
RUN_NAME: Final = re.compile(r"[\w.-]{1,200}")
BY_STORE, BY_FILE = range(2)


class Outbox:
    """What this rank sends: measurements and heartbeats to rank 0; rank 0 the run's name and requests for stacks.

    Any thread may hand over what is to be sent. The channel's thread sends it.
    """

    def __init__(self, stores: Stores, heartbeat: Callable[[], Heartbeat], stacks: Callable[[], bytes]) -> None:
        self._stores, self._heartbeat, self._stacks = stores, heartbeat, stacks
        self._new: deque[tuple[bytes, bool]] = deque(maxlen=1)  # not yet fetched by the thread; whether it is final
        self._unsent: tuple[bytes, bool] | None = None  # fetched by the thread and not yet sent
        self._latest = b""
        self.lost: str | None = None  # why the latest message has not arrived
        self._sequence = self._next_beat_ns = 0
        self.name: str | None = None  # of the run's folder
        self._request_ns = 0  # when stacks were asked for
        self._known_to: GroupStore | None = None  # the store that knows what follows
        self._is_named, self._sent_request_ns = False, 0

    def put(self, data: bytes, is_final: bool = False) -> None:
        """Send the measurements of this rank so far, in place of unsent ones; never waits."""
        self._new.append((data, is_final))
        self._stores.wakes.put(None)

    def name_run(self, name: str) -> None:
        """Send the name of the run's folder to the other ranks."""
        if self.name != name:
            self.name = name
            self._stores.wakes.put(None)

    def ask_for_stacks(self, asked_ns: int) -> None:
        """Ask the other ranks for their stacks, on rank 0. ``asked_ns`` identifies the request."""
        self._request_ns = asked_ns
        self._stores.wakes.put(None)

    def send_stacks_soon(self) -> None:
        """Send a heartbeat now, because there are stacks to send with it."""
        self._next_beat_ns = 0
        self._stores.wakes.put(None)

    def give_up(self, why: str) -> None:
        """Send nothing: there is no thread."""
        self.lost = why

    def announce(self) -> None:
        """Send the name of the run's folder, and that stacks were asked for, once to each store."""
        name, asked_ns, store = self.name, self._request_ns, self._stores.group
        if store is not self._known_to:
            self._known_to, self._is_named, self._sent_request_ns = store, False, 0
        if name is not None and not self._is_named:
            self._is_named = self._stores.ask(lambda store: store.name_run(name))
        if asked_ns > self._sent_request_ns and self._stores.ask(lambda store: store.ask_for_stacks(asked_ns)):
            self._sent_request_ns = asked_ns

    def send(self, is_ending: bool) -> bool:
        """Send new measurements, or a heartbeat if one is due; return whether nothing is left to send."""
        with suppress(IndexError):
            self._unsent = self._new.popleft()
        if self._unsent is None and (is_ending or self._stores.clock() < self._next_beat_ns):
            return True
        data, is_final = self._unsent or (self._latest, False)
        self._sequence += 1
        self._next_beat_ns = self._stores.next_ns()
        if self.send_message(Message(self._heartbeat(), data, is_final, self._sequence, self._stacks())):
            self._latest, self._unsent = data, None
        return self._unsent is None and not self._new

    def send_end(self, in_steps: int) -> int | None:
        """Send with which step the training ends: so many from now on; return it, or None if it is not on its way."""
        beat = self._heartbeat()
        step = beat.steps + in_steps
        return step if self.send_message(Message(beat, str(step).encode())) else None

    def send_message(self, message: Message) -> bool:
        """Return whether a message of this rank is on its way."""
        self.lost = self._stores.send(message.pack())
        return self.lost is None


class _Arrival(NamedTuple):
    way: int
    message: Message
    at_ns: int  # when it arrived


class Inbox:
    """What this rank receives: rank 0 messages of all others; these the run's name and requests for stacks.

    The channel's thread reads. Any thread may ask for what has arrived.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores, self._rank, self._clock = stores, stores.rank, stores.clock
        self._is_gone: Callable[[str], bool] = cannot_answer
        self._begin_ns = self._clock()
        self._arrivals: dict[int, _Arrival] = {}
        self._seen: dict[tuple[int, int], bytes] = {}  # the latest message of a rank, by store and by file
        self._gone_ns: dict[int, int] = {}  # when a rank was first found to have ended without a final message
        self.garbled = 0  # messages that could not be decoded
        self._next_read_ns = self._next_request_ns = 0
        self.run_name: str | None = None
        """The name of the run's folder as rank 0 sent it; None until then."""
        self.asked_ns = 0
        """When rank 0 last asked this rank for its stacks, by the wall clock; 0 if it never did."""

    def received(self) -> dict[int, ReceivedMessage]:
        """Return the latest message of each other rank that has arrived, by rank."""
        now_ns = self._clock()
        return {
            rank: ReceivedMessage(
                message.data, (now_ns - at_ns) / NS_PER_S, message.heartbeat, message.is_final, message.stacks
            )
            for rank, (_, message, at_ns) in sorted(self._arrivals.copy().items())
        }

    def read_announcements(self, store: GroupStore) -> None:
        """Read the name of the run's folder, and whether stacks were asked for if that is due."""
        if self.run_name is None and (name := store.run_name()) and RUN_NAME.fullmatch(name) and name.strip("."):
            self.run_name = name
        if self._clock() >= self._next_request_ns:
            self._next_request_ns = self._stores.next_ns()
            self.asked_ns = max(self.asked_ns, store.stacks_asked())

    def read(self, is_now: bool = False) -> None:
        """Read the other ranks' messages on rank 0, or its message on the others, if that is due."""
        if self._clock() < self._next_read_ns and not is_now:
            return
        self._next_read_ns = self._stores.next_ns()
        senders = range(1) if self._rank.who.rank else range(1, self._rank.who.world_size)
        running = [rank for rank in senders if not self._is_final(rank)]
        self._stores.ask(lambda store: self._accept(store.read(running), BY_STORE))
        if self._stores.files is not None:
            with suppress(OSError):  # the file is being replaced, or the disk is briefly away
                messages = self._stores.files.read(senders.stop)
                self._accept({rank: packed for rank, packed in messages.items() if rank in senders}, BY_FILE)

    def end_step(self) -> int | None:
        """Return the step with which the training ends, by the latest message of rank 0; None before it says so."""
        data = self._arrivals[0].message.data if 0 in self._arrivals else b""
        return int(data) if data.isdigit() else None

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
                self.garbled += 1
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
        now_ns, patience_ns = self._clock(), int(unresponsive_after_s(self._stores.every_s) * NS_PER_S)
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


@dataclass(eq=False)
class RankChannel:
    """The thread that carries the messages of this rank; it alone uses stores and files. Only ``close`` waits.

    ``on_messages`` is called with the latest messages of all ranks, on rank 0, before the end of the run.
    """

    rank: Rank
    wait_s: float  # the longest time that ``close`` may take
    has_agent_store: bool  # whether the store outlives the process group, because the launcher keeps it
    guard: Guard
    _: KW_ONLY
    clock: Callable[[], int] = time.monotonic_ns
    heartbeat: Callable[[], Heartbeat] = Heartbeat  # how this rank is doing; this and what follows is for the thread
    on_messages: Callable[[Mapping[int, ReceivedMessage]], None] = lambda messages: None
    stacks: Callable[[], bytes] = bytes  # to send with each message, if any
    end_step: int | None = field(default=None, init=False)
    """The step with which the training ends on all ranks; None while rank 0 has not said so."""

    def __post_init__(self) -> None:
        self.stores = Stores(self.rank, self.has_agent_store, self.clock)
        self.outbox, self.inbox = Outbox(self.stores, self.heartbeat, self.stacks), Inbox(self.stores)
        self._thread: BackgroundThread | None = None
        self._until_ns: int | None = None  # when ``close`` stops waiting; None before the end
        self._is_over = self._wants_read = self._follows_end = False
        self._next_soon_ns = 0
        self._took_s = 0.0  # by the latest poll
        self._ends_in: int | None = None  # steps from the moment in which that is sent

    def reconfigure(self, wait_s: float) -> None:
        """Let ``close`` take at most ``wait_s`` from now on."""
        self.wait_s = wait_s

    def start(self) -> None:
        """Start the thread, if there are other ranks; wakes it the second time, for a process group may be new."""
        if self._thread is not None:
            self.stores.wakes.put(None)
        elif not self._is_over and self.rank.is_one_of_many():
            self.stores.begin_session()
            self._thread = BackgroundThread("ranks", self._run, self.guard, PART)
            try:
                self._thread.start()
            except RuntimeError as error:  # too many threads, or the interpreter is ending (from Python 3.12 on)
                self._thread, self._is_over = None, True
                self.outbox.give_up(str(error))

    @property
    def cpu_ns(self) -> int:
        """CPU time of the thread, in ns."""
        return 0 if self._thread is None else self._thread.cpu_ns

    def read_soon(self) -> None:
        """On rank 0, have the thread read messages soon: a report is due. At most once per heartbeat interval."""
        if self.rank.is_one_of_many() and not self.rank.who.rank and self.clock() >= self._next_soon_ns:
            self._next_soon_ns = self.stores.next_ns()
            self._wants_read = True
            self.stores.wakes.put(None)

    def follow_end(self, is_on: bool) -> None:
        """Listen to rank 0 from now on, which may end the training of all ranks; or no longer."""
        self._follows_end = is_on

    def end_in(self, steps: int) -> None:
        """Have the training end on all ranks, on rank 0, so many steps after the one in which the others hear of it."""
        self._ends_in = steps
        self.stores.wakes.put(None)

    def _exchange_end(self) -> None:
        """Send to the other ranks, on rank 0, with which step the training ends; on the others read that."""
        if self.rank.who.rank:
            self.inbox.read()
            self.end_step = self.inbox.end_step()
        elif self._ends_in is not None:
            self.end_step = self.outbox.send_end(self._ends_in)

    def close(self, is_hurried: bool = False) -> None:
        """Send the latest message; on rank 0 wait at most ``wait_s`` for the other ranks' final messages."""
        thread, self._thread, self._is_over = self._thread, None, True
        if thread is None:
            return
        for_others_s = 0.0 if self.rank.who.rank else HURRIED_S if is_hurried else self.wait_s
        wait_s = min(self.wait_s, max(for_others_s, OWN_SEND_S))
        self._until_ns = self.clock() + int(wait_s * NS_PER_S)
        self.stores.wakes.put(None)
        # A thread that waits for a hanging server is left alone: it ends with the process.
        thread.join(wait_s + OWN_SEND_S)

    def after_fork_in_child(self) -> None:
        """Drop the thread and send nothing more: the channel belongs to the parent."""
        self._thread, self._is_over = None, True

    def notes(self) -> list[str]:
        """Return sentences on messages that did not arrive."""
        notes = []
        if self.inbox.garbled:
            notes.append(f"ranks: {self.inbox.garbled} messages of other ranks could not be decoded")
        if self.outbox.lost is not None and self.rank.who.rank:
            notes.append(f"ranks: the last measurements of this rank did not reach rank 0: {self.outbox.lost}")
        return notes

    def _run(self, thread: BackgroundThread) -> None:
        try:
            while not self.poll_once():
                thread.measure_cpu()
                with suppress(Empty):
                    self.stores.wakes.get(timeout=self._pause_s())
                    while True:
                        self.stores.wakes.get_nowait()
        finally:
            self.stores.disconnect()

    def _pause_s(self) -> float:
        soon_s = max(SOON_S, self.stores.every_s / SOON_OF_INTERVAL)
        if self._until_ns is not None:
            return max(SOON_S, REST * self._took_s)
        is_named = (self.inbox.run_name if self.rank.who.rank else self.outbox.name) is not None
        if not is_named and self.clock() - self.stores.group_ns < max(BEGINNING_S, 10 * soon_s) * NS_PER_S:
            return soon_s
        return self.stores.every_s

    def poll_once(self) -> bool:
        """Send and read once; return whether ``close`` need not wait for anything more."""
        begin_ns = self.clock()
        is_ending = self._until_ns is not None  # asked first: a message handed over before the end is still sent
        self.stores.connect()
        if self._follows_end and self.end_step is None:
            self._exchange_end()
        if self.rank.who.rank == 0:
            self.outbox.announce()
            wants_read, self._wants_read = self._wants_read, False
            self.inbox.read(is_now=is_ending or wants_read)
            if not is_ending:
                self.on_messages(self.inbox.received())
            is_through = not self.inbox.awaited()
        else:
            self.stores.ask(self.inbox.read_announcements)
            is_through = self.outbox.send(self._until_ns is not None)
        self._took_s = (self.clock() - begin_ns) / NS_PER_S
        return is_ending and (is_through or self.clock() >= (self._until_ns or 0))
