"""The number of finished steps and the training thread."""


class TrainingProgress:
    """``thread_id`` is the recorder's number of the thread whose time is the run's; ``steps`` have ended."""

    def __init__(self, thread_id: int) -> None:
        self.steps = 0
        self.thread_id = thread_id

    def end_step(self) -> int:
        """Count a step; return how many have ended."""
        self.steps += 1
        return self.steps

    def move_to(self, thread_id: int) -> None:
        """Attribute the run's time to another thread from now on."""
        self.thread_id = thread_id
