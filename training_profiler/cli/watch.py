"""Watch a run in the terminal while it trains, on this machine or on another one whose disk this one sees.

Shown are the last steps and step time since the begin, where the time goes, findings so far, ranks, loaders, the
machine, and a log of events. The journal is read as it grows (a line at least every 10 s, see flush_s), and nothing is
written. A run that has ended is shown once. Ctrl-C leaves; the training goes on.

The view fills the terminal where rich is installed: pip install 'training-profiler[watch]'. Elsewhere each look is a
line of text.

    training-profiler watch
    training-profiler watch baseline --interval 5
    training-profiler watch runs/20261121-142530 --once
"""

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import encodable, one_line, printable_lines
from training_profiler.cli.common import add_attempt, add_run, layout_of_stdout, runs_folder, say, time_in, write
from training_profiler.diagnosis import diagnose
from training_profiler.reports.layout import Layout
from training_profiler.reports.watch import EventLog, WatchedRun, progress_line, watch_lines
from training_profiler.settings.settings import is_dumb_terminal
from training_profiler.storage.live_reader import LiveRun, Look
from training_profiler.storage.run_folder import META, captures_of, read_program, typed_path
from training_profiler.storage.run_reader import ENDED, KILLED, choose_run, no_runs

JOURNALS: Final = ("rank*.jsonl", "*/rank*.jsonl")  # below a run, and below a folder of runs
LINES: Final = 24  # of files, pipes, and terminals that do not know their own
LEAST_S, MOST_S = 0.2, 3600.0
GONE_AFTER_S: Final = 60.0  # a process that is gone may be begun again by its launcher
BEGAN_AGAIN: Final = "the journal is another one now, and was read from its begin"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser, "the newest; waits for the first")
    add_attempt(parser, "always the last")
    interval = time_in(f"a time from {LEAST_S:g} to {MOST_S:g} s; example: 2", LEAST_S, MOST_S)
    parser.add_argument(
        "--interval", type=interval, default=2.0, metavar="S", help="time between two looks in s (default: 2)"
    )
    parser.add_argument("--once", action="store_true", help="print the run as it is now, and end")


def run(arguments: argparse.Namespace) -> int:
    """Show the run until it ends and return 0."""
    watcher = Watcher(_chosen(arguments.run, arguments.interval, waits=not arguments.once), arguments.attempt)
    return watcher.once() if arguments.once else watcher.follow(_screen(), arguments.interval)


def _chosen(given: Path | None, interval_s: float, waits: bool) -> Path:
    """Return the run folder; waits for the first run of a folder that has none."""
    runs = runs_folder()
    waiting = given if given is not None and given.is_dir() else runs
    is_said = False
    while waits and (given is None or waiting is given) and not any(map(any, map(waiting.glob, JOURNALS))):
        if not is_said:
            say(f"waiting for the first run, Ctrl-C leaves. {no_runs(waiting)}")
            is_said = True
        time.sleep(interval_s)
    return choose_run(given, runs)


