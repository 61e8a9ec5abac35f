"""Trainings that take turns block by block, so that a change of the machine's speed affects all of them.

The child uses ``Turns``, which needs only the standard library. The parent uses ``take_turns``.
"""

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter_ns, process_time_ns
from types import TracebackType
from typing import Any, Final

from benchmarks.children import wait_cpu_s

ADDRESS: Final = "BENCHMARK_TURNS"
GO_ON: Final = b"."
END: Final = b"!"
POLL_S: Final = 0.2
START_S: Final = 120.0  # limit for the start of the first block


class Turns:
    """Reports each block of steps to the benchmark and waits for the next turn.

    A block ends right after a step. Waiting time belongs to no block. Without a benchmark the program ends after one
    block.
    """

    def __init__(self, block_steps: int) -> None:
        self._block_steps = block_steps
        self._steps = 0
        self._cpu_ns = self._wall_ns = 0
        self._parent: socket.socket | None = None
        if address := os.environ.get(ADDRESS):
            self._parent = socket.socket(socket.AF_UNIX)
            self._parent.connect(address)

    def after_step(self, *_: Any) -> bool:
        """Count a step and return whether another may begin. At the end of a block, wait for the next turn."""
        self._steps += 1
        if self._steps % self._block_steps:
            return True
        if self._parent is None:
            return False
        line = f"{process_time_ns() - self._cpu_ns} {perf_counter_ns() - self._wall_ns}\n"
        self._parent.sendall(line.encode())
        answer = self._parent.recv(1)
        self._cpu_ns, self._wall_ns = process_time_ns(), perf_counter_ns()
        return answer == GO_ON


@dataclass(frozen=True, slots=True)
class Contender:
    """A training to start: its command and its environment variables."""

    command: Sequence[str]
    variables: Mapping[str, str]


@dataclass(slots=True)
class TrainingTime:
    """The time of one training. Its steps exclude the first block, which warms up."""

    cpu_ns: list[int] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)
    process_cpu_s: float = 0.0  # of all its processes, from start to end

    @property
    def steps_cpu_s(self) -> float:
        """CPU time of the steps in s, of the process that trains."""
        return sum(self.cpu_ns[1:]) / 1e9

    @property
    def steps_wall_s(self) -> float:
        """Wall time of the steps in s."""
        return sum(self.wall_ns[1:]) / 1e9

    @property
    def other_cpu_s(self) -> float:
        """CPU time outside of these steps: the start with its first block, the end, and other processes."""
        return self.process_cpu_s - self.steps_cpu_s


class Training:
    """One training in a child process. It pauses between blocks and ends with the context."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        self.taken = TrainingTime()
        self._log = folder / "output.txt"
        folder.mkdir(parents=True)
        address = str(folder / "turns")
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(address)
        self._door.listen(1)
        self._door.settimeout(POLL_S)
        self._lines: Any = None
        # One thread: several threads that wait for each other would measure the other load of the machine.
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                list(contender.command),
                env={**contender.variables, **threads, ADDRESS: address},
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> "Training":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lines is not None:
            self._lines.close()
            self._child.close()
        self._door.close()
        if self._process.returncode is None:
            self._process.terminate()
            self._process.wait()

    def finish_block(self) -> None:
        """Wait until the current block ends.

        Raises:
            RuntimeError: The training ended instead. The message ends with its output.
        """
        if self._lines is None:
            self._child = self._accept()
            self._lines = self._child.makefile()
        line = self._lines.readline()
        if not line:
            raise RuntimeError(self._ended_early())
        cpu_ns, wall_ns = map(int, line.split())
        self.taken.cpu_ns.append(cpu_ns)
        self.taken.wall_ns.append(wall_ns)

    def _accept(self) -> socket.socket:
        end_s = monotonic() + START_S
        while monotonic() < end_s:
            try:
                return self._door.accept()[0]
            except TimeoutError:
                if self._process.poll() is not None:
                    break
        raise RuntimeError(self._ended_early())

    def _ended_early(self) -> str:
        return f"the training ended early:\n{self._log.read_text(errors='replace')[-2000:]}"

    def go_on(self) -> None:
        """Let the next block begin."""
        self._child.sendall(GO_ON)

    def finish(self) -> None:
        """Let the training end and wait for it."""
        self._child.sendall(END)
        self.taken.process_cpu_s = wait_cpu_s(self._process)


def take_turns(contenders: Mapping[str, Contender], run_s: float, folder: Path) -> dict[str, TrainingTime]:
    """Return the time of each training over about ``run_s`` of steps; the order of turns alternates.

    All start at once. The first block of each warms up and is not compared.

    Raises:
        RuntimeError: A training failed.
    """
    with ExitStack() as stack:
        trainings: dict[str, Training] = {}
        for number, (name, contender) in enumerate(contenders.items()):
            trainings[name] = stack.enter_context(Training(contender, folder / str(number)))
        order = list(trainings.values())
        for training in order:
            training.finish_block()
        end_s = monotonic() + run_s * len(order)
        while monotonic() < end_s:
            for training in order:
                training.go_on()
                training.finish_block()
            order.reverse()
        for training in order:
            training.finish()
        return {name: training.taken for name, training in trainings.items()}
