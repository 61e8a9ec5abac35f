"""Kills trainings at random moments, and compares what their journals hold with what they did.

Prints a row for each kind of training: tries, the largest loss of time and of steps, and kills that lost more than
``flush_s``. ``python -m benchmarks.kills --tries 1000``
"""

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks.children import ROOT, SWITCH
from training_profiler.base.errors import RunFolderError
from training_profiler.base.units import NS_PER_S
from training_profiler.diagnosis import diagnose
from training_profiler.reports.console import render_final
from training_profiler.reports.layout import Layout
from training_profiler.storage.run_reader import read_run

PROGRAM: Final = Path(__file__).parent / "programs" / "killed_training.py"
FLUSH_S: Final = 4.0  # from here on a flush is a second before the time
AT_ONCE: Final = 8  # trainings; they mostly sleep
# Kind, its share of the tries, the latest moment of the kill in s after its run began, and its ranks. In its start-up
# a training is killed so long after the start of its process.
KINDS: Final = (
    ("manual", 0.25, 10.0, 1),
    ("one long section", 0.1, 10.0, 1),
    ("start-up", 0.1, 3.0, 1),
    ("steps", 0.2, 10.0, 1),
    ("slow steps", 0.1, 10.0, 1),
    ("first step", 0.1, 10.0, 1),
    ("compile", 0.1, 5.0, 1),
    ("ranks", 0.05, 10.0, 2),
)


class Kill(NamedTuple):
    """One training that was killed."""

    kind: str
    lived_s: float | None  # from the begin of the run to the kill; None if it was killed before
    lost_s: float  # time before the kill that the journal does not cover
    lost_steps_s: float  # age of the first step that the journal does not have
    has_folder: bool


