"""Where a training hangs: each rank writes its stacks when no step ends for long, or when they are asked for."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.base.sections import OUTSIDE_STEPS_SECTIONS
from training_profiler.base.units import NS_PER_S
from training_profiler.model.ranks import RankStacks, StackFrame, ThreadStack
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.hang_detector import Hang, HangDetector
from training_profiler.ranks.identity import Rank
from training_profiler.recording.recorder import Recorder, TrainingProgress
from training_profiler.reports.hang import where_text
from training_profiler.safety.fault_guard import BackgroundThread, Guard
from training_profiler.sampling.thread_stacks import StackSignal, read_stacks
from training_profiler.storage import stack_files
from training_profiler.storage.run_folder import typed_path

if TYPE_CHECKING:
    from training_profiler.runtime.outputs import Outputs

PART: Final = "hang watch"
LOOK_S: Final = 1.0  # between two checks for requests and for steps
ANSWERS_S: Final = 3.0  # for the stacks of the other ranks, and ANSWER_INTERVALS between two of their messages
ANSWER_INTERVALS: Final = 2
ATTACH_INTERVALS: Final = 3  # messages that carry the stacks: any of them may be lost
STILL_LOOKS: Final = 10  # a training of one rank hangs if its stack stays the same so often
MOST_SENT: Final = 48_000  # bytes of the stacks of a rank in a message
FRAMES_SENT: Final = (60, 20, 8)  # of a stack, the innermost ones, tried in this order
PATIENCE_S: Final = 1.0
NO_NUMBER: Final = -1  # of a thread that has no section
PROMPTS: Final = ("pdb.py", "bdb.py", "code.py")  # a person thinks there


class _Collection(NamedTuple):
    """The stacks of all ranks for one request, on rank 0."""

    asked_ns: int
    until_ns: int
    is_hang: bool
    found: dict[int, RankStacks]


class _Suspicion(NamedTuple):
    """A training of one rank that has made no step for long, and where it stands."""

    hang: Hang
    steps: int  # ended so far
    since_ns: int
    frames: tuple[StackFrame, ...] | None = None
    looks: int = 0


@dataclass(eq=False)
class HangWatch:
    """Looks from a thread of its own whether the training makes steps and whether stacks are asked for.

    Nothing waits for this thread. It does not touch the disk: the thread of ``outputs`` does, if it has room for more.
    """

    recorder: Recorder
    accumulator: Accumulator
    channel: RankChannel
    rank: Rank
    guard: Guard
    progress: TrainingProgress
    outputs: "Outputs"
    report: Callable[[str], None]  # prints a line and keeps it for the report
    began_wall_ns: int  # when the run began; requests before are of earlier attempts
    wall_clock: Callable[[], int] = time.time_ns

    def __post_init__(self) -> None:
        self.detector = HangDetector(self.recorder, self.accumulator, self.progress, self.rank.who.host)
        self._thread: BackgroundThread | None = None
        self._answered_ns = self.began_wall_ns  # the latest request that was answered
        self._in_folder_ns = 0  # the latest request in the run folder
        self._is_reading = False  # on the thread of the files
        self._from_files: Mapping[int, RankStacks] = {}
        self._attached: tuple[bytes, int] = (b"", 0)  # stacks to send, and until when
        self._collection: _Collection | None = None
        self._suspicion: _Suspicion | None = None

    @property
    def cpu_ns(self) -> int:
        """CPU time of the thread, in ns."""
        return 0 if self._thread is None else self._thread.cpu_ns

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self.guard(PART, self._start)

    def _start(self) -> None:
        thread = BackgroundThread("hangs", self._run, self.guard, PART)
        thread.start()
        self._thread = thread

    def reconfigure(self, settings: object) -> None:
        """Do nothing: no setting is about hangs."""

    def close(self, ended_by: str | None) -> None:
        """End the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
            thread.join(PATIENCE_S)

    def after_fork_in_child(self) -> None:
        """Drop the thread: a forked child has none."""
        self._thread = None

    def _run(self, thread: BackgroundThread) -> None:
        signal = StackSignal()
        try:
            signal.open()
            while not thread.wait_for_stop(LOOK_S):
                self.look()
        finally:
            signal.close()

    def attached(self) -> bytes:
        """Return the stacks that messages to rank 0 carry just now; called on the channel's thread."""
        data, until_ns = self._attached
        return data if data and self.recorder.clock() < until_ns else b""

    def look(self) -> None:
        """Answer a request, and check for a hang."""
        if not self._is_reading:
            self._is_reading = True  # first: the other thread may be done at once
            if not self.outputs.read_soon(self._read_folder):
                self._is_reading = False
        asked_ns = max(self._in_folder_ns, self.channel.inbox.asked_ns)
        if asked_ns > self._answered_ns:
            self._answer(asked_ns, is_hang=False)
        if self.rank.who.rank == 0:
            self._check()
            self._collect()

    def _check(self) -> None:
        hang = self.detector.check(self.channel.inbox.received(), self.channel.stores.every_s)
        if self.rank.is_one_of_many():
            if hang is not None:
                self.report(hang.text)
                self._answer(max(self.wall_clock(), self._answered_ns + 1), is_hang=True)
            return
        if hang is not None:
            self._suspicion = _Suspicion(hang, self.detector.heartbeat().steps, self.recorder.clock())
        if self._suspicion is not None:
            self._look_at_suspicion(self._suspicion)

    def _look_at_suspicion(self, suspicion: _Suspicion) -> None:
        """Report a hang once the training thread has stayed at one place: what follows a training does not count."""
        beat = self.detector.heartbeat()
        if beat.steps != suspicion.steps or not set(OUTSIDE_STEPS_SECTIONS).isdisjoint(beat.inside):
            self._suspicion = None
            return
        stacks = self._stacks(max(self.wall_clock(), self._answered_ns + 1))
        thread = stacks.training
        frames = None if thread is None else thread.frames
        looks = suspicion.looks + 1 if frames == suspicion.frames else 0
        self._suspicion = suspicion._replace(frames=frames, looks=looks)
        if looks < STILL_LOOKS:
            return
        self._suspicion = None
        if thread is None or thread.users_frame is None or any(frame.file in PROMPTS for frame in thread.frames):
            return
        quiet_s = suspicion.hang.quiet_s + (self.recorder.clock() - suspicion.since_ns) / NS_PER_S
        self._answered_ns = stacks.asked_ns
        self._write(stacks)
        self.report(f"no training step for {quiet_s:.0f} s, at {where_text([stacks], is_alone=True)}{self._hint()}")

    def _answer(self, asked_ns: int, is_hang: bool) -> None:
        """Read the stacks of this rank, write them, and have rank 0 collect those of all ranks."""
        self._answered_ns = asked_ns
        stacks = self._stacks(asked_ns)
        self._write(stacks)
        every_s = self.channel.stores.every_s
        if self.rank.who.rank:
            self._attached = short(stacks), self.recorder.clock() + int(ATTACH_INTERVALS * every_s * NS_PER_S)
            self.channel.outbox.send_stacks_soon()
        elif self.rank.is_one_of_many():
            wait_s = ANSWERS_S + ANSWER_INTERVALS * every_s
            until_ns = self.recorder.clock() + int(wait_s * NS_PER_S)
            self._collection = _Collection(asked_ns, until_ns, is_hang, {0: stacks})
            self.channel.outbox.ask_for_stacks(asked_ns)
            if is_hang:
                self._in_folder(lambda folder: stack_files.write_request(folder, asked_ns))

    def _stacks(self, asked_ns: int) -> RankStacks:
        beat, training = self.detector.heartbeat(), self.progress.thread_id
        idents = {buffer.ident: buffer.thread_id for buffer in self.recorder.buffers if buffer.owner() is not None}
        threads = []
        for ident, (name, frames) in read_stacks().items():
            number = idents.get(ident)
            inside = self.detector.inside(NO_NUMBER if number is None else number)
            threads.append(ThreadStack(name, frames, number == training, *inside))
        who = self.rank.who
        return RankStacks(asked_ns, self.wall_clock(), who.rank, who.host, os.getpid(), beat.steps, tuple(threads))

    def _write(self, stacks: RankStacks) -> None:
        self._in_folder(partial(stack_files.write_stacks, stacks=stacks))

    def _in_folder(self, work: Callable[[Path], None]) -> None:
        """Do ``work`` with the run folder soon, on the thread of the files."""

        def job() -> None:
            if (folder := self._folder()) is not None:
                work(folder)

        self.outputs.read_soon(job)

    def _folder(self) -> Path | None:
        folder = self.outputs.run_folder
        return None if folder is None else Path(folder)

    def _read_folder(self) -> None:
        """Look for a request, and for stacks of other ranks that are being collected, on the thread of the files."""
        try:
            if (folder := self._folder()) is not None:
                self._in_folder_ns = stack_files.read_request(folder) or 0
                if (collection := self._collection) is not None:
                    self._from_files = stack_files.read_stacks(folder, collection.asked_ns)
        finally:
            self._is_reading = False

    def _collect(self) -> None:
        """Gather the stacks of the other ranks; write those that came by message, and report once they are there."""
        collection = self._collection
        if collection is None:
            return
        for rank, message in self.channel.inbox.received().items():
            stacks = None if rank in collection.found else stack_files.decode_stacks(message.stacks)
            if stacks is not None and stacks.asked_ns == collection.asked_ns:
                collection.found[rank] = stacks
                self._write(stacks)
        collection.found.update(
            (rank, stacks) for rank, stacks in self._from_files.items() if stacks.asked_ns == collection.asked_ns
        )
        is_complete = len(collection.found) >= self.rank.who.world_size
        if not is_complete and self.recorder.clock() < collection.until_ns:
            return
        self._collection = None
        if collection.is_hang:
            found = [collection.found[rank] for rank in sorted(collection.found)]
            self.report(f"where the ranks are: {where_text(found, is_alone=False)}{self._hint()}")

    def _hint(self) -> str:
        folder = self._folder()
        return "" if folder is None else f". All stacks: training-profiler stacks {typed_path(folder)}"


def short(stacks: RankStacks) -> bytes:
    """Return stacks for a message, each with as many of its innermost frames as there is room for."""
    data = stack_files.encode_stacks(stacks)
    for most in FRAMES_SENT:
        if len(data) <= MOST_SENT:
            return data
        threads = tuple(replace(thread, frames=thread.frames[-most:]) for thread in stacks.threads)
        data = stack_files.encode_stacks(replace(stacks, threads=threads))
    if len(data) > MOST_SENT:
        data = stack_files.encode_stacks(replace(stacks, threads=tuple(t for t in threads if t.is_training)))
    return data
