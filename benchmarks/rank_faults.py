"""What the other ranks do if one is killed, stopped, or loses its disk: ``python -m benchmarks.rank_faults``.

Each try starts a training of 2 or 4 ranks, plants one fault at a random moment, and takes how long every other process
lives after it, and how long the training's own code goes on; the rest is the final summary. Every second try runs
without the profiler, with the same fault at the same moment.
``--tries 200 --seed 1`` are the defaults; ``--results FILE`` keeps each try as a line and goes on where it ended.
"""

import argparse
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile, mkdtemp
from typing import IO, Final

from benchmarks.children import ROOT, SWITCH, environment
from benchmarks.figures import Figure, print_figures, print_table
from training_profiler.cli import main as command
from training_profiler.cli.run import BOOTSTRAP

PROGRAM: Final = ROOT / "benchmarks" / "programs" / "rank_training.py"
TRAIN_S: Final = 2.0
PAUSE_S: Final = 1.5  # of a rank that goes on afterwards; shorter than the time limit of the process group
START_S: Final = 120.0
LONGEST_S: Final = 120.0  # no process of a try may live longer after the fault
MOST_LATER_S: Final = 2.5  # rank 0's wait for the others (2 s) and its report
NOTICED_S: Final = 1.0  # in which the end of a process is known to who has started it
DISK_BYTES: Final = 4096  # of each file of a rank whose disk is full
# The user's own sitecustomize of that rank.
SHIFTED_CLOCK: Final = """
import os, time
if os.environ.get("RANK") == "{rank}":
    time.time = lambda original=time.time: original() + {hours} * 3600
    time.time_ns = lambda original=time.time_ns: original() + {hours} * 3600 * 10**9
"""
# Python would replace bytecode of the package by a file that ends at the limit, which no later process could import.
FULL_DISK: Final = """
import os, resource, sys
if os.environ.get("RANK") == "{rank}":
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""
# What a report says about a rank that did not come to its end.
NAMED: Final = "killed before the end|still running|Unresponsive|No final report|Never reported|no data of ranks"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    by_torchrun: bool = False
    is_planted_at_start: bool = False  # by the environment of one rank; nothing happens at a later moment
    restarts: int = 0
    of_rank: int | None = None  # None: any
    is_named: bool | None = True  # whether the report must name the rank; None: the launcher, or all ranks, end


FAULTS: Final = (
    Fault("SIGKILL of a rank"),
    Fault("SIGKILL of rank 0, which has the store", of_rank=0),
    Fault("SIGSTOP of a rank"),
    Fault("SIGSTOP, then SIGCONT, of a rank", is_named=False),
    Fault("SIGKILL of a rank under torchrun", by_torchrun=True),
    Fault("SIGKILL of a rank, --max-restarts=1", by_torchrun=True, restarts=1, is_named=False),
    Fault("SIGKILL of torchrun", by_torchrun=True, is_named=None),
    Fault("SIGTERM of torchrun", by_torchrun=True, is_named=None),
    Fault("full disk on a rank", is_planted_at_start=True, is_named=None),
    Fault("clock of a rank an hour off", is_planted_at_start=True, is_named=False),
)


@dataclass(frozen=True, slots=True)
class Try:
    """The outcome of one try."""

    fault: str
    ranks: int
    rank: int
    is_on: bool
    seed: int
    longest_s: float  # until the last process that the fault has not ended had ended, from the fault on
    statuses: tuple[int | None, ...]  # of the ranks or of torchrun; None: did not end in time
    is_report_right: bool | None  # names the rank that failed, or blames none; None without a profiler
    report: str = ""  # what it says about the ranks
    own_s: float | None = None  # until the last rank's own code had ended; None where signals ended all


Start = Callable[[Sequence[str], dict[str, str], Path, IO[bytes]], "subprocess.Popen[bytes]"]


def started(words: Sequence[str], variables: dict[str, str], folder: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own."""
    return subprocess.Popen(
        words,
        env=variables,
        cwd=folder,
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


class Launch:
    """A training of many ranks, by torchrun or as processes of our own."""

    def __init__(self, fault: Fault, ranks: int, rank: int, is_on: bool, folder: Path, *, start: Start) -> None:
        self.fault, self.ranks, self.rank, self.folder, self._start_process = fault, ranks, rank, folder, start
        folder.mkdir(parents=True, exist_ok=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.descriptors: dict[int, int] = {}  # of processes that are to end, by their id
        self._variables = self._environment(is_on)
        words = [sys.executable, str(PROGRAM), str(folder), f"--train-s={TRAIN_S}"]
        if fault.by_torchrun:
            agent = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            words = [words[0], *agent, f"--max-restarts={fault.restarts}", *words[1:]]
            self._start(words, {})
        else:
            port = str(_free_port())
            for number in range(ranks):
                group = {"RANK": str(number), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
                self._start(words, group | {"MASTER_PORT": port, "LOCAL_RANK": str(number)})

    def _environment(self, is_on: bool) -> dict[str, str]:
        variables = environment(is_on, "runs") | {"OMP_NUM_THREADS": "1", f"{SWITCH}_FLUSH_S": "0.5"}
        path = [str(ROOT)]
        if self.fault.is_planted_at_start:
            hook = self.folder / "hook"
            hook.mkdir()
            text = FULL_DISK if "disk" in self.fault.name else SHIFTED_CLOCK
            hours = random.Random(str(self.folder.parent)).choice((-1, 1))
            (hook / "sitecustomize.py").write_text(text.format(rank=self.rank, bytes=DISK_BYTES, hours=hours))
            path.insert(0, str(hook))
        if is_on:
            path.insert(0, BOOTSTRAP)
        return variables | {"PYTHONPATH": os.pathsep.join(path)}

    def _start(self, words: Sequence[str], variables: dict[str, str]) -> None:
        log = (self.folder / f"output-{len(self.processes)}.txt").open("wb")
        with log:
            process = self._start_process(words, {**self._variables, **variables}, self.folder, log)
        self.processes.append(process)

    def pid_of(self, rank: int) -> int:
        """Wait until a rank has started; return its process id.

        Raises:
            RuntimeError: it does not start.
        """
        path, end_s = self.folder / f"pid-{rank}-0", time.monotonic() + START_S
        while not path.exists():
            if time.monotonic() > end_s:
                raise RuntimeError(f"rank {rank} has not started: {self.folder}")
            time.sleep(0.01)
        return int(path.read_text())

    def steps_of(self, rank: int) -> int:
        """Return the steps that a rank has made."""
        with suppress(OSError, ValueError):
            return int((self.folder / f"steps-{rank}-0").read_text())
        return 0

    def watch(self, pid: int) -> None:
        """Keep a descriptor of a process, which shows when it ends."""
        with suppress(ProcessLookupError):
            self.descriptors[pid] = os.pidfd_open(pid)

    def wait(self, timeout_s: float) -> float:
        """Wait for the end of all watched processes, at most ``timeout_s``; return how long that took, in s."""
        begin_s, poll = time.monotonic(), select.poll()
        for descriptor in self.descriptors.values():
            poll.register(descriptor, select.POLLIN)
        left = len(self.descriptors)
        while left and time.monotonic() - begin_s < timeout_s:
            for descriptor, _ in poll.poll(1000 * (timeout_s - (time.monotonic() - begin_s))):
                poll.unregister(descriptor)
                left -= 1
        return time.monotonic() - begin_s

    def statuses(self) -> tuple[int | None, ...]:
        """Return how the processes that we started have ended; None for those that have not."""
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(NOTICED_S)
        return tuple(process.returncode for process in self.processes)

    def own_end_s(self) -> float | None:
        """Return when the last rank's own code had ended, by the monotonic clock; None if none came to that."""
        return max((float(path.read_text()) for path in self.folder.glob("end-*")), default=None)

    def close(self) -> None:
        """Kill what is left."""
        pids = [process.pid for process in self.processes]
        pids += [int(path.read_text()) for path in self.folder.glob("pid-*-*") if path.suffix != ".part"]
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for descriptor in self.descriptors.values():
            os.close(descriptor)


def attempt(fault: Fault, ranks: int, seed: int, is_on: bool, folder: Path, *, start: Start = started) -> Try:
    """Plant ``fault`` once; return what followed."""
    chance = random.Random(seed)
    rank = chance.randrange(ranks) if fault.of_rank is None else fault.of_rank
    moment = chance.uniform(-0.1, 1.0)  # of the training; below 0 before its first step
    launch = Launch(fault, ranks, rank, is_on, folder, start=start)
    try:
        pids = [launch.pid_of(number) for number in range(ranks)]
        for pid in (*pids, *(process.pid for process in launch.processes)):
            launch.watch(pid)
        while moment >= 0 and not launch.steps_of(rank) and launch.processes[0].poll() is None:
            time.sleep(0.005)
        time.sleep(max(0.0, moment) * TRAIN_S)
        victim = launch.processes[0].pid if "of torchrun" in fault.name else pids[rank]
        _plant(fault, launch, victim)
        planted_s = time.monotonic()
        longest_s = launch.wait(LONGEST_S)
        statuses, own_end_s = launch.statuses(), launch.own_end_s()
    finally:
        launch.close()
    text = report_of(folder / "runs") if is_on else ""
    is_right = is_report_right(fault, rank, text) if is_on else None
    own_s = None if own_end_s is None else own_end_s - planted_s
    return Try(fault.name, ranks, rank, is_on, seed, longest_s, statuses, is_right, text, own_s)


def is_report_right(fault: Fault, rank: int, text: str) -> bool | None:
    """Return whether the report names the rank, or blames no rank, as it has to; None if it need not."""
    if fault.is_named is None or (fault.is_named and not text):  # killed before its first step: there is no run
        return None
    if not fault.is_named:
        return bool(text) and not re.search(NAMED, text)
    return bool(re.search(rf"({NAMED})[^\n]*(: |, |ranks? ?){rank}( |,|\.jsonl|;|-|$)", text, re.MULTILINE))


def _plant(fault: Fault, launch: Launch, pid: int) -> None:
    if fault.is_planted_at_start:
        return
    signum = signal.Signals[fault.name.split()[0].rstrip(",")]
    with suppress(ProcessLookupError):
        os.kill(pid, signum)
    if signum is signal.SIGSTOP:
        if "SIGCONT" in fault.name:
            time.sleep(PAUSE_S)
            os.kill(pid, signal.SIGCONT)
        else:
            os.close(launch.descriptors.pop(pid))  # does not end by itself


def report_of(runs: Path) -> str:
    """Return what the report of the newest run says about its ranks; "" without a run."""
    folders = sorted(runs.iterdir()) if runs.is_dir() else []
    if not folders:
        return ""
    os.environ["COLUMNS"] = "1000"  # so that no sentence is wrapped
    with TemporaryFile("w+", encoding="utf-8") as file:
        with redirect_stdout(file), redirect_stderr(file), suppress(SystemExit):
            command(["report", "--full", str(folders[-1])])
        file.seek(0)
        text = file.read()
    known = rf"{NAMED}|^Ended|^Ranks|^Attempts|Error|Traceback|switched off"
    return "\n".join(line for line in text.splitlines() if re.search(known, line))


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def table(tries: Sequence[Try]) -> list[list[str]]:
    """Return a row for each kind of fault and number of ranks."""
    rows = []
    for fault in FAULTS:
        for ranks in (2, 4):
            mine = [one for one in tries if (one.fault, one.ranks) == (fault.name, ranks)]
            off, on = ([one for one in mine if one.is_on is is_on] for is_on in (False, True))
            if off and on:
                right = [one.is_report_right for one in on if one.is_report_right is not None]
                rightly = f"{sum(right)} of {len(right)}" if right else "-"
                times = [_seconds(off), _seconds(on), _later(later(mine)), _later(own_later(mine))]
                rows.append([fault.name, str(ranks), f"{len(off)} + {len(on)}", *times, rightly])
    return rows


def _seconds(tries: Sequence[Try]) -> str:
    times = [one.longest_s for one in tries]
    return f"{median(times):.1f} ({max(times):.1f})"


def pairs(tries: Sequence[Try]) -> list[tuple[Try, Try]]:
    """Return the tries off and on with the same fault at the same moment."""
    key: Callable[[Try], tuple[str, int, int]] = lambda one: (one.fault, one.ranks, one.seed)  # noqa: E731
    off = {key(one): one for one in tries if not one.is_on}
    return [(off[key(one)], one) for one in tries if one.is_on and key(one) in off]


def later(tries: Sequence[Try]) -> list[float]:
    """Return how much later the last process ends than without the profiler, in s."""
    return [on.longest_s - off.longest_s for off, on in pairs(tries)]


def own_later(tries: Sequence[Try]) -> list[float]:
    """Return how much later the training's own code ends than without the profiler, in s."""
    return [on.own_s - off.own_s for off, on in pairs(tries) if on.own_s is not None and off.own_s is not None]


def _later(times_s: Sequence[float]) -> str:
    return f"{median(times_s):+.1f}" if times_s else "-"


def run(tries: int = 200, seed: int = 1, results: Path | None = None, keep: bool = False) -> list[Figure]:
    """Make the tries that ``results`` does not have yet, print the table, and return the figures."""
    done = [] if results is None or not results.exists() else _read(results)
    scratch = Path(mkdtemp(prefix="rank_faults"))
    kinds = [(fault, ranks) for fault in FAULTS for ranks in (2, 4)]
    for number in range(len(done), tries):
        pair = number // 2
        fault, ranks = kinds[pair % len(kinds)]
        is_on = bool(number % 2) ^ bool(pair % 2)  # neither always goes first
        folder = scratch / str(number)
        one = attempt(fault, ranks, seed * 10_000 + pair, is_on, folder)
        done.append(one)
        if results is not None:
            with results.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if not keep:
        shutil.rmtree(scratch, ignore_errors=True)
    headers = [
        "fault",
        "ranks",
        "tries off + on",
        "off, s (max)",
        "on, s (max)",
        "on - off, s",
        "own code",
        "report is right",
    ]
    print_table(headers, table(done))
    stats = figures(done)
    print_figures(stats)
    return stats


def figures(tries: Sequence[Try]) -> list[Figure]:
    """Return what must hold in every try."""
    both = pairs(tries)
    wrong = sum(one.is_report_right is False for one in tries)
    others = sum(_ends(off) != _ends(on) for off, on in both)
    own_s = median(own_later(tries) or [0.0])
    return [
        Figure("rank faults: the last end, on later than off, median", median(later(tries)), 0.5, "s", 1),
        Figure("rank faults: the end of the training's own code, on later than off", own_s, 0.2, "s", 1),
        Figure("rank faults: trainings that end in another way", others, 0),
        Figure("rank faults: reports that do not name the rank, or blame another", wrong, 0),
    ]


def compared(off: Try, on: Try) -> list[str]:
    """Return how a try with the profiler differs from the one without; the time is up to the caller."""
    problems = []
    if _ends(off) != _ends(on):
        problems.append(f"off: {_ends(off)}, on: {_ends(on)}")
    if on.is_report_right is False:
        problems.append(f"the report on {on.fault}, rank {on.rank}, is wrong: {on.report!r}")
    return problems


def _ends(one: Try) -> list[str]:
    return [{0: "ended", None: "goes on"}.get(status, "failed") for status in one.statuses]


def _read(results: Path) -> list[Try]:
    lines = map(json.loads, results.read_text().splitlines())
    return [Try(**line | {"statuses": tuple(line["statuses"])}) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--keep", action="store_true", help="the folders of all tries")
    arguments = parser.parse_args()
    run(arguments.tries, arguments.seed, arguments.results, arguments.keep)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
