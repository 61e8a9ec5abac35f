"""Try changes on an unmodified training: what each brings, and what it does to the losses.

The program runs several times for a few steps, unchanged and with each change, in turns. Each training has files of its
own, which are gone afterwards. Without --only or --all, the findings of a first profiled run decide what is tried.

    training-profiler try train.py --lr 1e-3
    training-profiler try --budget 10m --only num_workers,fused train.py
    training-profiler try -m package.module
    training-profiler try --resume runs/20261121-142530
    training-profiler try --show-diff runs/20261121-142530 | patch -p1

A change of your own: a patch; a commit, against another one or this folder as it is; other arguments. Nothing is
checked out, and nothing of this folder changes.

    training-profiler try --patch fix.diff train.py
    training-profiler try --ref HEAD --base main train.py
    training-profiler try --args "--batch 64" --args "--batch 32" train.py
"""

import argparse
import json
import os
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from training_profiler.base.errors import ProfilerError, RunFolderError
from training_profiler.cli import INTERRUPTED, nearest
from training_profiler.cli.common import (
    add_forms,
    as_markdown,
    layout_of_stdout,
    percentage,
    runs_folder,
    say,
    whole_number,
    write,
    write_card,
)
from training_profiler.cli.compare import SLOWER_STATUS
from training_profiler.cli.trying import TABLE, ProgressLine, program_of, seconds, shown_name
from training_profiler.reports.layout import Layout
from training_profiler.settings.settings import read_settings
from training_profiler.storage.run_folder import MASK, describe_process, masked, typed_path
from training_profiler.storage.run_reader import choose_run, read_run
from training_profiler.storage.source_lines import OF_OTHERS, is_of_this_user
from training_profiler.storage.timeline_reader import read_digests
from training_profiler.trials.edits import edited
from training_profiler.trials.first_run import FirstRun
from training_profiler.trials.isolation import scratch_folder
from training_profiler.trials.launcher import Interruption, Launcher, Program
from training_profiler.trials.own_change import CHANGED, ChangeSession
from training_profiler.trials.report import change_verdict, facts_of_row, render_change, render_results, unit_of
from training_profiler.trials.results import FAILED, SLOWER, Results, as_data, load, save
from training_profiler.trials.session import TrialSession
from training_profiler.trials.state import (
    SCHEMA,
    Identity,
    Progress,
    SessionState,
    Wishes,
    held,
    identity_of,
    load_state,
    save_state,
    why_another,
)
from training_profiler.trials.treatments import FAMILIES, TREATMENTS, edits_of
from training_profiler.trials.variants import AS_IT_IS, Variant, of_arguments, of_commit, of_patch

