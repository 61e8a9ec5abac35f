"""The number of finished steps, their tokens, and the training thread."""

from training_profiler.recording.step_count import StepCount


class TrainingProgress(StepCount):
    """``thread_id`` is the recorder's number of the thread whose time is the run's.

    A trainer that knows the tokens of its batches counts them here. ``is_awaited`` is whether the training has not
    begun, and nothing is written before that: the switch alone holds for every program of a shell. ``uses_api`` is
    whether the program measures itself, and has a report of whatever it does.
    """

    def __init__(self, thread_id: int, is_awaited: bool = False) -> None:
        super().__init__()
        self.thread_id, self.is_awaited, self.uses_api = thread_id, is_awaited, False
        self._tokens = self._drained_tokens = 0

    def stop_waiting(self) -> None:
        """Note that the program trains."""
        self.is_awaited = False

    def use_api(self) -> None:
        """Note that the program calls the API."""
        self.is_awaited, self.uses_api = False, True

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
