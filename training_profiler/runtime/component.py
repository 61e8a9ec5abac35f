"""The life cycle of the parts of a session."""

from typing import Protocol

from training_profiler.settings import Settings


class Component(Protocol):
    """A part of a session; ``runtime/wiring.py`` constructs it, and the session calls it in the order of its parts."""

    def start(self) -> None:
        """Begin to work: the run has begun."""

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings."""

    def close(self, ended_by: str | None) -> None:
        """Stop working and hand over what is left.

        Args:
            ended_by: signal or exception that ends the run; None where it ends by itself.
        """

    def after_fork_in_child(self) -> None:
        """Drop all state without output: in a forked child the run is its parent's."""

    def notes(self) -> list[str]:
        """Return sentences for the report's "Profiler health"."""
