"""How often ranks send a message, when a rank without messages is unresponsive, and when a training hangs."""

from typing import Final

UNRESPONSIVE_AFTER_S: Final = 10.0  # during the run
UNRESPONSIVE_AFTER_INTERVALS: Final = 5
OUTDATED_AFTER_S: Final = 60.0  # in journals, which are written once per flush
OUTDATED_AFTER_FLUSHES: Final = 3
MIN_INTERVAL_S: Final = 1.0
QUIET_S: Final = 60.0  # a hang lasts at least this long without a step, and
QUIET_STEPS: Final = 20  # as long as this many earlier steps
MESSAGES_PER_S: Final = 100  # of all ranks together, which bounds the load on rank 0 and its store


def message_interval_s(world_size: int) -> float:
    """Return the seconds between two messages of a rank; above 100 ranks it grows with their number."""
    return max(MIN_INTERVAL_S, world_size / MESSAGES_PER_S)


def unresponsive_after_s(interval_s: float) -> float:
    """Return how long a rank may send nothing during a run, in s, if it sends a message every ``interval_s``."""
    return max(UNRESPONSIVE_AFTER_S, UNRESPONSIVE_AFTER_INTERVALS * interval_s)


def outdated_after_s(flush_s: float, world_size: int) -> float:
    """Return how far a rank's journal may lag behind the newest one, in s, before the rank counts as unresponsive."""
    return max(OUTDATED_AFTER_S, OUTDATED_AFTER_FLUSHES * max(flush_s, message_interval_s(world_size)))
