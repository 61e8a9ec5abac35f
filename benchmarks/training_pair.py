"""Two trainings that alternate block by block, so that a change of the machine's speed affects both."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from benchmarks.children import ROOT, environment, wait_cpu_s


@dataclass(frozen=True, slots=True)
class Plan:
    """What each training of a pair does."""

    module: str
    steps: int
    block_steps: int
    seed: int = 0

    @property
    def blocks(self) -> int:
        """How many whole blocks there are."""
        return self.steps // self.block_steps


@dataclass(slots=True)
class Taken:
    """What one training took; of the steps without the first block, which warms up."""

    cpu_ns: list[int] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)
    process_cpu_s: float = 0.0

    @property
    def steps_cpu_s(self) -> float:
        """CPU time of the steps in s."""
        return sum(self.cpu_ns[1:]) / 1e9

    @property
    def steps_wall_s(self) -> float:
        """Wall time of the steps in s."""
        return sum(self.wall_ns[1:]) / 1e9


class Training:
    """One training in a child process, standing still between blocks; leaving the context ends it."""

    def __init__(self, plan: Plan, is_on: bool, folder: Path) -> None:
        self.taken = Taken()
        self._log = folder / "output.txt"
        folder.mkdir(parents=True)
        report, child_report = os.pipe()
        child_go, self._go = os.pipe()
        command = [sys.executable, "-m", "benchmarks.timed_training"]
        command += [str(child_report), str(child_go), str(plan.block_steps), plan.module]
        command += ["--steps", str(plan.steps), "--seed", str(plan.seed), "--num-workers", "0"]
        command += ["--out", str(folder / "out")]
        # One thread: threads that wait for each other would measure the machine's other load.
        variables = environment(is_on, str(folder / "runs")) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=variables, cwd=ROOT, stdout=log, stderr=log, pass_fds=(child_report, child_go)
            )
        os.close(child_report)
        os.close(child_go)
        self._report = os.fdopen(report)

    def __enter__(self) -> "Training":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        self._report.close()
        os.close(self._go)

    def finish_block(self) -> None:
        """Wait until the block under way ends.

        Raises:
            RuntimeError: the training ended instead; the message ends with what it printed.
        """
        line = self._report.readline()
        if not line:
            raise RuntimeError(f"the training ended early:\n{self._log.read_text(errors='replace')[-2000:]}")
        cpu_ns, wall_ns = map(int, line.split())
        self.taken.cpu_ns.append(cpu_ns)
        self.taken.wall_ns.append(wall_ns)

    def go_on(self) -> None:
        """Let the next block begin."""
        os.write(self._go, b".")

    def finish(self) -> None:
        """Let the training run to its end and wait for it."""
        self.go_on()
        self.taken.process_cpu_s = wait_cpu_s(self._process)


def run_pair(plan: Plan, folder: Path, on_first: bool) -> dict[bool, Taken]:
    """Return what the training took with profiling on (True) and off (False); blocks for both.

    Raises:
        RuntimeError: a training failed.
    """
    order = [on_first, not on_first]
    with Training(plan, order[0], folder / "first") as first:
        first.finish_block()  # alone: start-up is not compared
        with Training(plan, order[1], folder / "second") as second:
            second.finish_block()
            pair = [first, second]
            for _ in range(plan.blocks - 1):
                for training in pair:
                    training.go_on()
                    training.finish_block()
                pair.reverse()
            for training in pair:
                training.finish()
    return {order[0]: first.taken, order[1]: second.taken}
