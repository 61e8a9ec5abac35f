"""Terminal output of a run: reports, and single lines between them. Only rank 0 prints."""

from typing import Final

from training_profiler.ranks.identity import Rank
from training_profiler.reports.layout import Layout
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.runtime.output_thread import OutputThread
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sinks.console import Console

PREFIX: Final = "Profiler: "
MOST_TEXTS: Final = 200  # that wait for a reader
MOST_BYTES: Final = 1_000_000
FORK_S: Final = 0.2  # a fork waits at most this long for a text that is being written
DISK_S: Final = 0.2  # so does a step for a text that goes to a file, once while the disk does not respond


class Terminal:
    """Prints on rank 0, on a thread of its own where the reader is not ready; elsewhere does nothing."""

    def __init__(self, rank: Rank, guard: FaultGuard, health: ProfilerHealth, stream: str) -> None:
        self._rank, self._guard, self._health = rank, guard, health
        self._console = Console(stream)
        self._thread = OutputThread("console", guard.run, "console", most_jobs=MOST_TEXTS, most_bytes=MOST_BYTES)
        self._refused = self._unread = 0  # texts: counted by those who hand them over, and by the thread
        self._gives_up = False
        self._held: Console | None = None

    def reconfigure(self, stream: str) -> None:
        """Print to another stream from now on."""
        self._console = Console(stream)

    def layout(self, table_format: str) -> Layout:
        """Return the layout for the terminal as it is now."""
        return self._console.layout(table_format)

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
            self._unread += not console.print(text, stream, gives_up)

        self._refused += not self._thread.put(lambda: self._guard.run("console", job), len(text))

    def _asks_to_give_up(self) -> bool:
        return self._gives_up

    def report(self, sentence: str) -> None:
        """Print one line between reports, and keep it for the final report, on every rank."""
        sentence = sentence.removeprefix(PREFIX)
        self._health.add_note(sentence)
        self.print(f"{PREFIX}{sentence}\n")

    def wait(self, patience_s: float) -> bool:
        """Wait until everything is printed, at most ``patience_s`` without progress; return whether it is."""
        return self._thread.wait(patience_s)

    def close(self) -> None:
        """Print no more; what its reader has not read by now is left out."""
        self._gives_up = True
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
        self._thread.after_fork_in_child()

    def notes(self) -> list[str]:
        """Return a sentence on texts for which the reader left no room."""
        texts = self._refused + self._unread
        return [f"{texts} text{'s' * (texts != 1)} not printed: their reader did not keep up"] if texts else []