class Watcher:
    """Looks at a run again and again, and shows what it sees."""

    def __init__(
        self,
        folder: Path,
        attempt: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._live = LiveRun(folder, attempt)
        self._events = EventLog()
        self._sleep, self._clock = sleep, clock
        self._has_begun = False
        self._gone_since_s: float | None = None

    def once(self) -> int:
        """Print the run as it is now and return 0.

        Raises:
            RunFolderError: it cannot be read.
        """
        self._print(self._live.look(to_end=True))
        return 0

    def follow(self, screen: "PlainScreen | FullScreen", interval_s: float) -> int:
        """Show the run until it ends, print its end, and return 0. A run that has just begun is waited for.

        Raises:
            RunFolderError: it cannot be read.
        """
        with screen:
            while True:
                began_s = self._clock()
                look = self._look(screen)
                if look is not None:
                    run = _watched(look, self._folder)
                    screen.show(run, self._events.update(run), tuple(self._events.lines))
                    if self._is_over(look, began_s):
                        break
                if look is None or not look.left_bytes:
                    took_s = self._clock() - began_s
                    self._sleep(max(interval_s, 4 * took_s))  # looking may take a fifth of the time
        if screen.leaves_nothing:
            self._print(look)
        return 0

    def _look(self, screen: "PlainScreen | FullScreen") -> Look | None:
        """Return the run as it is now; None, and say why, if it cannot be read yet."""
        try:
            return self._live.look()
        except RunFolderError as error:
            may_come = self._has_begun or _is_beginning(self._folder)
            if not may_come or not self._folder.is_dir():
                raise
            screen.say(str(error))
            return None

    def _is_over(self, look: Look, now_s: float) -> bool:
        """Return whether nothing more is to come. A launcher may start a process that is gone again."""
        was_seen, self._has_begun = self._has_begun, True
        if look.left_bytes or look.state != KILLED:
            self._gone_since_s = None
            return look.state == ENDED and not look.left_bytes
        if self._gone_since_s is None:
            self._gone_since_s = now_s if was_seen else now_s - GONE_AFTER_S
        return now_s - self._gone_since_s >= GONE_AFTER_S

    def _print(self, look: Look) -> None:
        run, layout = _watched(look, self._folder), layout_of_stdout()
        self._events.update(run)
        height = shutil.get_terminal_size((layout.width, LINES)).lines - 1  # the prompt follows
        text = "\n".join(watch_lines(run, tuple(self._events.lines), layout, height)) + "\n"
        write(printable_lines(text, layout.has_color))


def _is_beginning(folder: Path) -> bool:
    """Return whether the journals of a run folder have no line so far."""
    try:
        return (folder / META).exists() and not any(path.stat().st_size for path in folder.glob("rank*.jsonl"))
    except OSError:
        return False


def _watched(look: Look, folder: Path) -> WatchedRun:
    return WatchedRun(
        look.snapshot,
        diagnose(look.snapshot),
        typed_path(folder),
        read_program(folder),
        look.state,
        look.attempt,
        look.written_s_ago,
        look.recent.step_s if look.recent.steps else None,
        look.recent.shares,
        look.recent.over_steps,
        captures_of(folder),
        (BEGAN_AGAIN,) if look.began_again else (),
    )


class PlainScreen:
    """A line each time there are new steps, and one for each event."""

    leaves_nothing = False  # of what was shown, once it is closed

    def __init__(self) -> None:
        self._steps, self._problem = 0, ""

    def __enter__(self) -> "PlainScreen":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, run: WatchedRun, new: Sequence[str], events: Sequence[str]) -> None:
        """Print what is new."""
        lines = list(new)
        if run.snapshot.steps != self._steps:
            lines.append(progress_line(run, layout_of_stdout().width))
        self._steps, self._problem = run.snapshot.steps, ""
        for line in lines:
            print(encodable(printable_lines(line), sys.stdout.encoding), flush=True)

    def say(self, problem: str) -> None:
        """Print the problem once."""
        if problem != self._problem:
            say(problem)
        self._problem = problem


class FullScreen:
    """The whole terminal, drawn by rich, and drawn again when its size changes."""

    leaves_nothing = True

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console()
        self._picture: Callable[[Layout, int], list[str]] = lambda layout, height: ["reading the run ..."]
        self._is_drawing = False
        self._before: Any = None  # handler of the signal that the terminal has another size
        self._live = Live(
            get_renderable=self._drawn,
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> "FullScreen":
        self._live.start(refresh=True)
        if hasattr(signal, "SIGWINCH"):
            self._before = signal.signal(signal.SIGWINCH, lambda signum, frame: self._draw())
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(signal, "SIGWINCH"):
            signal.signal(signal.SIGWINCH, self._before)
        self._live.stop()

    def show(self, run: WatchedRun, new: Sequence[str], events: Sequence[str]) -> None:
        """Draw the run."""
        self._picture = lambda layout, height: watch_lines(run, events, layout, height)
        self._draw()

    def say(self, problem: str) -> None:
        """Draw the problem."""
        self._picture = lambda layout, height: layout.wrap(one_line(problem))
        self._draw()

    def _draw(self) -> None:
        if not self._is_drawing:  # a signal in the middle of it
            self._is_drawing = True
            try:
                self._live.refresh()
            finally:
                self._is_drawing = False

    def _drawn(self) -> Any:
        from rich.text import Text

        width, height = self._console.size
        layout = replace(layout_of_stdout(), width=width, has_color=not self._console.no_color)
        lines = self._picture(layout, height)
        return Text.from_ansi(printable_lines("\n".join(lines), layout.has_color), no_wrap=True, overflow="crop")


def _screen() -> PlainScreen | FullScreen:
    """Return the whole terminal, or lines where there is none, or no rich."""
    if not sys.stdout.isatty() or is_dumb_terminal():
        return PlainScreen()
    try:
        return FullScreen()
    except ImportError:
        say("the view of the whole terminal needs rich: pip install 'training-profiler[watch]'; here come lines")
        return PlainScreen()
