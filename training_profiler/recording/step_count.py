"""The number of finished steps, which the recorder counts while the session has nothing to do at their ends."""

from training_profiler.recording.fields import Fields, field


class StepCount(Fields):
    """``steps`` have ended."""

    steps: int = field(0)

    def __init__(self) -> None:
        self.steps = 0

    def end_step(self) -> int:
        """Count a step; return how many have ended."""
        self.steps += 1
        return self.steps
