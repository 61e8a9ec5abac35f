"""The outputs of a run: terminal, run folder and trackers. The primary rank writes. A failed output is disabled.

Nothing here waits for a disk or a reader but the end of the run, and that for a bounded time.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Final

from training_profiler.aggregation.run import RunSums
from training_profiler.base.sections import SectionNames
from training_profiler.base.switch import environment
from training_profiler.base.text import PREFIX, one_line
from training_profiler.diagnosis import Finding, diagnose, epoch_warnings
from training_profiler.model.snapshot import AttemptStats, EpochStats, Health, HistoryChange, LoaderStats, Snapshot
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.identity import Rank
from training_profiler.reports.console import Origin, epoch_line, render_epoch, render_final, render_periodic
from training_profiler.reports.layout import Layout
from training_profiler.reports.report_json import as_data
from training_profiler.reports.sections import largest_shares, left_text, status_text
from training_profiler.runtime.terminal import OutputThread, Terminal
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.safety.files import is_in_place, replaced_file
from training_profiler.settings.settings import Settings
from training_profiler.sinks.metrics import Metrics, PlainNames, epoch_metrics, interval_metrics, loader_metrics
from training_profiler.sinks.sink import HeldRows, MetricRow
from training_profiler.sinks.trackers import PATIENCE_S, Trackers
from training_profiler.storage.history import remember
from training_profiler.storage.journal import JournalLines, Line
from training_profiler.storage.run_files import RunFiles
from training_profiler.storage.run_folder import (
    PAGE,
    REPORT_DATA,
    REPORT_TEXT,
    program_in,
    typed_path,
    typed_program,
)
from training_profiler.torch_capture.trace_writer import OutputLocation

LONGEST_S: Final = 10.0  # that it delays the end of the program
END_S: Final = 1.0  # for the end of a process that was killed
PACKAGES: Final = str(Path(__file__).parents[2])
# Packages of the interpreter come first: no file beside the program may stand in for one of them.
CODE: Final = (
    "import sys; sys.path.append(sys.argv[1]); from training_profiler.cli import main; sys.exit(main(sys.argv[2:]))"
)


def write_page(folder: Path, longest_s: float = LONGEST_S, command: Sequence[str] | None = None) -> str:
    """Write the page of the run in ``folder``, whose journal has its end; return why it was not written, or "".

    Waits at most ``longest_s``. The ``command`` that writes it is ``training-profiler html`` by default.
    """
    if command is None:
        if not sys.executable:
            return "there is no Python interpreter to write it"
        command = [sys.executable, "-P", "-c", CODE, PACKAGES, "html", str(folder.absolute())]
    if os.name != "posix":  # no process can be given a descriptor
        return _run(command, longest_s)
    if not is_in_place(folder):
        return "its folder was moved or replaced"
    why = ""
    try:
        with replaced_file(folder / PAGE) as page:
            why = _run([*command, "--output", f"/dev/fd/{page}"], longest_s, page)
            if why:
                raise OSError  # keeps the old page
    except OSError as error:
        return why or f"the file cannot be written ({error.strerror})"
    return ""


def _run(command: Sequence[str], longest_s: float, *descriptors: int) -> str:
    """Run a command that has descriptors of ours; return why it failed, or ""."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(is_on=False),
            start_new_session=True,  # Ctrl-C is for the program
            pass_fds=descriptors,
        )
    except OSError as error:
        return f"no process can be started ({error.strerror})"
    try:
        _, errors = process.communicate(timeout=longest_s)
    except subprocess.TimeoutExpired:
        return f"it took longer than {longest_s:g} s"
    finally:
        if process.poll() is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a disk that does not respond holds it
                process.communicate(timeout=END_S)
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    if process.returncode:
        return lines[-1].removeprefix("training-profiler: ") if lines else f"exit status {process.returncode}"
    return ""


