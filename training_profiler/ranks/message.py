"""Messages from ranks to rank 0: their form, how often they come, and when the lack of them means something."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from training_profiler.model.bounds import fit

MOST_MESSAGE_BYTES: Final = 1 << 20  # one has some 20 kB
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a rank at one moment."""

    steps: _Count = 0  # ended so far
    inside: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)] = ()  # its training thread's, outermost first
    since_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None  # time in the innermost section
    host: str = ""
    process: str = ""  # identifies the process to the others on its machine; "" where that is unknown


_Head = Annotated[list[Any], msgspec.Meta(min_length=6)]  # with all of a heartbeat but its process


@dataclass(frozen=True, slots=True)
class Message:
    """A heartbeat, and the latest data of the rank."""

    heartbeat: Heartbeat
    data: bytes = b""
    is_final: bool = False
    sequence: int = 0  # counts up, so that each message differs from the one before
    stacks: bytes = b""  # of all threads, for a while after they were asked for

    def pack(self) -> bytes:
        """Return the message as bytes: a line with the heartbeat, then the data and the stacks."""
        head = [self.sequence, int(self.is_final), *msgspec.structs.astuple(self.heartbeat)]
        if self.stacks:
            head.append(len(self.data))
        elif not self.heartbeat.process:
            head.pop()
        return msgspec.json.encode(head) + b"\n" + self.data + self.stacks


def unpack(packed: bytes) -> Message:
    """Return the message that ``pack`` was called on, its texts fit for a terminal.

    Raises:
        ValueError: the bytes have another form, or are too many.
    """
    if len(packed) > MOST_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(packed)} bytes; they have at most {MOST_MESSAGE_BYTES}")
    line, _, rest = packed.partition(b"\n")
    sequence, is_final, *beat = msgspec.json.decode(line, type=_Head)
    data_bytes = beat.pop() if len(beat) > len(Heartbeat.__struct_fields__) else len(rest)
    msgspec.convert([sequence, is_final, data_bytes], list[_Count])
    heartbeat = fit(msgspec.convert(beat, Heartbeat))
    return Message(heartbeat, rest[:data_bytes], bool(is_final), sequence, rest[data_bytes:])


class ReceivedMessage(NamedTuple):
    """The latest message of one rank."""

    data: bytes  # its measurements; empty before its first summary
    age_s: float
    heartbeat: Heartbeat = Heartbeat()
    is_final: bool = False
    stacks: bytes = b""


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
