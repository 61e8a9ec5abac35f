"""Ends the steps of a training loop, most of them without its session."""

from collections.abc import Callable

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, Passes
from training_profiler.recording.fields import Fields, field
from training_profiler.recording.recorder import Recorder


class StepEnds(Fields):
    """Called at the end of each step, with its time.

    The session is asked only where something may be due: at the steps and times that it has set in the recorder, and
    where the batches come from another pass than at the last step, for an epoch may begin there. In a step of 0.25 ms,
    which evicts them from the caches, the session's functions take several microseconds.
    """

    recorder: Recorder
    _passes: Passes | None
    _latest: object = field(0)  # the pass at the last step

    def __init__(self, recorder: Recorder, end_step: Callable[[int], None]) -> None:
        self.recorder, self._passes, self._end_step = recorder, None, end_step
        self._latest = _NO_STEP

    def follow(self, passes: Passes) -> None:
        """Ask the session whenever ``passes`` have another latest one."""
        self._passes = passes

    def __call__(self, at_ns: int) -> None:
        """End a step at ``at_ns``."""
        latest: LoaderPass | None = None if self._passes is None else self._passes.latest
        if latest is self._latest and self.recorder.ends_quietly(at_ns):
            return
        self._latest = latest
        self._end_step(at_ns)


_NO_STEP = object()
