"""CPU time of the start-up file and of the import, profiling off: ``python -m benchmarks.import_off [--pairs N]``."""

import argparse
import subprocess
import sys
from statistics import median

from benchmarks.children import ROOT, cpu_s_of, environment
from benchmarks.figures import Figure, print_figures, print_table, spread
from training_profiler.base.switch import SWITCH

TARGET_MS = 15
SWITCHES = (("variable not set", None), ("variable 0", "0"))
HEAVY = ("torch", "numpy", "tabulate")
LINE_MS = 0.1
# What ``site`` does with the start-up file, once more in a process that has done it: read, compile, execute.
LINE = """
import os, site, sys, time
begin = time.thread_time_ns()
site.addpackage(sys.argv[1], "training_profiler.pth", set())
print(time.thread_time_ns() - begin)
"""
IMPORT = "import training_profiler"


def run(pairs: int = 31) -> list[Figure]:
    """Measure, print and return the figures of the import; takes about 0.1 s a pair."""
    variables = environment(is_on=False, folder="")
    commands = {"import": [sys.executable, "-c", IMPORT], "pass": [sys.executable, "-c", "pass"]}
    cpu_ms: dict[str, list[float]] = {name: [] for name in commands}
    for pair in range(-2, pairs):  # two to fill the caches of files and bytecode
        for name in sorted(commands, reverse=bool(pair % 2)):
            taken_ms = cpu_s_of(commands[name], variables) * 1e3
            if pair >= 0:
                cpu_ms[name].append(taken_ms)
    net_ms = [own - bare for own, bare in zip(cpu_ms["import"], cpu_ms["pass"], strict=True)]

    print(f"Import with profiling off: CPU ms of the process, user and system, {pairs} interleaved pairs")
    rows = []
    shown = {f"python -c '{IMPORT}'": cpu_ms["import"], "python -c 'pass'": cpu_ms["pass"], "difference": net_ms}
    for name, values_ms in shown.items():
        lower, middle, upper = spread(values_ms)
        rows.append([name, f"{min(values_ms):.2f}", f"{middle:.2f}", f"{lower:.2f} - {upper:.2f}"])
    print_table(["process", "best", "median", "quartiles"], rows)
    stats = [
        *(Figure(f"start-up file, {name}", _line_ms(switch, pairs), LINE_MS, "ms", 3) for name, switch in SWITCHES),
        Figure("import when off", median(net_ms), TARGET_MS, "ms", 2),
        Figure(f"of {', '.join(HEAVY)} loaded by it", len(_loaded(variables)), 0, "modules"),
    ]
    print_figures(stats)
    return stats


def _line_ms(switch: str | None, times: int) -> float:
    """Return the CPU time that the line of the start-up file takes in a new process, the median of some."""
    variables = {name: value for name, value in environment(is_on=False, folder="").items() if name != SWITCH}
    variables |= {} if switch is None else {SWITCH: switch}
    words = [sys.executable, "-c", LINE, str(ROOT)]
    done = (subprocess.run(words, env=variables, capture_output=True, text=True, check=True) for _ in range(times))
    return median(int(process.stdout) for process in done) / 1e6


def _loaded(variables: dict[str, str]) -> list[str]:
    code = f"import sys; {IMPORT}; print(*(name for name in {HEAVY} if name in sys.modules))"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in HEAVY:
        print(f"{name}: {'loaded' if name in loaded else 'not loaded'}")
    print()
    return loaded


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=31)
    run(parser.parse_args().pairs)
