"""The trainings of a session: their processes, each stopped while it is not its turn, and their rounds.

They run block by block, in rounds of random order, until their differences are known.
"""

import json
import os
import random
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, Final

import psutil

from training_profiler.base.text import one_line
from training_profiler.model.bounds import Count, Positive
from training_profiler.sampling.host import CpuReading
from training_profiler.trials.child import ChildPlan, address_of, send_signal
from training_profiler.trials.isolation import LAUNCHER
from training_profiler.trials.results import FAILED, NOT_SHOWN, NOT_TRIED, SLOWER, Row, compare_losses
from training_profiler.trials.statistics import AGAIN, UNCHANGED, BlockSchedule, CpuUse, Wave, differ
from training_profiler.trials.treatment import DoesNotApplyError

PLAN, SOCKET, OUTPUT = "plan.json", "socket", "output"
POLL_S: Final = 0.2
END_WAIT_S: Final = 5.0
LONGER, AT_WORK = 3, 0.02  # how often a wait is repeated for processes that use a CPU for this part of it: they compile
MOST_OUTPUT_BYTES: Final = 20_000  # of the end of a program's output
_HINTS: Final = {
    "address already in use": "trainings run in turns, but all have their ports open: let it take port 0, any free one",
    "/dev/tty|Inappropriate ioctl": "a trial has no terminal",
}
# What an error says where memory is short.
_OUT_OF_MEMORY: Final = re.compile(r"out of memory|MemoryError|cannot allocate memory|DefaultCPUAllocator", re.I)
_ERROR_LINE: Final = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit)\b")
_RANK: Final = re.compile(r"^\[rank(\d+)\]: ?")  # with which torch begins the lines of a rank's traceback
# What torchrun says of the rank that was the first to fail. Others fail after it, because their connections break.
_FIRST_TO_FAIL: Final = re.compile(r"^Root Cause.*?^ *rank *: (\d+) ", re.M | re.S)
_CREDENTIALS: Final = struct.Struct("3i")  # process, user and group
_OF_TORCHRUN: Final = "ChildFailedError"  # says that a rank has failed, and not why


class TrialError(Exception):
    """A training cannot go on; the message says why in a few words."""


class ReadsStdinError(TrialError):
    """The program reads standard input, of which a trial has none."""


class EndedError(TrialError):
    """The program has come to its end."""


class InapplicableError(TrialError):
    """The change has found nothing that it could change."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a training measured in a block of steps, or in its warm-up."""

    step_s: float | None  # mean of its steps; None for the warm-up
    warmup_s: float | None  # from the import of torch to the end of the warm-up; None for a block
    losses: tuple[tuple[str, ...], ...]  # of each step, in hexadecimal
    seed: int  # of torch
    cpu: CpuUse = field(default_factory=CpuUse)
    samples: float = 0.0  # of a typical step; 0 is unknown
    prints: tuple[int, ...] = ()  # fingerprints of the training's first samples
    memory_bytes: int = 0  # the most until now; 0 is unknown
    compiled: tuple[float, int] = (0.0, 0)  # seconds until now, and how often the same code was compiled again
    typical_s: float | None = None  # as ``step_s``, with less weight of rare, long steps
    alone_s: tuple[float, float] | None = None  # both without the waiting for CPUs that others had; None if unknown


@dataclass
class _Ranks:
    """The connections of the ranks of one training, and what they have sent for the block under way."""

    world_size: int = 1
    connections: dict[int, socket.socket] = field(default_factory=dict)
    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    holding: set[int] = field(default_factory=set)  # the processes of those that let their own children go on

    def add(self, message: dict[str, Any], connection: socket.socket) -> None:
        """Add what a rank has sent."""
        self.world_size = message["world_size"]
        self.connections[message["rank"]] = connection
        self.messages[message["rank"]] = message
        if message.get("holds") and sys.platform == "linux":  # elsewhere nothing says who it is
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.holding |= {_CREDENTIALS.unpack(credentials)[0]} - {0}

    def held(self) -> set[int]:
        """Return the processes that go on once their training does: workers that began before it would be ahead."""
        found: set[int] = set()
        for pid in self.holding:
            with suppress(psutil.Error):
                found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        self.holding = set()
        return found

    def block(self) -> Block:
        """Return the block of all ranks: the slowest decides; a step has the losses of all."""
        messages = [self.messages[rank] for rank in sorted(self.messages)]
        self.messages = {}
        losses = zip(*(message["losses"] for message in messages), strict=False)
        of_all = tuple(tuple(chain(*of_step)) for of_step in losses)
        step_s, warmup_s, typical_s = (
            max((message[name] for message in messages if message.get(name) is not None), default=None)
            for name in ("step_s", "warmup_s", "typical_s")
        )
        names = "samples", "prints", "memory_bytes", "compiled"
        samples, prints, memory, compiled = ([each[name] for each in messages] for name in names)
        seconds, again = map(max, zip(*compiled, strict=True))
        alone = messages[0].get("alone_s") if len(messages) == 1 else None
        of_first = messages[0]["seed"], CpuUse(), sum(samples), tuple(chain(*prints)), max(memory)
        return Block(step_s, warmup_s, of_all, *of_first, (seconds, again), typical_s, alone)


