"""Which recorder a process has: the one in C where it was built, unless a variable refuses it."""

from training_profiler.recording.implementation import best_implementation, python_implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.settings.settings import NATIVE, Settings


def new_recorder(settings: Settings) -> Recorder:
    """Return a recorder of the kind that ``settings`` allow and this installation has."""
    if settings.may_be_native:
        return Recorder(implementation=best_implementation())
    return Recorder(implementation=python_implementation(f"{NATIVE} refuses the recorder in C"))
