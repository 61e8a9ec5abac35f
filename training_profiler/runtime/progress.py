"""The number of finished steps, their tokens, and the training thread."""

from training_profiler.recording.step_count import StepCount


class TrainingProgress(StepCount):
    """``thread_id`` is the recorder's number of the thread whose time is the run's.

    A trainer that knows the tokens of its batches counts them here.
    """

    def __init__(self, thread_id: int) -> None:
        super().__init__()
        self.thread_id = thread_id
        self._tokens = self._drained_tokens = 0

    def count_tokens(self, tokens: int) -> None:
        """Count tokens that the training has read."""
        self._tokens += tokens

    def drain_tokens(self) -> int | None:
        """Return the tokens since the last call; None if none are ever counted."""
        before, self._drained_tokens = self._drained_tokens, self._tokens
        return self._drained_tokens - before if self._drained_tokens else None

    def move_to(self, thread_id: int) -> None:
        """Attribute the run's time to another thread from now on."""
        self.thread_id = thread_id
