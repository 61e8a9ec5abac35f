"""Find the commit since which a training is slower: commits run in turns against a good one.

Nothing is checked out, and nothing of this folder changes. What git ignores, such as data, is there for all commits. A
commit that does not run is left out.

    training-profiler bisect v1.2 HEAD -- train.py --lr 1e-3
    training-profiler bisect --budget 1h main~40 main -- train.py

Exit status: 0 if a commit is found; 1 if none is shown to be slower; 2 if the search cannot begin.
"""

import argparse
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from training_profiler.base.sections import OTHER, name_of
from training_profiler.base.units import ms_text
from training_profiler.cli import INTERRUPTED
from training_profiler.cli.common import layout_of_stdout, runs_folder, write
from training_profiler.cli.trying import TABLE, ProgressLine, program_of, seconds
from training_profiler.reports.layout import Layout, table
from training_profiler.storage.run_folder import typed_path
from training_profiler.trials.bisection import Bisection, slower_section
from training_profiler.trials.first_run import FirstRun, run_first
from training_profiler.trials.isolation import scratch_folder
from training_profiler.trials.launcher import Interruption, Launcher, Program
from training_profiler.trials.own_change import ChangeSession
from training_profiler.trials.report import change_verdict
from training_profiler.trials.results import Row
from training_profiler.trials.variants import commits_between, of_commit, title_of

BUDGET: Final = "20m"
LEAST_S: Final = 20.0  # for a comparison
NONE_FOUND: Final = 1
_NAMES: Final = {OTHER: "in no section"}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "training-profiler bisect [FLAG ...] GOOD BAD -- PROGRAM [ARGUMENT ...]"
    parser.add_argument("good", metavar="GOOD", help="a commit at which the training was fast")
    parser.add_argument("bad", metavar="BAD", help="a later commit at which it is slow")
    parser.add_argument("words", nargs="...", metavar="PROGRAM", help="as after `python`: a script; or a command")
    parser.add_argument(
        "--budget", type=seconds, default=BUDGET, metavar="TIME", help=f"of the whole search (default: {BUDGET})"
    )
    parser.add_argument("--allow-writes", action="store_true", help="as of `training-profiler try`")


@dataclass
class _Search:
    """Compares commits of one program, and keeps what their first runs have shown."""

    program: Program
    scratch: Path
    interruption: Interruption
    progress: ProgressLine
    part_s: float  # of the budget, for a comparison
    allow_writes: bool
    folders: dict[str, Path] = field(default_factory=dict)
    first: dict[str, FirstRun] = field(default_factory=dict)
    done: int = 0

    def compare(self, commit: str, before: str) -> Row:
        """Return what a commit shows against another one."""
        self.interruption.check()
        with closing(self._launcher(before)) as launcher:
            if before not in self.first:
                self.run_first(before)
            changed, first = of_commit(commit, Path.cwd()), self.first[before]
            session = ChangeSession(launcher, changed, self.part_s, runs_folder(), self.progress.show, first=first)
            results = session.run()
        if results.is_interrupted:
            raise KeyboardInterrupt
        (row,) = results.rows
        return row

    def run_first(self, commit: str) -> None:
        """Run a commit under the profiler."""
        with closing(self._launcher(commit)) as launcher:
            found = run_first(launcher, self.part_s, runs_folder(), self.progress.show)
        self.first[commit], self.folders[commit] = found

    def _launcher(self, commit: str) -> Launcher:
        self.done += 1
        folder = self.scratch / f"of-{self.done}"
        folder.mkdir()
        note = self.progress.note if self.done == 1 else lambda text: None
        variant = of_commit(commit, Path.cwd())
        return Launcher(self.program, folder, TABLE, note, self.interruption.check, self.allow_writes, variant)


def run(arguments: argparse.Namespace) -> int:
    """Search, print what is found, and return the exit status."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    program, here = program_of(words), Path.cwd()
    commits = commits_between(arguments.good, arguments.bad, here)
    progress = ProgressLine(arguments.budget)
    with Interruption() as interruption, scratch_folder(Path(tempfile.gettempdir())) as scratch:
        part_s = max(LEAST_S, arguments.budget / (len(commits).bit_length() + 3))
        search = _Search(program, scratch, interruption, progress, part_s, arguments.allow_writes)
        found = Bisection(
            commits,
            arguments.good,
            search.compare,
            lambda number, commit: progress.note(f"{number + 1}: {title_of(commit, here)}"),
        )
        try:
            found.run()
            if len(found.suspects) == 1 and found.suspects[0] not in search.first:
                search.run_first(found.suspects[0])
        except KeyboardInterrupt:
            progress.note("stopped")
            return INTERRUPTED
        finally:
            progress.clear()
    write(_report(found, search, layout_of_stdout()))
    return 0 if found.suspects else NONE_FOUND


def _report(found: Bisection, search: _Search, layout: Layout) -> str:
    """Return what the search has found, as text."""
    here = Path.cwd()
    rows = []
    for step in found.steps:
        gain = "-" if step.effect is None else str(step.effect)
        rows.append([title_of(step.commit, here).partition(" ")[0], gain, step.state, step.reason])
    count = len(found.commits)
    lines = [f"=== {count} commits after {found.good} on {search.program.shown} ==="]
    lines += table(("commit", f"against {found.good}", "", ""), rows, (0, 1, 2, 3))
    if found.own is not None and len(found.suspects) == 1:
        (commit,) = found.suspects
        lines += layout.wrap(f"SINCE {title_of(commit, here)}")
        lines += layout.wrap(change_verdict(found.own), "  ", "  ")
        lines += _section_lines(found, search)
    elif found.suspects:
        lines.append("ONE OF THESE: those before the last one do not run, or decide nothing:")
        lines += [f"  {title_of(commit, here)}" for commit in found.suspects]
    elif found.own is not None:
        lines += layout.wrap("NOT CONFIRMED: the commit at which the search ended is not slower than the one before it")
    elif found.whole is not None:
        lines += layout.wrap(f"NO COMMIT: {change_verdict(found.whole)}")
        lines += layout.wrap(
            "Side by side, the last commit is not shown to be slower than the good one; if it was slower before, the "
            "machine did more then"
        )
    return "\n".join(lines) + "\n"


def _section_lines(found: Bisection, search: _Search) -> list[str]:
    """Return the section that became slower, if it has most of the difference, and the command that compares."""
    (commit,) = found.suspects
    at = found.commits.index(commit)
    before = found.commits[at - 1] if at else found.good
    old, new = (search.first.get(name) for name in (before, commit))
    if old is None or new is None or found.own is None or found.own.effect is None:
        return []
    more = slower_section(old.snapshot, new.snapshot)
    added_s = old.step_s * found.own.effect.relative
    lines = (
        [f"  {_NAMES.get(more[0]) or name_of(more[0])}: {ms_text(more[1])} more a step"]
        if more and more[1] >= 0.5 * added_s
        else []
    )
    paths = " ".join(typed_path(search.folders[name]) for name in (before, commit))
    return [*lines, f"  sections  training-profiler compare {paths}"]
