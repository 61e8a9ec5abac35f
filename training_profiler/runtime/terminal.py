"""Terminal output of a run: reports, and single lines between them. Only rank 0 prints."""

from typing import Final

from training_profiler.ranks.identity import Rank
from training_profiler.reports.layout import Layout
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sinks.console import Console

PREFIX: Final = "Profiler: "


class Terminal:
    """Prints on rank 0; elsewhere does nothing."""

    def __init__(self, rank: Rank, guard: FaultGuard, health: ProfilerHealth, stream: str) -> None:
        self._rank, self._guard, self._health = rank, guard, health
        self._console = Console(stream)

    def reconfigure(self, stream: str) -> None:
        """Print to another stream from now on."""
        self._console = Console(stream)

    def layout(self, table_format: str) -> Layout:
        """Return the layout for the terminal as it is now."""
        return self._console.layout(table_format)

    def print(self, text: str) -> None:
        """Print ``text`` as it is."""
        if self._rank.is_primary():
            self._guard.run("console", lambda: self._console.print(text))

    def report(self, sentence: str) -> None:
        """Print one line between reports, and keep it for the final report, on every rank."""
        sentence = sentence.removeprefix(PREFIX)
        self._health.add_note(sentence)
        self.print(f"{PREFIX}{sentence}\n")
