"""A message from one rank to rank 0: a heartbeat, and below it the measurements of the rank."""

from dataclasses import dataclass

import msgspec


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

    def pack(self) -> bytes:
        """Return the message as bytes: a line with the heartbeat, then the data."""
        beat = self.heartbeat
        head = [self.sequence, int(self.is_final), beat.steps, beat.inside, beat.since_s, beat.host]
        return msgspec.json.encode([*head, beat.process] if beat.process else head) + b"\n" + self.data


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    sequence: int
    is_final: int
    steps: int
    inside: tuple[str, ...]
    since_s: float | None
    host: str
    process: str = ""


def unpack(packed: bytes) -> Message:
    """Return the message that ``pack`` was called on.

    Raises:
        ValueError: the bytes have another form.
    """
    line, _, data = packed.partition(b"\n")
    head = msgspec.json.decode(line, type=_Head)
    return Message(
        Heartbeat(head.steps, head.inside, head.since_s, head.host, head.process),
        data,
        bool(head.is_final),
        head.sequence,
    )
