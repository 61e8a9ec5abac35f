"""The begin of the training loop, where the program called its model while it built it."""

from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents
from training_profiler.instrumentation.loop_detection.section_codes import SectionCodes
from training_profiler.recording.event_codes import time_only


def begin_again(pending: PendingEvents, codes: SectionCodes, made_ns: int) -> int:
    """Let the loop begin with the first batch or forward pass since ``made_ns``, when the optimizer was made.

    Return when that was. Without a forward pass since then, return 0: the first step is under way. A model may be
    called before, to fill lazy layers, for a summary, or for a copy of it.
    """
    forward = {codes.forward, time_only(codes.forward)}
    if not pending.first_since(made_ns, forward):
        return 0
    return pending.begin_loop(pending.first_since(made_ns, forward | {codes.data_loading, codes.no_grad}))
