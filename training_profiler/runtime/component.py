"""The life cycle of the parts of a session."""

from typing import Protocol

from training_profiler.settings.settings import Settings


class Component(Protocol):
    """A part of a session; ``runtime/wiring.py`` constructs it, and the session calls it in the order of its parts."""

    def start(self) -> None:
        """Start working at the start of the run."""

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings."""

    def close(self, ended_by: str | None) -> None:
        """Stop working and hand over what is left.

        Args:
            ended_by: signal or exception that ends the run; None if it ends normally.
        """

    def after_fork_in_child(self) -> None:
        """Discard all state without output: the run belongs to the parent process."""

    def notes(self) -> list[str]:
        """Return sentences for the report's "Profiler health"."""
