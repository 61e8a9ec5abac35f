"""The begin of the training loop, where the program called its model while it built it."""

from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes
from training_profiler.recording.event_codes import time_only
from training_profiler.recording.fields import Fields, field


class EarlyCalls(Fields):
    """When the optimizer was made, in a program that called its model before, and computed no gradient so far."""

    made_ns: int = field(0)  # 0: not yet, or the model was not called before

    def __init__(self) -> None:
        self.made_ns = 0

    def optimizer_is_made(self, now_ns: int) -> None:
        """Remember the last one."""
        self.made_ns = now_ns

    def begin_again(self, pending: PendingEvents, codes: SectionCodes) -> int:
        """Let the loop begin with the first batch or forward pass since then, and return when that was.

        Without a forward pass since then, return 0: the first step is under way. A model may be called before, to fill
        lazy layers, for a summary, or for a copy of it.
        """
        made_ns, self.made_ns = self.made_ns, 0
        forward = {codes.forward, time_only(codes.forward)}
        if not pending.first_since(made_ns, forward):
            return 0
        return pending.begin_loop(pending.first_since(made_ns, forward | {codes.data_loading, codes.no_grad}))