BUDGET: Final = "5m"
number_of_steps: Final = whole_number("a number of steps; example: 12000", 1, 1e15)  # reads it


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "training-profiler try [FLAG ...] PROGRAM [ARGUMENT ...]"
    parser.add_argument(
        "words", nargs="...", metavar="PROGRAM", help="as after `python`: a script; or a command such as torchrun"
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module as a script")
    parser.add_argument(
        "--budget", type=seconds, default=BUDGET, metavar="TIME", help=f"such as 90s, 10m or 1h30m (default: {BUDGET})"
    )
    parser.add_argument("--only", type=_names, default=(), metavar="CHANGES", help="names or kinds, see below")
    parser.add_argument("--all", action="store_true", help="try all that applies, not only what the findings suggest")
    parser.add_argument(
        "--numerics", action="store_true", help="let changes of the numerics, such as bfloat16, be part of all together"
    )
    parser.add_argument(
        "--steps", type=number_of_steps, metavar="N", help="steps of the whole training, to say how long it would take"
    )
    parser.add_argument(
        "--allow-writes",
        action="store_true",
        help="try also where the kernel cannot hold back what a trial writes outside of this folder",
    )
    add_forms(parser, "the results as JSON")
    parser.add_argument(
        "--show-diff", type=Path, metavar="RUN", help="print the edit of what helped, for `patch -p1`, or of --only"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with a session that was interrupted, or had too little time"
    )
    own = parser.add_argument_group("a change of your own")
    own.add_argument("--patch", type=Path, metavar="FILE", help="as `git diff` makes it")
    own.add_argument("--ref", metavar="COMMIT", help="the program of this commit (default: this folder as it is)")
    own.add_argument("--base", metavar="COMMIT", help="what to compare with (default: this folder as it is)")
    own.add_argument(
        "--args", action="append", default=[], metavar="WORDS", help="after the program's; twice: against the second"
    )
    own.add_argument(
        "--fail-if-slower",
        type=percentage,
        metavar="PERCENT",
        help="exit with status 1 if the change fails, or is shown to be slower by at least that much, e.g. 3%%",
    )
    parser.epilog = textwrap.fill(f"changes: {', '.join(each.name for each in TREATMENTS)}", 78, break_on_hyphens=False)


def _names(word: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in word.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("names no change; example: num_workers,fused")
    known = [*FAMILIES, *(each.name for each in TREATMENTS)]
    for name in names:
        if name not in known:
            hint = nearest(name, known) or f"; there are {', '.join(FAMILIES)}"
            raise argparse.ArgumentTypeError(f"{name!r} is not a change{hint}")
    return names


def run(arguments: argparse.Namespace) -> int:
    """Try the changes, print what they bring, and return the exit status."""
    runs = runs_folder()
    if arguments.show_diff is not None:
        return _show_diff(choose_run(arguments.show_diff, runs), arguments.only)
    is_own = any((arguments.patch, arguments.ref, arguments.base, arguments.args))
    if arguments.resume is not None:
        return _resume(choose_run(arguments.resume, runs), arguments, is_own)
    words = _words(arguments)
    if arguments.all and arguments.only:
        raise ProfilerError("--all tries all that applies, and --only what it names: leave one of them out")
    if is_own:
        return _own_change(program_of(words), runs, arguments)
    if arguments.fail_if_slower is not None:
        raise ProfilerError("--fail-if-slower needs a change of your own: --patch, --ref, --base or --args")
    wishes = Wishes(arguments.budget, arguments.only, arguments.all, arguments.numerics, arguments.steps)
    return _session(program_of(words), wishes, runs, arguments, lambda session: session.run())


def _own_change(program: Program, runs: Path, arguments: argparse.Namespace, folder: Path | None = None) -> int:
    """Compare the program with a change of the user's and without it; return the exit status.

    Goes on with the session in ``folder``, if one is given.
    """
    changed, base = _variants(arguments)
    identity = identity_of(program, describe_process(read_settings()), (changed, base))

    def run(launcher: Launcher, progress: ProgressLine) -> Callable[[], int]:
        session = ChangeSession(launcher, changed, arguments.budget, runs, progress.show)
        session.keep = lambda: _keep(session, identity)
        with ExitStack() as stack:
            if folder is not None:
                stack.enter_context(held(folder))
                state = _state(folder, identity)
                session.first = FirstRun.of(read_run(folder), state.memory_bytes, state.has_ended)
                session.folder, session.under_way = folder, state.progress.under_way
            results = session.run()
        assert session.folder is not None
        if results.is_interrupted:
            go_on = f"to go on: the same command with --resume {typed_path(session.folder)}"
            results = replace(results, notes=(*results.notes, go_on))
        return partial(_print, results, session.folder, arguments, (changed.name, base.name))

    return _in_session(program, arguments.budget, arguments, run, base)


def _keep(session: ChangeSession, identity: Identity) -> None:
    first, program = session.first, session.launcher.program
    if first is None or session.folder is None:
        return
    nothing, so_far = as_data(Results(program.shown, 0.0, ())), Progress([CHANGED], under_way=session.under_way)
    of_run = masked(program.words), program.is_python, Wishes(session.budget_s), first.memory_bytes, first.has_ended
    with suppress(OSError):  # a full disk: the session cannot go on later
        save_state(session.folder, SessionState(SCHEMA, identity, *of_run, nothing, so_far))


def _state(folder: Path, identity: Identity) -> SessionState:
    state = load_state(folder)
    different = why_another(state.identity, identity)
    if different is not None:
        raise RunFolderError(f"{folder} cannot go on: {different}")
    return state


def _variants(arguments: argparse.Namespace) -> tuple[Variant, Variant]:
    """Return the program with the change that is wished, and what it is compared with."""
    if arguments.only or arguments.all or arguments.numerics or arguments.steps:
        raise ProfilerError("a change of your own is tried alone: leave out --only, --all, --numerics and --steps")
    if (arguments.patch is not None) + bool(arguments.ref or arguments.base) + bool(arguments.args) > 1:
        raise ProfilerError("--patch, --ref with --base, and --args are three kinds of changes: give one of them")
    if len(arguments.args) > 2:
        raise ProfilerError("--args can be given twice: the arguments to try, and those to compare with")
    here = Path.cwd()
    if arguments.patch is not None:
        return of_patch(arguments.patch, here), AS_IT_IS
    if arguments.args:
        forms = [of_arguments(text) for text in arguments.args]
        return forms[0], forms[1] if len(forms) > 1 else AS_IT_IS
    changed, base = (of_commit(name, here) if name else AS_IT_IS for name in (arguments.ref, arguments.base))
    if changed.files == base.files:
        raise ProfilerError(f"no file differs between {changed.name} and {base.name}")
    return changed, base


def _words(arguments: argparse.Namespace) -> list[str]:
    words = [word for word in arguments.words[:1] if word != "--"] + arguments.words[1:]
    return words if arguments.module is None else ["-m", arguments.module, *words]


def _resume(folder: Path, arguments: argparse.Namespace, is_own: bool) -> int:
    if not is_of_this_user(folder):
        raise RunFolderError(f"{folder}: {OF_OTHERS}, so the command that it names is not run")
    state = load_state(folder)
    if is_own != (state.progress.chosen == [CHANGED]) or (is_own and not _words(arguments)):
        raise RunFolderError("a session about a change of your own goes on with the same command and --resume RUN")
    if is_own:
        return _own_change(program_of(_words(arguments)), folder.parent, arguments, folder)
    if arguments.only or arguments.all or arguments.numerics:
        raise RunFolderError("--resume goes on with the changes of the session: leave out --only, --all and --numerics")
    words = _words(arguments)
    if not words and MASK in " ".join(state.words):
        raise RunFolderError("arguments that resemble secrets were not kept: write the program after --resume RUN")
    program = program_of(words) if words else Program(state.words, state.is_python, shown_name(state.words[1:]))
    _state(folder, identity_of(program, describe_process(read_settings())))
    if not state.progress.left:
        return _print(_loaded(folder), folder, arguments)
    steps = arguments.steps or state.wishes.total_steps
    wishes = replace(state.wishes, budget_s=arguments.budget, total_steps=steps)
    return _session(program, wishes, folder.parent, arguments, lambda session: session.resume(folder, state))


def _loaded(folder: Path) -> Results:
    results = load(folder)
    if results is None:
        raise RunFolderError(f"{folder}: nothing was tried on this run")
    return results


def _show_diff(folder: Path, only: tuple[str, ...]) -> int:
    """Print the edit of the changes that helped, and on stderr what it leaves to the user."""
    results = _loaded(folder)
    names = only or results.best_names
    if not names:
        raise RunFolderError(f"{folder}: no change is shown to help; --only names one")
    snapshot = read_run(folder)
    if not is_of_this_user(folder):
        raise RunFolderError(f"{folder}: {OF_OTHERS}, so none of your files are read")
    found = edited(edits_of(names, snapshot), os.getcwd(), read_digests(folder))
    write(found.diff)
    left = [*(manual.text for manual in found.manual), *found.notes]
    if found.diff and found.top != os.getcwd():
        left.append(f"a file lies outside of this folder, so apply the edit with: patch -p1 -d {found.top}")
    for sentence in left or ([] if found.diff else [f"no edit has the effect of {', '.join(names)}"]):
        say(sentence)
    return 0


def _session(
    program: Program,
    wishes: Wishes,
    runs: Path,
    arguments: argparse.Namespace,
    go: Callable[[TrialSession], Results],
) -> int:
    def run(launcher: Launcher, progress: ProgressLine) -> Callable[[], int]:
        identity = identity_of(program, describe_process(read_settings()))
        session = TrialSession(launcher, TABLE, wishes, runs, on_progress=progress.show, identity=identity)
        results = go(session)
        assert session.folder is not None
        save(session.folder, results)
        return partial(_print, results, session.folder, arguments)

    return _in_session(program, wishes.budget_s, arguments, run)


def _in_session(
    program: Program,
    budget_s: float,
    arguments: argparse.Namespace,
    run: Callable[[Launcher, ProgressLine], Callable[[], int]],
    base: Variant = AS_IT_IS,
) -> int:
    """Run a session and what it returns, which prints its results; return the exit status."""
    progress = ProgressLine(budget_s)
    with Interruption() as interruption, scratch_folder(Path(tempfile.gettempdir())) as scratch:
        launcher = Launcher(program, scratch, TABLE, progress.note, interruption.check, arguments.allow_writes, base)
        try:
            show = run(launcher, progress)
        except KeyboardInterrupt:
            progress.note("stopped before anything was known")
            return INTERRUPTED
        finally:
            progress.clear()
            launcher.close()
        status = show()
        return INTERRUPTED if interruption.has_come else status


def _print(results: Results, folder: Path, arguments: argparse.Namespace, own: tuple[str, str] | None = None) -> int:
    """Print what a session has found, about ``own`` and what that is compared with if these are given."""
    data, row = {**as_data(results), "run_folder": str(folder)}, results.rows[0] if own else results.best
    render = partial(render_change, results, *own) if own else partial(render_results, results, typed_path(folder))
    changed, base = own or (" and ".join(results.best_names), "unchanged")
    headline = "No change is shown to help" if row is None else change_verdict(row, unit_of(results) if own else "step")
    if own:
        data |= {"change": changed, "base": base, "statement": headline, "text": render(Layout())}
    elif row is not None:
        headline += f", with {changed}"
    if arguments.json:
        write(json.dumps(data, allow_nan=False) + "\n")
    else:
        write(as_markdown(headline, render(Layout()), folder) if arguments.markdown else render(layout_of_stdout()))
    effect = None if row is None else row.effect
    if arguments.card is not None:
        facts = [] if row is None or effect is None else facts_of_row(row)
        before, after = (
            (base, results.unchanged_step_s if effect else None),
            (changed, effect.relative if effect else 0.0),
        )
        write_card(arguments.card, headline, before, after, [f"on {results.program}", *facts], folder)
    limit = arguments.fail_if_slower
    is_slower = row is not None and row.verdict == SLOWER and effect is not None and effect.relative >= (limit or 0.0)
    return SLOWER_STATUS if limit is not None and row and (is_slower or row.verdict == FAILED) else 0
