"""Sends the measurements of each rank to rank 0, through c10d's store or files in the run folder."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.identity import Rank
from training_profiler.ranks.message import Heartbeat, Message
from training_profiler.ranks.transport import RankTransport, ReceivedMessage
from training_profiler.safety.fault_guard import BackgroundThread, Guard

__all__ = ["RankChannel", "ReceivedMessage"]

PART: Final = "ranks"
OWN_SEND_S: Final = 0.2  # for this rank's final message, which takes a millisecond
HURRIED_S: Final = 0.5  # for the other ranks, if this one ends by a signal or an exception
SOON_S: Final = 0.02  # between two polls while the run's folder is unknown, and at the end; with
SOON_OF_INTERVAL: Final = 50  # many ranks, this many polls between two reads
BEGINNING_S: Final = 2.0  # polls for the folder are that frequent for this long, or ten polls
REST: Final = 10  # pause before the next read, in durations of the last one
_session_numbers = itertools.count()


class RankChannel:
    """Messages between ranks, carried by a thread; only ``close`` waits.

    Args:
        rank: which rank this is.
        wait_s: the longest time that ``close`` may take.
        has_agent_store: whether the store outlives the process group, because the launcher keeps it.
        guard: runs what may fail, and disables it if it does.
        clock: monotonic, in ns.
        heartbeat: returns how this rank is doing; called on the thread.
        stacks: returns the stacks to send with each message, if any; called on the thread.
        on_messages: called with the latest messages of all ranks, on rank 0, on the thread, before the end of the run.
    """

    def __init__(
        self,
        rank: Rank,
        wait_s: float,
        has_agent_store: bool,
        guard: Guard,
        clock: Callable[[], int] = time.monotonic_ns,
        heartbeat: Callable[[], Heartbeat] = Heartbeat,
        on_messages: Callable[[Mapping[int, ReceivedMessage]], None] = lambda messages: None,
        stacks: Callable[[], bytes] = bytes,
    ) -> None:
        self._wait_s = wait_s
        self._heartbeat = heartbeat
        self._on_messages, self._stacks = on_messages, stacks
        self._asked_ns = 0  # when stacks were asked for, on rank 0
        self._rank = rank
        self._guard = guard
        self._clock = clock
        self._transport = RankTransport(rank, has_agent_store, clock)
        self._thread: BackgroundThread | None = None
        self._wakes: SimpleQueue[None] = SimpleQueue()  # put() may be interrupted by itself
        self._name: str | None = None
        self._outbox: deque[tuple[bytes, bool]] = deque(maxlen=1)  # not yet fetched by the thread; whether it is final
        self._unsent: tuple[bytes, bool] | None = None  # fetched by the thread and not yet sent
        self._latest = b""
        self._took_s = 0.0  # by the latest poll
        self._sequence = 0
        self._next_beat_ns = 0
        self._wants_read, self._next_soon_ns = False, 0
        self._until_ns: int | None = None  # when ``close`` stops waiting; None before the end
        self._is_over = False

    def use_folder(self, folder: Path) -> None:
        """Send messages through files in this run folder if the ranks have no store."""
        if folder != self._transport.folder:
            self._transport.use_folder(folder)
            self._wakes.put(None)

    def reconfigure(self, wait_s: float) -> None:
        """Let ``close`` take at most ``wait_s`` from now on."""
        self._wait_s = wait_s

    def start(self) -> None:
        """Start the thread, if there are other ranks; wakes it the second time, for a process group may be new."""
        if self._thread is not None:
            self._wakes.put(None)
        elif not self._is_over and self._rank.is_one_of_many():
            self._transport.begin(next(_session_numbers))
            self._thread = BackgroundThread("ranks", self._run, self._guard, PART)
            try:
                self._thread.start()
            except RuntimeError as error:  # too many threads, or the interpreter is ending (from Python 3.12 on)
                self._thread, self._is_over = None, True
                self._transport.fail(str(error))

    @property
    def cpu_ns(self) -> int:
        """CPU time of the thread, in ns."""
        return 0 if self._thread is None else self._thread.cpu_ns

    @property
    def every_s(self) -> float:
        """Time between two heartbeats of a rank, in s."""
        return self._transport.every_s

    @property
    def run_name(self) -> str | None:
        """The name of the run's folder as rank 0 sent it; None until then."""
        return self._transport.run_name

    def name_run(self, name: str) -> None:
        """Send the name of the run's folder to the other ranks."""
        if self._name != name:
            self._name = name
            self._wakes.put(None)

    def send(self, data: bytes, is_final: bool = False) -> None:
        """Send the measurements of this rank so far, in place of unsent ones; never waits."""
        self._outbox.append((data, is_final))
        self._wakes.put(None)

    @property
    def asked_ns(self) -> int:
        """When rank 0 last asked this rank for its stacks, by the wall clock; 0 if it never did."""
        return self._transport.asked_ns

    def ask_for_stacks(self, asked_ns: int) -> None:
        """Ask the other ranks for their stacks, on rank 0. ``asked_ns`` identifies the request."""
        self._asked_ns = asked_ns
        self._wakes.put(None)

    def send_stacks_soon(self) -> None:
        """Send a heartbeat now, because there are stacks to send with it."""
        self._next_beat_ns = 0
        self._wakes.put(None)

    def read_soon(self) -> None:
        """On rank 0, have the thread read messages soon: a report is due. At most once per heartbeat interval."""
        now_ns = self._clock()
        if self._rank.is_one_of_many() and not self._rank.who.rank and now_ns >= self._next_soon_ns:
            self._next_soon_ns = now_ns + int(self._transport.every_s * NS_PER_S)
            self._wants_read = True
            self._wakes.put(None)

    def received(self) -> Mapping[int, ReceivedMessage]:
        """Return the latest message of each other rank that has arrived, by rank."""
        return self._transport.received()

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
        self._thread = None
        self._is_over = True

    def notes(self) -> list[str]:
        """Return sentences on messages that did not arrive."""
        transport, notes = self._transport, []
        if transport.garbled:
            notes.append(f"ranks: {transport.garbled} messages of other ranks could not be decoded")
        if transport.lost is not None and self._rank.who.rank:
            notes.append(f"ranks: the last measurements of this rank did not reach rank 0: {transport.lost}")
        return notes

    def _run(self, thread: BackgroundThread) -> None:
        try:
            while not self.poll_once():
                thread.measure_cpu()
                with suppress(Empty):
                    self._wakes.get(timeout=self._pause_s())
                    while True:
                        self._wakes.get_nowait()
        finally:
            self._transport.close()

    def _pause_s(self) -> float:
        transport = self._transport
        soon_s = max(SOON_S, transport.every_s / SOON_OF_INTERVAL)
        if self._until_ns is not None:
            return max(SOON_S, REST * self._took_s)
        is_named = (transport.run_name if self._rank.who.rank else self._name) is not None
        if not is_named and self._clock() - transport.group_ns < max(BEGINNING_S, 10 * soon_s) * NS_PER_S:
            return soon_s
        return transport.every_s

    def poll_once(self) -> bool:
        """Send and read once; return whether ``close`` need not wait for anything more."""
        transport, begin_ns = self._transport, self._clock()
        is_ending = self._until_ns is not None  # asked first: a message handed over before the end is still sent
        transport.connect()
        transport.exchange_name(self._name)
        transport.exchange_request(self._asked_ns)
        if self._rank.who.rank == 0:
            wants_read, self._wants_read = self._wants_read, False
            transport.read(is_now=is_ending or wants_read)
            if not is_ending:
                self._on_messages(transport.received())
            is_through = not transport.awaited()
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
                self._send_message(self._latest, is_final=False)
            return True
        data, is_final = self._unsent
        if self._send_message(data, is_final):
            self._latest, self._unsent = data, None
        return self._unsent is None and not self._outbox

    def _send_message(self, data: bytes, is_final: bool) -> bool:
        self._sequence += 1
        self._next_beat_ns = self._clock() + int(self._transport.every_s * NS_PER_S)
        return self._transport.send(Message(self._heartbeat(), data, is_final, self._sequence, self._stacks()))
