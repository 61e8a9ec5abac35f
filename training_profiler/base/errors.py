"""The exceptions and warnings of the profiler. It raises them only at start-up and in its commands."""


class ProfilerError(Exception):
    """Base of every error of the profiler. None is raised into a running training."""


class SettingsError(ProfilerError, ValueError):
    """A setting has an invalid value. The message names the setting and shows an example."""


class MissingExtraError(ProfilerError, ImportError):
    """The package of a tracker is not installed. The message shows how to install it."""


class RunFolderError(ProfilerError):
    """A folder is not a readable run folder."""


class BenchmarkError(ProfilerError):
    """A component benchmark cannot run: the factory does not exist, or it or its model raises.

    ``shows_cause`` is set if the cause is an exception of the user's code.
    """

    def __init__(self, message: str, shows_cause: bool = False) -> None:
        super().__init__(message)
        self.shows_cause = shows_cause


class ProfilerWarning(UserWarning):
    """A setting has no effect, or a part of the profiler could not start."""


class TraceError(ProfilerError):
    """A file is not a readable trace. The message is one line."""
