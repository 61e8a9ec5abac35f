"""A line of the user's code that was running when a sample was taken."""

from typing import Final, NamedTuple

from training_profiler.model.bounds import Count

MOST_WAITING: Final = 100_000  # samples not yet drained, half an hour of them


class Location(NamedTuple):
    """A line of the user's code."""

    file: str
    line: Count
    function: str
    waits_in: str = ""  # what waits for the device in it: "item", a method of a tensor; "float", a function; "bool"
    inside: str = ""  # the frames of a library that the line called: "lib/trainer.py:9 fit > lib/log.py:3 flush"
    phase: str = ""  # of a trainer: "callback on_step_end"
    activity: str = ""  # before the first step, what the program prepares: "imports", "model"
    held_by: str = ""  # the line of another thread that has the lock which this one waits for: "load.py:9 decode"
    called: str = ""  # the function that the line was calling: "copy.deepcopy", ".item", PYTHON; "" if unknown
    making: str = ""  # the part of a batch that the training makes itself: "decode"
    waits_for: str = ""  # work elsewhere that is not sampled: "a queue between processes"
    loaded_by: str = ""  # frames of a library that makes the batch where no line of the user's does, as of ``inside``

    def alone(self) -> "Location":
        """Return the line without what happened in it."""
        return Location(self.file, self.line, self.function)


NOT_SAMPLED: Final = Location("", 0, "")
Sample = tuple[int, Location | None]  # ns of the clock; None: no user code on the stack
