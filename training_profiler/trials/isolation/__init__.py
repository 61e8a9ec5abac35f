"""Keeps a trial of the user's training apart: no file changes, none stays, no process lives on."""

from training_profiler.trials.isolation.isolation import FinishReport, Isolation, IsolationError, prepare

__all__ = ["FinishReport", "Isolation", "IsolationError", "prepare"]
