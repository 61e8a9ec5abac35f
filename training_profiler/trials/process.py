"""One training of a session: its process, from start to end, stopped while it is not its turn."""

import json
import os
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
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

import psutil

from training_profiler.base.text import one_line
from training_profiler.trials.child import ChildPlan, address_of, send_signal
from training_profiler.trials.isolation import LAUNCHER
from training_profiler.trials.treatment import DoesNotApplyError

PLAN, SOCKET, OUTPUT = "plan.json", "socket", "output"
POLL_S: Final = 0.2
END_WAIT_S: Final = 5.0
MOST_OUTPUT_BYTES: Final = 20_000  # of the end of a program's output
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
        losses = [message["losses"] for message in messages]
        of_all = tuple(tuple(chain.from_iterable(of_step)) for of_step in zip(*losses, strict=False))
        step_s, warmup_s = (
            max((message[name] for message in messages if message[name] is not None), default=None)
            for name in ("step_s", "warmup_s")
        )
        return Block(step_s, warmup_s, of_all, messages[0]["seed"])


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
        deadline_s = time.monotonic() + timeout_s
        while len(self._ranks.messages) < self._ranks.world_size:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TrialError(f"no end after {timeout_s:.0f} s")
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
        held = self._ranks.held()
        stopped = [process for process in self._tree() if process.pid not in held]
        for connection in self._ranks.connections.values():
            with suppress(OSError):  # its end shows in ``poll``
                connection.sendall(json.dumps({"steps": steps}).encode() + b"\n")
        send_signal(signal.SIGCONT, reversed(stopped))  # parents first
        return self.wait_for_block(timeout_s)

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
            return one_line(error)
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
