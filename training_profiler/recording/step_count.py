"""The number of finished steps, which the fast paths in C count, too."""

from training_profiler.recording.fields import Fields, number


class StepCount(Fields):
    """``steps`` have ended."""

    steps: int = number(0)

    def __init__(self) -> None:
        self.steps = 0

    def end_step(self) -> int:
        """Count a step; return how many have ended."""
        self.steps += 1
        return self.steps