class Launcher:
    """A process under ``training-profiler run`` that has imported torch and forks."""

    def __init__(self, flush_s: float) -> None:
        command = [sys.executable, "-m", "training_profiler", "run", str(PROGRAM), "launch"]
        self._process = subprocess.Popen(
            command,
            env=environment(flush_s) | {"RECTIFIED_FLOW_PROFILE": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._asking = threading.Lock()

    def start(self, kind: str, rank: int, port: int, path: Path) -> int:
        """Start a training; return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(f"{kind}\t{rank}\t{port}\t{path}\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def environment(flush_s: float) -> dict[str, str]:
    """Return the environment of a training."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SWITCH)}
    settings = {f"{SWITCH}_FLUSH_S": str(flush_s), f"{SWITCH}_STREAM": "stderr", f"{SWITCH}_LOG_EVERY": "1000000"}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", SWITCH: "1", **settings}


def kill_one(kind: str, latest_s: float, ranks: int, launcher: Launcher, flush_s: float) -> list[Kill]:
    """Start a training, kill all its ranks at a random moment, and return what was lost."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, f"truth{rank}") for rank in range(ranks)]
        if kind in ("manual", "one long section", "start-up"):
            of_program = "manual" if kind == "start-up" else kind
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), of_program, str(paths[0])],
                cwd=folder,
                env=environment(flush_s),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            pids = [process.pid]
        else:
            process = None
            port = free_port()
            pids = [launcher.start(kind, rank, port, path) for rank, path in enumerate(paths)]
        while kind != "start-up" and not all(map(has_begun, paths)):
            time.sleep(0.002)
        time.sleep(random.uniform(0, latest_s))
        killed_ns = time.time_ns()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        if process is not None:
            process.wait()
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            time.sleep(0.001)
        return [look(kind, Path(folder), path, rank, killed_ns) for rank, path in enumerate(paths)]


def free_port() -> int:
    """Return a port on which a store can listen."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return int(server.getsockname()[1])


def has_begun(truth: Path) -> bool:
    """Return whether the run of a training has begun."""
    return truth.exists() and any(truth.read_bytes()[:8])


def look(kind: str, folder: Path, truth: Path, rank: int, killed_ns: int) -> Kill:
    """Return what the journal of a rank lacks."""
    data = truth.read_bytes() if truth.exists() else b""
    begin_ns, steps = struct.unpack_from("qq", data) if data else (0, 0)
    ends_ns = struct.unpack_from(f"{steps}q", data, 16) if steps else ()
    journals = list(folder.glob(f"runs/*/rank{rank}.jsonl"))
    if not begin_ns:
        return Kill(kind, None, 0.0, 0.0, bool(journals))
    covered_ns, covered_steps = begin_ns, 0
    for journal in journals[:1]:
        covered_ns, covered_steps = covered_by(journal.read_bytes(), begin_ns)
        try:
            snapshot = read_run(journal.parent)
        except RunFolderError:  # not even its first line
            journals = []
        else:
            render_final(snapshot, diagnose(snapshot), Layout())  # whatever the moment, it can be reported
    missing_ns = ends_ns[covered_steps] if covered_steps < len(ends_ns) else killed_ns
    return Kill(
        kind,
        (killed_ns - begin_ns) / NS_PER_S,
        max(0, killed_ns - max(covered_ns, begin_ns)) / NS_PER_S,
        (killed_ns - missing_ns) / NS_PER_S,
        bool(journals),
    )


def covered_by(journal: bytes, begin_ns: int) -> tuple[int, int]:
    """Return until when a journal covers the run, by the wall clock, and how many steps it has."""
    first: dict[str, Any] = {}
    end_ns, steps = begin_ns, 0
    for line in journal.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn
            continue
        if record["kind"] == "begin":
            first = record
        elif record["kind"] in ("interval", "pending"):
            end_ns = first["wall_ns"] + record["end_ns"] - first["begin_ns"]
            steps = record["first_step"] + len(record["step_ns"])
    return end_ns, steps


def run_kills(tries: int, flush_s: float = FLUSH_S, at_once: int = AT_ONCE, results: Path | None = None) -> list[Kill]:
    """Kill about that many trainings and return what each lost; ``results`` gets a line for each at once."""
    launcher = Launcher(flush_s)
    jobs = [
        (kind, latest_s, ranks)
        for kind, share, latest_s, ranks in KINDS
        for _ in range(max(1, round(tries * share / ranks)))
    ]
    random.shuffle(jobs)
    found: list[Kill] = []

    def kill(job: tuple[str, float, int]) -> None:
        kills = kill_one(*job, launcher, flush_s)
        found.extend(kills)
        if results is not None:
            with results.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(kill._asdict()) + "\n" for kill in kills))

    try:
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(kill, jobs))
    finally:
        launcher.close()
    return found


def table(kills: Sequence[Kill], flush_s: float) -> str:
    """Return a row for each kind of training."""
    rows = [
        "| training | kills | before the run began | without a folder | largest loss of time (s) "
        "| largest age of a lost step (s) | over `flush_s` |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in [*dict.fromkeys(name for name, *_ in KINDS), "all"]:
        of_kind = [kill for kill in kills if kind in (kill.kind, "all")]
        begun = [kill for kill in of_kind if kill.lived_s is not None]  # the others had nothing to lose
        worst_s = max((kill.lost_s for kill in begun), default=0.0)
        steps_s = max((kill.lost_steps_s for kill in begun), default=0.0)
        over = sum(max(kill.lost_s, kill.lost_steps_s) > flush_s for kill in begun)
        none = sum(not kill.has_folder for kill in begun)
        cells = (kind, len(of_kind), len(of_kind) - len(begun), none, f"{worst_s:.2f}", f"{steps_s:.2f}", over)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--flush-s", type=float, default=FLUSH_S)
    parser.add_argument("--results", type=Path, help="file to which a line is appended after each kill")
    arguments = parser.parse_args()
    kills = run_kills(arguments.tries, arguments.flush_s, results=arguments.results)
    print(table(kills, arguments.flush_s), flush=True)


if __name__ == "__main__":
    main()
