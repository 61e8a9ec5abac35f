"""CPU time that ``training-profiler run`` adds to a program: ``python -m benchmarks.start_up [--pairs N]``.

Measured on a program that does nothing and on one that imports torch and trains for three steps, from the start of the
process to the end of the last one, including reports. The CPU clock of the process at some points shows where it goes:
the profiler becomes the program, so there is one process and one clock.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.children import ROOT, environment, wait_cpu_s
from benchmarks.figures import Figure, print_figures, print_table, spread

TARGET_MS: Final = 100
PROGRAMS: Final = ROOT / "benchmarks" / "programs"
POINTS: Final = {"nothing": ("begins",), "three_steps": ("begins", "has imported torch", "has trained")}
END: Final = "has ended"


def run(pairs: int = 15) -> list[Figure]:
    """Measure, print and return the figures; takes about 6 s a pair."""
    stats, left = [], 0
    for name, points in POINTS.items():
        program = PROGRAMS / f"{name}.py"
        plain = [sys.executable, str(program)]
        profiled = [_command(), "run", str(program)]
        cpu_ms: dict[bool, list[list[float]]] = {False: [], True: []}
        for pair in range(-1, pairs):  # one to fill the caches of files and bytecode
            for is_on in (True, False) if pair % 2 else (False, True):
                at_ms, still_there = _measure(profiled if is_on else plain, is_on)
                left += still_there
                if pair >= 0:
                    cpu_ms[is_on].append(at_ms)
        stats.append(_print(program.name, points, cpu_ms))
    stats.append(Figure("processes that training-profiler run leaves behind, or starts beside the program", left, 0))
    print_figures(stats)
    return stats


def _command() -> str:
    """Return the path of the command as installed, for that is what users start."""
    path = Path(sys.executable).parent / "training-profiler"
    if not path.exists():
        raise RuntimeError(f"{path} does not exist; `make bench` installs it")
    return str(path)


def _measure(command: list[str], is_on: bool) -> tuple[list[float], int]:
    """Return the CPU ms at the program's points and of the whole, and how many more processes there were."""
    with TemporaryDirectory() as folder:
        variables = environment(is_on, folder) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command,
            env=variables,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        line = process.stdout.readline()  # then the program waits, and can be looked at
        others = len(_of_session(process.pid) - {process.pid})
        process.stdin.close()
        process.stdout.read()
        cpu_s = wait_cpu_s(process)
        process.stdout.close()
        left = len(_of_session(process.pid))
    return [*map(float, line.split()), cpu_s * 1e3], others + left


def _of_session(session: int) -> set[int]:
    """Return the processes of a session; the leader's number is the session's (proc_pid_stat(5), field 6)."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[3]) == session:
                found.add(int(folder.name))
    return found


def _print(name: str, points: tuple[str, ...], cpu_ms: dict[bool, list[list[float]]]) -> Figure:
    count = len(cpu_ms[True])
    print(f"{name} under `training-profiler run`, over `python {name}`: CPU ms up to there, {count} interleaved pairs")
    rows = []
    for index, point in enumerate((*points, END)):
        on, off = ([at_ms[index] for at_ms in cpu_ms[is_on]] for is_on in (True, False))
        added = [a - b for a, b in zip(on, off, strict=True)]
        lower, middle, upper = spread(added)
        times = [f"{median(off):.0f}", f"{median(on):.0f}"]
        rows.append([f"it {point}", *times, f"{min(on) - min(off):.1f}", f"{middle:.1f}", f"{lower:.1f} - {upper:.1f}"])
    print_table(["until", "plain", "profiled", "added, of the best", "added, median", "quartiles"], rows)
    return Figure(f"start-up and end, CPU added to {name}", median(added), TARGET_MS, "ms", 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    run(parser.parse_args().pairs)
