"""Terminal output of a run: reports, single lines between them, and a status line. Only rank 0 prints."""

import time
from collections.abc import Callable
from typing import Final

from training_profiler.base.text import PREFIX
from training_profiler.ranks.identity import Rank
from training_profiler.reports.layout import Layout
from training_profiler.reports.sections import status_text
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.runtime.output_thread import OutputThread
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sinks.console import Console, StatusLine

MOST_TEXTS: Final = 200  # that wait for a reader
MOST_BYTES: Final = 1_000_000
STATUS_S: Final = 1.0  # between two drawings of the status line
NEVER_S: Final = 3600.0
FORK_S: Final = 0.2  # a fork waits at most this long for a text that is being written
DISK_S: Final = 0.2  # so does a step for a text that goes to a file, once while the disk does not respond


class Terminal:
    """Prints on rank 0, on a thread of its own where the reader is not ready; elsewhere does nothing.

    ``steps`` returns how many steps have ended, for the status line.
    """

    def __init__(
        self, rank: Rank, guard: FaultGuard, health: ProfilerHealth, stream: str, steps: Callable[[], int]
    ) -> None:
        self._rank, self._guard, self._health = rank, guard, health
        self._console = Console(stream)
        self._status, self._steps, self._detail = StatusLine(), steps, ""
        self._drawn = 0, time.monotonic()  # steps, and when, of the last status
        self._thread = OutputThread(
            "console", guard.run, "console", self._draw_status, most_jobs=MOST_TEXTS, most_bytes=MOST_BYTES
        )
        self._refused = self._unread = 0  # texts: counted by those who hand them over, and by the thread
        self._gives_up = False
        self._held: Console | None = None

    def reconfigure(self, stream: str) -> None:
        """Print to another stream from now on."""
        self._console = Console(stream)
        self._status.stop()

    def layout(self, table_format: str) -> Layout:
        """Return the layout for the terminal as it is now."""
        return self._console.layout(table_format)

    def start_status(self) -> bool:
        """Begin the status line; return False where there is no terminal to show it."""
        self._drawn = self._steps(), time.monotonic()
        has_started = self._rank.is_primary() and self._status.start(self._console.stream())
        if has_started:  # the thread sleeps for long if it has looked before
            self._thread.put(lambda: None)
        return has_started

    def stop_status(self) -> None:
        """End the status line: only the final summary follows."""
        self._status.stop()

    def set_status(self, detail: str) -> None:
        """Let the status line end with ``detail`` from now on."""
        self._detail = detail

    @property
    def cpu_ns(self) -> int:
        """CPU time of its thread, in ns."""
        return self._thread.cpu_ns

    @property
    def has_status(self) -> bool:
        """Whether there is a status line."""
        return self._status.is_active

    def _draw_status(self) -> float:
        """Draw the status line on the thread; return in how many seconds to do so again."""
        if not self._status.is_active:
            return NEVER_S
        now_s, (steps, then_s) = time.monotonic(), self._drawn
        if now_s < then_s + STATUS_S:
            return then_s + STATUS_S - now_s
        self._drawn = self._steps(), now_s
        rate = (self._drawn[0] - steps) / (now_s - then_s)
        self._status.show(status_text(self._drawn[0], rate, self._detail, self._console.layout("table").width))
        return STATUS_S

    def print(self, text: str) -> None:
        """Print ``text`` as it is, now or soon; texts for which there is no room are left out and counted."""
        if self._rank.is_primary():
            self._hand_over(text)

    def _hand_over(self, text: str) -> None:
        rest = [text]
        is_on_disk = self._console.is_on_disk()
        if not is_on_disk and not self._thread.waiting:
            self._guard.run("console", lambda: rest.insert(0, self._console.print_now(text)))
        if rest[0]:
            self._leave_to_thread(rest[0])
        if is_on_disk:
            self._thread.wait(DISK_S)  # otherwise the program's next line could come first

    def _leave_to_thread(self, text: str) -> None:
        """Let the thread print a text that its reader is not ready for."""
        console, stream = self._console, self._console.stream()

        def job() -> None:
            gives_up = self._asks_to_give_up if self._thread.is_current() else None
            self._status.clear()
            self._unread += not console.print(text, stream, gives_up)

        self._refused += not self._thread.put(lambda: self._guard.run("console", job), len(text))

    def _asks_to_give_up(self) -> bool:
        return self._gives_up

    def report(self, sentence: str) -> None:
        """Print one line between reports, and keep it for the final report, on every rank."""
        self._health.add_note(sentence)
        self.print(f"{PREFIX}{sentence}\n")

    def wait(self, patience_s: float) -> bool:
        """Wait until everything is printed, at most ``patience_s`` without progress; return whether it is."""
        return self._thread.wait(patience_s)

    def close(self) -> None:
        """Print no more; what its reader has not read by now is left out."""
        self._gives_up = True
        self._status.stop()
        self._thread.stop()
        if not self._thread.join(FORK_S):
            self._console.finish_flush()

    def before_fork(self) -> None:
        """Let no stream be locked in the child by a thread that the child does not have."""
        self._held = self._console if self._console.hold(FORK_S) else None

    def after_fork(self) -> None:
        """Undo ``before_fork``, in both processes."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def after_fork_in_child(self) -> None:
        """Print nothing: the terminal is the parent's."""
        self.after_fork()
        self._status.after_fork_in_child()
        self._thread.after_fork_in_child()

    def notes(self) -> list[str]:
        """Return a sentence on texts for which the reader left no room."""
        texts = self._refused + self._unread
        return [f"{texts} text{'s' * (texts != 1)} not printed: their reader did not keep up"] if texts else []
