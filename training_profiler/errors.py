"""What the profiler raises and warns with, all of it at start-up."""


class ProfilerError(Exception):
    """Base of every error the profiler raises; none is raised once training runs."""


class SettingsError(ProfilerError, ValueError):
    """A setting has a value that cannot be used; the message names it and gives an example."""


class MissingExtraError(ProfilerError, ImportError):
    """A tracker was asked for whose package is not installed; the message says how to install it."""


class RunFolderError(ProfilerError):
    """A run folder cannot be read as one."""


class BenchmarkError(ProfilerError):
    """What shall be timed cannot be: no such factory, or it or its model raises; its cause is then worth showing."""

    def __init__(self, message: str, shows_cause: bool = False) -> None:
        super().__init__(message)
        self.shows_cause = shows_cause


class ProfilerWarning(UserWarning):
    """A setting that has no effect, or a part of the profiler that could not start."""


class TraceError(ProfilerError):
    """A trace cannot be read as one; the message is one line."""