class TrialProcess:
    """A training that runs a block of steps when it is asked to, and is stopped otherwise.

    Args:
        folder: for its plan, its socket and its output; the process can write there.
        plan: everything but the socket.
        watch: called several times a second while the training runs; what it raises ends the wait.
    """

    def __init__(self, folder: Path, plan: ChildPlan, watch: Callable[[], None] = lambda: None) -> None:
        self._folder, self._watch = folder, watch
        self._socket = folder / SOCKET
        self.plan_path = folder / PLAN
        self.plan_path.write_text(json.dumps(plan._replace(socket=str(self._socket))._asdict()), encoding="utf-8")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address_of(str(self._socket)) as address:
            self._listener.bind(address)
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._ranks = _Ranks()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program, without an input, with its output in a file."""
        with open(self._folder / OUTPUT, "wb") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the session
            )

    def poll(self) -> int | None:
        """Return the exit status of the program; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_for_block(self, timeout_s: float) -> Block:
        """Wait for the end of the block or of the warm-up, and stop the process there.

        Raises:
            TrialError: the training failed, came to its end, or took too long.
        """
        deadline_s, used_s, longer = time.monotonic() + timeout_s, 0.0, LONGER
        while len(self._ranks.messages) < self._ranks.world_size:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                before_s, used_s, longer = used_s, CpuReading.of(self._tree()).own_s, longer - 1
                if longer < 0 or used_s - before_s < AT_WORK * timeout_s:
                    raise TrialError(f"no end after {(LONGER - longer) * timeout_s:.0f} s")
                deadline_s = time.monotonic() + timeout_s
                continue
            has_news = self._receive(min(POLL_S, left_s))
            if not has_news and self.poll() is not None:
                self._receive(0.0)
                if len(self._ranks.messages) < self._ranks.world_size:
                    raise self._why_ended()
        send_signal(signal.SIGSTOP, self._tree())
        return self._ranks.block()

    def run_block(self, steps: int, timeout_s: float) -> Block:
        """Let the training run so many steps, of which the first is not measured.

        Raises:
            TrialError: the training failed, came to its end, or took too long.
        """
        held, tree = self._ranks.held(), self._tree()
        stopped = [process for process in tree if process.pid not in held]
        before = CpuReading.of(tree)
        for connection in self._ranks.connections.values():
            with suppress(OSError):  # its end shows in ``poll``
                connection.sendall(json.dumps({"steps": steps}).encode() + b"\n")
        send_signal(signal.SIGCONT, reversed(stopped))  # parents first
        block = self.wait_for_block(timeout_s)
        return replace(block, cpu=CpuUse(*before.until(CpuReading.of(self._tree()))))

    def listen(self, timeout_s: float) -> None:
        """Wait for news of a profiled training, which runs no blocks.

        Raises:
            TrialError: it reads standard input.
        """
        while self._receive(timeout_s):  # a new connection, then what came over it
            timeout_s = 0.0

    def _receive(self, timeout_s: float) -> bool:
        self._watch()
        events = self._selector.select(timeout_s)
        for key, _ in events:
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                self._selector.register(connection, selectors.EVENT_READ, bytearray())
                continue
            connection = key.fileobj  # type: ignore[assignment]
            received = connection.recv(1 << 20)
            if not received:
                self._selector.unregister(connection)
                continue
            key.data.extend(received)
            while b"\n" in key.data:
                line, _, rest = bytes(key.data).partition(b"\n")
                key.data[:] = rest
                self._handle(json.loads(line), connection)
        return bool(events)

    def _handle(self, message: dict[str, Any], connection: socket.socket) -> None:
        if message["event"] == "stdin":
            raise ReadsStdinError("it reads standard input")
        if message["event"] == "failed":
            raise TrialError(one_line(message["reason"]))
        self._ranks.add(message, connection)

    def _why_ended(self) -> TrialError:
        if self.poll() == 0:
            return EndedError("it came to its end")
        reason = self.reason()
        _, is_inapplicable, why = reason.partition(f"{DoesNotApplyError.__name__}: ")
        return InapplicableError(why) if is_inapplicable else TrialError(reason)

    def reason(self) -> str:
        """Return in a few words why the program failed: its last error, or its exit status."""
        output = self.output()
        if _OUT_OF_MEMORY.search(output):
            return "out of memory"
        error = _error_in(output)
        if error:
            hints = (f"; {hint}" for pattern, hint in _HINTS.items() if re.search(pattern, error, re.I))
            return one_line(error) + next(hints, "")
        status = self.poll()
        if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return "killed, perhaps for want of memory"
        last = [line for line in output.splitlines() if line.strip()]
        return f"exit status {status}" + (f": {one_line(last[-1])}" if last else "")

    def output(self) -> str:
        """Return the end of what the program has printed."""
        try:
            with open(self._folder / OUTPUT, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_OUTPUT_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def memory_bytes(self) -> int:
        """Return the memory that the program's processes hold alone or share."""
        total = 0
        for process in self._tree():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def _tree(self) -> list[psutil.Process]:
        """Return the program's processes, children first."""
        if self._process is None or self._process.poll() is not None:
            return []
        try:
            root = psutil.Process(self._process.pid)
            return [*reversed(root.children(recursive=True)), root]
        except psutil.Error:
            return []

    def interrupt(self, timeout_s: float) -> None:
        """Ask the program to end as a scheduler would, and wait for that."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def close(self) -> None:
        """End the program and everything that it has started."""
        for process in self._tree():
            with suppress(psutil.Error):
                # The launcher of the isolation writes down what the program did once that has ended.
                process.send_signal(signal.SIGCONT if str(LAUNCHER) in process.cmdline() else signal.SIGKILL)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WAIT_S)
        for connection in self._ranks.connections.values():
            connection.close()
        self._selector.close()
        self._listener.close()
        self._socket.unlink(missing_ok=True)


def _error_in(output: str) -> str:
    """Return the last error in what a program has printed, of ranks that of the first to fail; "" without any."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        rank, text = _RANK.match(line), _RANK.sub("", line)
        if _ERROR_LINE.match(text) and _OF_TORCHRUN not in text:
            found[rank[1] if rank else ""] = text
    first = _FIRST_TO_FAIL.search(output)
    rank_of_error = first[1] if first and first[1] in found else next(reversed(found), "")
    of_rank = f"rank {rank_of_error}: " if rank_of_error else ""
    return of_rank + found[rank_of_error] if found else ""


SLOWEST: Final = 20  # times as long as expected, before a block counts as stuck
LEAST_PATIENCE_S: Final = 60.0


@dataclass
class Outcome:
    """What a training of an interleaved session has shown."""

    losses: list[tuple[str, ...]] = field(default_factory=list)
    warmup_s: float | None = None
    failure: str | None = None
    applies: bool = True  # else the failure says what the change has not found
    seed: int | None = None
    samples: float = 0.0  # of a step; 0 is unknown
    prints: tuple[Count, ...] = ()
    memory_bytes: Count = 0  # at most
    cpu: CpuUse = field(default_factory=CpuUse)  # of its blocks
    compile_s: Positive = 0.0
    recompilations: Count = 0

    def add(self, block: Block) -> None:
        """Add a block, or the warm-up."""
        self.losses += block.losses
        self.seed, self.samples, self.prints = block.seed, block.samples or self.samples, block.prints
        self.memory_bytes = max(self.memory_bytes, block.memory_bytes)
        self.compile_s, self.recompilations = block.compiled
        self.cpu += block.cpu
        self.warmup_s = self.warmup_s if block.warmup_s is None else block.warmup_s

    def fail(self, error: TrialError) -> None:
        """Keep why the training goes on no further."""
        self.failure, self.applies = str(error), not isinstance(error, InapplicableError)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Trainings that run side by side, as far as they have come."""

    is_fresh: bool  # whether they are to confirm what has helped
    together: list[str]  # the changes of the training that has several
    schedule: BlockSchedule
    record: Wave
    outcomes: dict[str, Outcome]

    @classmethod
    def of(
        cls, wave: Wave, schedule: BlockSchedule, is_fresh: bool = False, together: Sequence[str] = ()
    ) -> "UnderWay":
        """Return trainings that have not begun yet."""
        return cls(is_fresh, list(together), schedule, wave, {name: Outcome() for name in wave.block_s})


@dataclass
class Interleaved:
    """Some trainings that run in turns."""

    under_way: UnderWay  # how much is run; gets what the trainings show
    start: Callable[[str], Any]  # starts the training of a name; its result has ``process`` and ``close``
    at_once: int  # trainings that may start at the same time
    on_progress: Callable[[float, str], None]  # called with the part of the work that is done
    must_end: Callable[[], bool]  # whether the time is up
    on_round: Callable[[], None]  # called after the start, and once all trainings have run the same block
    has_cpu: bool = False  # a training may have one to itself: waiting for one is left out where others had it
    is_own: bool = False  # a change of the user's: batches may differ in size, and rare steps are compared apart

    def __post_init__(self) -> None:
        self._schedule, self._wave = self.under_way.schedule, self.under_way.record
        self._trainings: dict[str, Any] = {}
        self._order = random.Random(self._wave.done)
        self._per = dict.fromkeys(self._wave.block_s, 1.0)  # steps, or samples a step

    def run(self) -> None:
        """Run all rounds; a training that fails, or whose effect is known, runs no further.

        Raises:
            TrialError: an unchanged training failed.
        """
        try:
            self._start_all()
            while self._wave.open and not self.must_end():
                self._run_round()
            self._wave.pause()
        finally:
            for training in self._trainings.values():
                training.close()

    def _start_all(self) -> None:
        names = self._wave.open
        patience_s = max(LEAST_PATIENCE_S, SLOWEST * self._schedule.startup_s)
        blocks: dict[str, Block | None] = {}
        for first in range(0, len(names), self.at_once):
            batch = names[first : first + self.at_once]
            self.on_progress(0.0, f"starts training {first + 1} of {len(names)}")
            for name in batch:
                self._trainings[name] = self.start(name)
            for name in batch:
                blocks[name] = self._receive(name, lambda process: process.wait_for_block(patience_s))
        self._add(blocks)
        samples = {
            name: outcome.samples for name, outcome in self.under_way.outcomes.items() if name in self._trainings
        }
        if self.is_own and differ(*samples.values()):
            self._per = samples

    def _add(self, blocks: Mapping[str, Block | None]) -> None:
        """Add the blocks of a whole round: one that was interrupted would leave losses of some trainings alone."""
        for name, block in blocks.items():
            if block is not None:
                self.under_way.outcomes[name].add(block)
        self.on_round()

    def _run_round(self) -> None:
        names = [name for name in self._wave.open if name in self._trainings]
        self._order.shuffle(names)
        steps = self._schedule.block_steps
        patience_s = max(LEAST_PATIENCE_S, SLOWEST * steps * self._schedule.step_s)
        blocks = {name: self._receive(name, lambda process: process.run_block(steps, patience_s)) for name in names}
        ran = {name: (block.step_s, block) for name, block in blocks.items() if block and block.step_s}
        is_alone = self.has_cpu and all(block.alone_s for _, block in ran.values())
        times = {
            name: block.alone_s if is_alone and block.alone_s else (step_s, block.typical_s or step_s)
            for name, (step_s, block) in ran.items()
        }
        all_steps_s, typical_s = ({name: each[at] / self._per[name] for name, each in times.items()} for at in (0, 1))
        self._wave.add_round(*((typical_s, all_steps_s, is_alone) if self.is_own else (all_steps_s,)))
        self._add(blocks)
        self.on_progress(self._wave.done / self._wave.rounds, f"round {self._wave.done} of {self._wave.rounds}")
        for name in [name for name in self._trainings if name not in self._wave.open]:
            self._trainings.pop(name).close()

    def _receive(self, name: str, wait: Callable[[TrialProcess], Block]) -> Block | None:
        try:
            return wait(self._trainings[name].process)
        except TrialError as error:
            self._trainings.pop(name).close()
            if isinstance(error, EndedError) and self._wave.done:
                self._wave.end()
            elif name in (UNCHANGED, AGAIN):
                raise
            else:
                self.under_way.outcomes[name].fail(error)
                self._wave.dropped.add(name)
            return None


def row_of(row: Row, under_way: UnderWay, name: str) -> Row:
    """Return the row of a change with what its training has shown."""
    wave, outcomes = under_way.record, under_way.outcomes
    outcome, unchanged = outcomes[name], outcomes[UNCHANGED]
    if outcome.failure is not None:
        return replace(row, verdict=FAILED if outcome.applies else NOT_TRIED, reason=outcome.failure)
    if (effect := wave.effects().get(name)) is None:
        return row
    unchanged_s = wave.step_s(UNCHANGED) or 0.0
    saved_s, added_s = -effect.relative * unchanged_s, max(0.0, outcome.compile_s - unchanged.compile_s)
    return replace(
        row,
        verdict=SLOWER if effect.differs and effect.relative > 0 else NOT_SHOWN,
        reason="",
        step_s=wave.step_s(name),
        effect=effect,
        losses=compare_losses(outcome.losses, unchanged.losses, outcomes[AGAIN].losses),
        warmup_s=max(0.0, (outcome.warmup_s or 0.0) - (unchanged.warmup_s or 0.0)),
        memory_bytes=outcome.memory_bytes,
        samples=outcome.samples,
        compile_s=outcome.compile_s,
        recompilations=outcome.recompilations,
        break_even_steps=ceil(added_s / saved_s) if added_s and effect.differs and saved_s > 0 else 0,
    )
