"""The number of finished steps, which the recorder counts while the session has nothing to do at their ends."""


class StepCount:
    """``steps`` have ended."""

    steps: int

    def __init__(self) -> None:
        self.steps = 0

    def end_step(self) -> int:
        """Count a step; return how many have ended."""
        self.steps += 1
        return self.steps
