"""What grows during a long training: ``python -m benchmarks.soak [--simulated-h 10] [--real-min 30]``.

The simulated training goes through the public functions, on a clock that runs thousands of times faster. The real one
is an unmodified training under ``training-profiler run``, with trackers, captures and all samplers on.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.children import ROOT, SWITCH, environment
from benchmarks.figures import Figure, print_figures, print_table

LONG_TRAINING: Final = ROOT / "benchmarks" / "programs" / "long_training.py"
POINTS: Final = 20  # at which a run is looked at
STEP_S, STEPS_AN_EPOCH, OWN_SECTIONS = 2.0, 125, 40
SAMPLE_S: Final = 0.02  # of the real clock between two samples of the machine: many of them in a short time
# The targets in RESULTS.md.
MOST_TRACED_MB: Final = 2.0  # of Python's memory, in 10 simulated hours
MOST_RESIDENT_MB: Final = 16.0
MOST_JOURNAL_MB_AN_HOUR: Final = 8.0
SINKS: Final = {"jsonl": None, "csv": None, "prometheus": "prometheus_client", "tensorboard": "tensorboard"}


@dataclass(frozen=True, slots=True)
class Point:
    """What the process has at one moment."""

    at_s: float  # by the training's clock
    resident_bytes: int
    traced_bytes: int  # of Python's memory, as tracemalloc has it; 0 without
    descriptors: int
    threads: int
    files: int  # in the run folder
    journal_bytes: int
    folder_bytes: int


def installed_sinks() -> str:
    """Return the trackers that write files and whose packages are there, as their variable has them."""
    return ",".join(name for name, module in SINKS.items() if module is None or find_spec(module) is not None)


def folder_sizes(runs: Path) -> tuple[int, int, int]:
    """Return the number of files in all run folders, the bytes of journals, and those of all files."""
    sizes = {path: path.stat().st_size for path in runs.rglob("*") if path.is_file()}
    journals = sum(size for path, size in sizes.items() if path.name.startswith("rank"))
    return len(sizes), journals, sum(sizes.values())


class FastClock:
    """A clock in ns that the simulated training moves."""

    def __init__(self) -> None:
        self.now_ns = time.perf_counter_ns()

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def simulate(hours: float, runs: Path) -> list[Point]:
    """Train for ``hours`` by a clock of our own in this process; return what it had along the way."""
    import tracemalloc

    clock = FastClock()
    begin_ns = clock()
    time.perf_counter_ns = clock  # before the profiler is imported, which keeps it
    import training_profiler as profiler

    profiler.start_training_profiling(monitor_s=SAMPLE_S, log_every=50)
    assert profiler.is_profiling_enabled()
    tracemalloc.start()
    chance, points = random.Random(0), []
    steps = int(hours * 3600 / STEP_S)
    loader = profiler.profile_dataloader([None] * STEPS_AN_EPOCH)
    look_at = {round(steps * number / POINTS) for number in range(1, POINTS + 1)}
    step = epoch = 0
    while step < steps:
        with profiler.profile_epoch(epoch):
            for _ in loader:
                _step(profiler, clock, chance, step)
                step += 1
                if step in look_at:
                    traced = tracemalloc.get_traced_memory()[0]
                    points.append(_point_of(os.getpid(), (clock() - begin_ns) / 1e9, runs, traced))
                if step >= steps:
                    break
            with profiler.profile_phase("validation"):
                clock.advance(chance.uniform(5, 10))
            with profiler.profile_section("checkpointing"):
                clock.advance(1)
        epoch += 1
    profiler.stop_training_profiling()
    return points


def _step(profiler: Any, clock: FastClock, chance: random.Random, step: int) -> None:
    for name, share in (("forward_pass", 0.3), ("backward_pass", 0.5), ("optimizer_step", 0.1)):
        with profiler.profile_section(name):
            clock.advance(STEP_S * share * chance.uniform(0.5, 1.5) / 2)
            with profiler.profile_section(f"own_{step % OWN_SECTIONS}"):
                clock.advance(STEP_S * share * chance.uniform(0.5, 1.5) / 2)
    clock.advance(STEP_S * 0.1)
    profiler.profile_step()


def _point_of(pid: int, at_s: float, runs: Path, traced_bytes: int = 0) -> Point:
    import psutil

    process = psutil.Process(pid)
    resident_bytes = process.memory_info().rss
    return Point(at_s, resident_bytes, traced_bytes, process.num_fds(), process.num_threads(), *folder_sizes(runs))


def simulated(hours: float) -> list[Point]:
    """Return the points of a simulated training of ``hours`` in a process of its own."""
    with TemporaryDirectory() as folder:
        variables = environment(True, f"{folder}/runs") | {f"{SWITCH}_SINKS": installed_sinks()}
        command = [sys.executable, "-m", "benchmarks.soak", "--inside", str(hours), f"{folder}/runs"]
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return [Point(**point) for point in json.loads(done.stdout.splitlines()[-1])]


def real(minutes: float, say: Callable[[str], None] = lambda line: None) -> list[Point]:
    """Return the points of a real training of ``minutes``, with everything on.

    Raises:
        RuntimeError: it failed.
    """
    train_s, points = minutes * 60, []
    with TemporaryDirectory() as folder:
        runs, output = Path(folder) / "runs", Path(folder) / "output.txt"
        every = max(200, int(train_s / 5 / 0.1))  # steps; three captures are the most of a run
        variables = environment(True, str(runs)) | {
            f"{SWITCH}_SINKS": installed_sinks(),
            f"{SWITCH}_CAPTURE": f"every={every},length=3",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "training_profiler", "run", str(LONG_TRAINING), str(train_s)]
        with output.open("wb") as file:
            process = subprocess.Popen(command, env=variables, cwd=folder, stdout=file, stderr=file)
        begin_s = time.monotonic()
        for number in range(1, POINTS + 1):
            time.sleep(max(0.0, begin_s + train_s * number / (POINTS + 1) - time.monotonic()))
            if process.poll() is not None:
                break
            points.append(_point_of(process.pid, time.monotonic() - begin_s, runs))
            say(json.dumps(asdict(points[-1])))
        if process.wait():
            raise RuntimeError(output.read_text(errors="replace")[-2000:])
    return points


def growth(points: Sequence[Point], name: str) -> float:
    """Return by how much a value is larger in the last fifth of a run than in the second fifth, by their medians."""
    fifth = max(1, len(points) // 5)
    early, late = points[fifth : 2 * fifth] or points[:1], points[-fifth:]
    return float(median(getattr(point, name) for point in late) - median(getattr(point, name) for point in early))


def journal_mb_an_hour(points: Sequence[Point]) -> float:
    """Return how fast the journal grows."""
    return (points[-1].journal_bytes - points[0].journal_bytes) / 1e6 / ((points[-1].at_s - points[0].at_s) / 3600)


def figures(what: str, points: Sequence[Point]) -> list[Figure]:
    """Return the targets of RESULTS.md, and what was measured."""
    stats = [
        Figure(f"{what}: resident memory", growth(points, "resident_bytes") / 1e6, MOST_RESIDENT_MB, "MB", 2),
        Figure(f"{what}: descriptors", growth(points, "descriptors"), 0),
        Figure(f"{what}: threads", growth(points, "threads"), 0),
        Figure(f"{what}: journal", journal_mb_an_hour(points), MOST_JOURNAL_MB_AN_HOUR, "MB/h", 2),
    ]
    if points[-1].traced_bytes:
        stats.insert(
            1, Figure(f"{what}: Python's memory", growth(points, "traced_bytes") / 1e6, MOST_TRACED_MB, "MB", 2)
        )
        stats.append(Figure(f"{what}: files", growth(points, "files"), 0))
    return stats


def show(what: str, points: Sequence[Point]) -> None:
    """Print the points as a table."""
    print(f"{what}: {len(points)} points, the memory from the second to the last fifth of the run\n")
    headers = ["at (min)", "resident MB", "Python MB", "descriptors", "threads", "files", "journal MB", "folder MB"]
    rows = [
        [
            f"{point.at_s / 60:.1f}",
            f"{point.resident_bytes / 1e6:.1f}",
            f"{point.traced_bytes / 1e6:.2f}",
            str(point.descriptors),
            str(point.threads),
            str(point.files),
            f"{point.journal_bytes / 1e6:.2f}",
            f"{point.folder_bytes / 1e6:.2f}",
        ]
        for point in points
    ]
    print_table(headers, rows)


def run(hours: float = 10, minutes: float = 30) -> list[Figure]:
    """Measure, print and return what grows."""
    stats = []
    if hours:
        points = simulated(hours)
        show(f"{hours:g} simulated hours", points)
        stats += figures(f"{hours:g} simulated hours", points)
    if minutes:
        points = real(minutes, lambda line: print(line, file=sys.stderr, flush=True))
        show(f"{minutes:g} real minutes", points)
        stats += figures(f"{minutes:g} real minutes", points)
    print_figures(stats)
    return stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated-h", type=float, default=10.0)
    parser.add_argument("--real-min", type=float, default=30.0)
    parser.add_argument("--inside", nargs=2, metavar=("HOURS", "RUNS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        points = simulate(float(arguments.inside[0]), Path(arguments.inside[1]))
        print(json.dumps([asdict(point) for point in points]))
    else:
        run(arguments.simulated_h, arguments.real_min)


if __name__ == "__main__":
    main()
