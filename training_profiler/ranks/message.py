"""A message from one rank to rank 0: a heartbeat, and below it the measurements of the rank."""

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from training_profiler.base.text import printable

MOST_MESSAGE_BYTES: Final = 1 << 20  # one has some 20 kB
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The state of a rank at one moment."""

    steps: int = 0  # ended so far
    inside: tuple[str, ...] = ()  # sections of its training thread, outermost first
    since_s: float | None = None  # time in the innermost section
    host: str = ""
    process: str = ""  # identifies the process to the others on its machine; "" where that is unknown


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
        beat = self.heartbeat
        head: list[object] = [self.sequence, int(self.is_final), beat.steps, beat.inside, beat.since_s, beat.host]
        if beat.process or self.stacks:
            head.append(beat.process)
        if self.stacks:
            head.append(len(self.data))
        return msgspec.json.encode(head) + b"\n" + self.data + self.stacks


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    sequence: _Count
    is_final: _Count
    steps: _Count
    inside: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)]
    since_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None
    host: str
    process: str = ""
    data_bytes: _Count | None = None  # where stacks follow the data


def unpack(packed: bytes) -> Message:
    """Return the message that ``pack`` was called on, its texts fit for a terminal.

    Raises:
        ValueError: the bytes have another form, or are too many.
    """
    if len(packed) > MOST_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(packed)} bytes; they have at most {MOST_MESSAGE_BYTES}")
    line, _, rest = packed.partition(b"\n")
    head = msgspec.json.decode(line, type=_Head)
    inside = tuple(printable(name) for name in head.inside)
    heartbeat = Heartbeat(head.steps, inside, head.since_s, printable(head.host), printable(head.process))
    data_bytes = len(rest) if head.data_bytes is None else head.data_bytes
    return Message(heartbeat, rest[:data_bytes], bool(head.is_final), head.sequence, rest[data_bytes:])
