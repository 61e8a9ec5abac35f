"""How often `training-profiler try` names a gain on real programs where there is none, while others use the machine.

    python -m benchmarks.tried_unchanged                    # 20 sessions, of about a minute each
    python -m benchmarks.tried_unchanged --sessions 6 --load 2

The four changes of ``benchmarks.no_changes`` do nothing, so each session compares six unchanged
trainings. Processes that compute keep ``--load`` CPUs busy, in spells of random length.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.children import ROOT
from benchmarks.figures import print_table
from training_profiler.trials.launcher import Launcher, Program
from training_profiler.trials.results import FASTER, NO_VERDICT, Results
from training_profiler.trials.session import TrialSession
from training_profiler.trials.state import Wishes

TABLE = "benchmarks.no_changes"
STYLES = ROOT / "tests" / "trials" / "programs" / "styles"
PROGRAMS = ("loader_in_function", "optimizer_in_class", "module_level", "lines_and_comments")
STEPS = 400
BUDGET_S = 150.0
SPELL_S = (0.5, 6.0)
BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: sum(range(10000))"


@contextmanager
def load(cpus: int, seed: int) -> Iterator[None]:
    """Keep CPUs busy in spells, with pauses of the same lengths between them."""
    end = threading.Event()

    def work(number: int) -> None:
        times = random.Random(1000 * seed + number)
        while not end.is_set():
            subprocess.run([sys.executable, "-c", BUSY, str(times.uniform(*SPELL_S))], check=False)
            end.wait(times.uniform(*SPELL_S))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(cpus)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def session(name: str, folder: Path) -> Results:
    """Return the results of one session on a program, with changes that do nothing."""
    (folder / "scratch").mkdir()
    program = Program([sys.executable, str(STYLES / f"{name}.py"), str(STEPS)], True, f"{name}.py")
    launcher = Launcher(program, folder / "scratch", TABLE)
    return TrialSession(launcher, TABLE, Wishes(BUDGET_S, tries_all=True), folder / "runs").run()


def main() -> None:
    """Run the sessions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first session")
    parser.add_argument("--load", type=int, default=1, help="CPUs that others use")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    rows, named = [], 0
    for number in range(arguments.first, arguments.first + arguments.sessions):
        name = PROGRAMS[number % len(PROGRAMS)]
        with tempfile.TemporaryDirectory() as folder, load(arguments.load, number):
            results = session(name, Path(folder))
        verdicts = [row.verdict for row in results.rows]
        named += FASTER in verdicts
        effects = [str(row.effect) for row in results.rows if row.effect is not None]
        control = "-" if results.control is None else str(results.control.effect)
        rows.append([number, name, verdicts.count(FASTER), verdicts.count(NO_VERDICT), control, "; ".join(effects)])
        print(*rows[-1], sep=" | ", flush=True)
    print_table(["session", "program", "gains", "no verdict", "unchanged, again", "changes that do nothing"], rows)
    print(f"{named} of {arguments.sessions} sessions name a gain")


if __name__ == "__main__":
    main()