A_MOMENT_S: Final = 0.5  # for trackers before the final summary, which reports their failures
DISK_S: Final = 3.0  # at the end, for a disk that does nothing; one write on a busy machine takes over a second
READER_S: Final = 1.0  # at the end, for a terminal or pipe without progress
PROGRAM: Final = "the program"  # which logs rows itself, as if it were a tracker
BETWEEN_REPORTS_S: Final = 10.0  # at least, where the user did not ask for reports
CELL_LINES: Final = 40  # of the summary below a cell of a notebook, at most
MUCH_LONGER: Final = 10  # times the steps of the last summary: that was of a few batches to try
LINE_FROM_S: Final = 1.0  # shorter epochs of a program that does not mark them have no line
LOOK_S: Final = 0.02  # between two looks of a tracker for the run folder
ONLY_WAITED: Final = (
    "nothing measured: this process only waited for its children; call start_training_profiling() in the child that "
    "trains"
)


@dataclass(eq=False)
class Outputs:
    """All that one session prints and writes. A thread does what may wait for a disk, and ``tick`` between that."""

    settings: Settings
    opens_at_start: bool  # whether ``start`` makes the run folder; else the first thing to write does
    rank: Rank
    guard: FaultGuard
    terminal: Terminal
    exchange: RankExchange  # knows the name of the run's folder from rank 0, and sends the folder to other ranks
    _: KW_ONLY
    names: SectionNames
    begin_ns: int
    tick: Callable[[], float] | None
    last_row: Callable[[str], None]  # this and ``report`` are for a tracker whose run the program ends
    report: Callable[[], dict[str, str]]

    def __post_init__(self) -> None:
        self._files = RunFiles(self.settings, self.names, self.begin_ns)
        self._lines = JournalLines(self.names)
        self._thread = OutputThread("files", self.guard.run, "files", tick=self.tick)
        self._trackers = Trackers(self.guard.run, last_row=self.last_row, report=self.report)
        self._loader_names = PlainNames()
        self._program_rows: HeldRows | None = None  # None until the program asks for them
        self._is_announced = False
        self._printed_s = time.monotonic()  # when the last report was, or the run began
        self._summed_up = 0  # steps that cells of a notebook had made at the last summary
        self._last_epoch: EpochStats | None = None
        self._past: tuple[HistoryChange | None, str] = None, ""  # known at the end, with why it may not be
        self._lost_lines = self._lost_intervals = 0  # for which there was no room
        self._trackers.prepare(self.settings.sinks)

    def costs(self) -> dict[str, Callable[[], float]]:
        """Return functions that return the CPU time so far of each thread, in ns."""
        return {
            "files": lambda: self._thread.cpu_ns,
            "terminal": lambda: self.terminal.thread.cpu_ns,
            "trackers": lambda: self._trackers.cpu_ns,
        }

    @property
    def run_folder(self) -> str | None:
        """The run's folder; None where it has none yet."""
        return None if self._files.folder is None else str(self._files.folder)

    @property
    def attempts(self) -> tuple[AttemptStats, ...]:
        """The attempts before this one, of a restarted training."""
        return self._files.attempts

    def start(self) -> None:
        """Make the run folder, and start the trackers where that does not wait for something to write."""
        if self.opens_at_start:
            self._open()
            return
        self.rank.detect_process_group()
        if self.rank.is_certain:
            self.open_journal()

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings; make the run folder and start the trackers if that has not happened yet."""
        self.settings = settings
        self._in_background("run folder", lambda: self._files.reconfigure(settings))
        self.terminal.reconfigure(settings.stream)
        if self._is_announced and not settings.is_quiet:
            self._start_status()
        self._trackers.prepare(settings.sinks)
        self._open()

    def _open(self) -> None:
        self.rank.detect_process_group()
        if self.rank.is_certain:  # else later, when the process knows its rank
            self.open_journal()
            self.start_trackers()

    def _in_background(self, part: str, work: Callable[[], None], size: int = 0) -> bool:
        """Do ``work`` soon on the thread; return False if there is no room for it."""
        return self._thread.put(lambda: self.guard.run(part, work), size)

    def read_soon(self, read: Callable[[], None]) -> bool:
        """Do work that reads files soon, on the thread; return whether there is room for it."""
        return self._in_background("capture", read)

    def open_journal(self) -> None:
        """Make the run folder."""
        self._in_background("run folder", self._open_files)

    def start_trackers(self) -> None:
        """Start the chosen trackers on the primary rank."""
        if self.rank.is_primary():
            choose, settings = self._trackers.choose, self.settings
            self.guard.run("trackers", lambda: choose(settings.sinks, self._folder, settings))
            self._trackers.poll()

    def journal(self, make: Callable[[JournalLines], Line], polls: bool = True) -> None:
        """Write the line that ``make`` makes now to the journal of this rank.

        ``polls`` is on the training thread, where the program begins runs of its trackers.
        """
        self.guard.run("run folder", lambda: self._write(make(self._lines)))
        if polls and self.rank.is_primary():
            self._trackers.poll()

    def _write(self, line: Line) -> None:
        lost = self._lost_intervals
        if lost and self._put_line(self._lines.lost(lost)):
            self._lost_intervals -= lost
        if not self._put_line(line):
            self._lost_lines += 1
            self._lost_intervals += line.kind == "interval"

    def _put_line(self, line: Line) -> bool:
        who = self.rank.who

        def append() -> None:
            self._files.append(line, who, self.exchange.run_name)
            self._share_folder()

        return self._in_background("run folder", append, len(line.data))

    def location(self, is_needed: bool) -> OutputLocation:
        """Return where captures of this rank go; has the run folder made soon if ``is_needed``."""
        if is_needed and self.run_folder is None:
            self.open_journal()
        return OutputLocation(self.run_folder, self.rank.who.rank, self.rank.who.attempt)

    def announce(self) -> None:
        """Print once, on the primary rank, that the profiler is on and where the run folder is."""
        folder = self._files.folder
        if not self._is_announced and folder is not None and self.rank.is_primary():
            self._is_announced = True
            if not self.settings.is_quiet:
                self.terminal.print(f"{PREFIX}on, run folder {typed_path(folder)}\n")
                self._start_status()

    def _start_status(self) -> None:
        """Show a status line instead of periodic reports where the user did not ask for these."""
        if not self.settings.is_log_every_given and not self._layout().is_lines:
            self.terminal.start_status()

    def settle(self, patience_s: float | None = None) -> bool:
        """Wait until everything handed over is written, at most so long without progress; return whether it is."""
        return self._thread.wait(DISK_S if patience_s is None else patience_s)

    def periodic(self, snapshot: Snapshot, stats: Callable[[], Snapshot]) -> None:
        """Report on an interval; ``stats`` returns those of the run so far. Called on the primary rank."""
        shares = largest_shares({name: each.share for name, each in snapshot.sections.items()})
        self.terminal.set_status(" | ".join(filter(None, (left_text(snapshot), shares))))
        if not self.terminal.status.is_active and not self.settings.is_quiet and self._is_due():
            self._printed_s, run = time.monotonic(), stats()
            self.terminal.print(render_periodic(snapshot, run, diagnose(run), self._layout()))
        self.interval_row(snapshot)

    def wants_report(self) -> bool:
        """Return whether anyone gets a report now: a tracker, the status line, rank 0, or a reader after some time."""
        has_rows = bool(self.settings.sinks) or self._program_rows is not None or not self.rank.is_primary()
        return has_rows or self.settings.asks_for_reports or self.terminal.status.is_active or self._is_due()

    def _is_due(self) -> bool:
        """Return whether a report may follow the last one; without a ``log_every`` of the user some time is between."""
        return self.settings.is_log_every_given or time.monotonic() - self._printed_s >= BETWEEN_REPORTS_S

    def interval_row(self, snapshot: Snapshot, only: str | None = None) -> None:
        """Send the metrics of an interval to the trackers, or to one of them."""
        if snapshot.step is not None or not snapshot.steps:  # the time after the last step is not an interval
            self._send(snapshot.steps, lambda: interval_metrics(snapshot), only)

    def _send(self, step: int, metrics: Callable[[], Metrics], only: str | None = None) -> None:
        self.guard.run("trackers", lambda: self._trackers.send(step, metrics, only))
        held = self._program_rows
        if held is not None and only in (None, PROGRAM):
            self.guard.run("rows of the program", lambda: held.add([MetricRow(step, time.time(), metrics())]))

    def pop_rows(self) -> list[MetricRow]:
        """Return the rows since the last call, for the program's own loggers. The first call returns none."""
        if self._program_rows is None:
            self._program_rows = HeldRows()
        return self._program_rows.drain() if self._program_rows else []

    def loader_row(self, step: int, loaders: Sequence[LoaderStats]) -> None:
        """Send the metrics of data loaders after ``step`` optimizer steps to trackers that accept frequent rows."""
        send, names = self._trackers.send, self._loader_names
        self.guard.run("trackers", lambda: send(step, lambda: loader_metrics(loaders, names), is_frequent=True))

    def epoch(self, stats: EpochStats, step: int, is_marked: bool = True) -> None:
        """Report on an epoch that ended after ``step`` optimizer steps: in a line, unless the program marks epochs."""
        before, self._last_epoch = self._last_epoch, stats
        if self.settings.is_quiet:
            pass
        elif is_marked:
            warnings = epoch_warnings(stats, self.settings.thresholds)
            self.terminal.print(render_epoch(stats, warnings, self._layout()))
        elif stats.wall_s >= LINE_FROM_S:
            self.terminal.print(epoch_line(stats, before) + "\n")
        self._send(step, lambda: epoch_metrics(stats))

    def final(self, stats: Callable[[], Snapshot], findings: Sequence[Finding], health: Callable[[], Health]) -> None:
        """Report on the finished run. ``stats`` is called again after printing, which can add notes."""
        self._trackers.end()
        self._trackers.wait(A_MOMENT_S, is_last=False)
        self.settle()  # for the name of the run folder
        snapshot = replace(stats(), history=self._past[0])
        self.terminal.stop_status()  # only the final summary follows
        self.terminal.print(self._summary(snapshot, findings, self._layout()))
        self.terminal.thread.wait(READER_S)
        self._trackers.wait(PATIENCE_S, is_last=True)
        snapshot = replace(stats(), history=self._past[0])
        text = self._summary(snapshot, findings, Layout(format=self.settings.format))
        self._write_report(text, as_data(snapshot, findings))
        is_written = self.close(health, snapshot.ended_by)
        if self.settings.html and snapshot.steps:
            self.guard.run("page", lambda: self._write_page(is_written, snapshot.ended_by))

    def look_back(self, sums: RunSums, snapshot: Snapshot) -> None:
        """Compare the run with earlier ones, unless the disk does not respond. The report then says what it shows."""

        def look() -> None:
            if self._files.folder is not None:
                self._past = remember(self._files.folder, sums, snapshot)

        if self.settings.history and snapshot.steps:
            self._in_background("history of runs", look)

    def _write_page(self, has_journal: bool, ended_by: str | None) -> None:
        folder = self._files.folder
        if folder is None:
            return
        why = "the disk does not respond" if not has_journal else ""
        if ended_by == "SIGTERM":
            why = "the program was ended by SIGTERM"
        why = why or write_page(folder)
        if why:
            hint = f"; training-profiler html {typed_path(folder)}" if is_in_place(folder) else ""
            self.terminal.report(f"no page was written: {one_line(why)}{hint}")
        elif not self.settings.is_quiet:
            self.terminal.print(f"{PREFIX}page {typed_path(folder / PAGE)}\n")

    def cell(self, snapshot: Snapshot, stats: Callable[[], Snapshot]) -> bool:
        """Report on a cell of a notebook; return whether that ends the interval. Arguments are those of ``periodic``.

        The first cell that trains sums the run up, and so does one that makes it much longer. Other cells get a
        report on the interval, or a line where that is short or a report came just before.
        """
        if snapshot.steps >= MUCH_LONGER * self._summed_up:
            self._summed_up, self._printed_s, run = snapshot.steps, time.monotonic(), stats()
            self.terminal.print(self._summary(run, diagnose(run), self._layout(), most_lines=CELL_LINES))
            self.interval_row(snapshot)
            return True
        step, steps = snapshot.step, snapshot.steps - snapshot.first_step
        is_long = step is not None and (steps >= self.settings.interval_steps or step.total_s >= BETWEEN_REPORTS_S)
        if is_long and self._is_due():
            self.periodic(snapshot, stats)
            return True
        if step is not None and not self.settings.is_quiet:
            shares = {name: snapshot.share_of_step(name) or 0.0 for name in snapshot.sections}
            line = status_text(snapshot.steps, 1 / step.avg_s, largest_shares(shares), self._layout().width)
            self.terminal.print(f"{line}\n")
        return False

    def report_files(self, snapshot: Snapshot, findings: Sequence[Finding]) -> dict[str, str]:
        """Return the texts of the report's files by their names."""
        text = self._summary(snapshot, findings, Layout(format=self.settings.format)).lstrip("\n")
        return {REPORT_TEXT: text, REPORT_DATA: json.dumps(as_data(snapshot, findings), indent=1, allow_nan=False)}

    def _write_report(self, text: str, data: dict[str, Any]) -> None:
        self._in_background("run folder", lambda: self._files.write_report(text, data), len(text))

    def close(self, health: Callable[[], Health], ended_by: str | None) -> bool:
        """Append how the run ended, and close the journal; return whether all is written.

        Ranks that do not report call it directly.
        """
        at_end = health()

        def end() -> None:
            self._files.close(at_end, ended_by)
            self._share_folder()

        self._in_background("run folder", end)
        is_written = self.settle()
        if not is_written:
            self.terminal.report(
                "the disk did not respond at the end of the run: the end of the journal and the report may be missing "
                "in the run folder"
            )
        return is_written

    def has_run_of_child(self) -> bool:
        """Return whether a child of this process has a run of its own, in the same folder of runs."""
        found: list[bool] = []
        self._in_background("run folder", lambda: found.append(self._files.has_run_of_child()))
        self.settle()
        return found == [True]

    def say_only_waited(self) -> None:
        """Print why there is no report."""
        if not self.has_run_of_child():
            self.terminal.print(f"{PREFIX}{ONLY_WAITED}\n")

    def discard(self) -> None:
        """Remove the run folder: nothing was measured."""
        self._in_background("run folder", self._files.discard)
        self.settle()

    def stop(self) -> None:
        """End the threads. What they have not done by now they do later, unless the process ends."""
        self._thread.stop()
        self.terminal.thread.wait(READER_S)
        self.terminal.close()
        if self._thread.join(0.0 if self._thread.waiting else DISK_S):
            self._files.let_go()

    def after_fork_in_child(self) -> None:
        """Drop trackers and threads: in a forked child they are the parent's."""
        self._thread.after_fork_in_child()
        self.terminal.after_fork_in_child()
        self._trackers.after_fork_in_child()

    def notes(self) -> list[str]:
        """Return sentences on what did not reach the run folder, the terminal or a tracker."""
        notes = [*self._files.notes(), *self.terminal.notes(), *self._trackers.notes(), *filter(None, self._past[1:])]
        if lost := self._lost_lines:
            lines = f"{lost} line{'s' * (lost != 1)}"
            notes.append(f"the disk did not respond: {lines} of the journal had no room in memory")
        return notes

    def _open_files(self) -> None:
        self._files.open(self.rank.who, self.exchange.run_name)
        self._share_folder()
        self._files.add_git()

    def _share_folder(self) -> None:
        if self._files.folder is not None:
            self.exchange.share_folder(self._files.folder)

    def _folder(self) -> Path | None:
        """Return the run's folder once it exists; None if it cannot be made. Called on threads of trackers."""
        self.open_journal()
        while self._files.folder is None and "run folder" not in self.guard.disabled and self._thread.is_alive():
            time.sleep(LOOK_S)
        return self._files.folder

    def _layout(self) -> Layout:
        """Return the layout for the terminal as it is now."""
        return self.terminal.console.layout(self.settings.format)

    def _summary(self, snapshot: Snapshot, findings: Sequence[Finding], layout: Layout, **most: Any) -> str:
        folder = self._files.folder
        origin = Origin()
        if folder is not None:
            command = self._files.command  # earlier runs are not looked for here: the disk may not respond
            origin = Origin(program_in(command), typed_path(folder), typed_program(command))
        return render_final(snapshot, findings, layout, self.settings.checklist, origin, **most)
