"""What one rank tells the others: a line on how it is just now, and below it what it has measured."""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How a rank is at one moment."""

    steps: int = 0  # that it has ended so far
    inside: tuple[str, ...] = ()  # the sections its training thread is in, the outermost first
    since_s: float | None = None  # for how long it has been in the innermost
    host: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """Alive, and the data that was told last."""

    alive: Heartbeat
    data: bytes = b""
    is_final: bool = False
    beat: int = 0  # counts up, so that each one differs from the one before

    def pack(self) -> bytes:
        """Return the message as bytes: a line with the heartbeat, then the data."""
        alive = self.alive
        head = _Head(self.beat, int(self.is_final), alive.steps, alive.inside, alive.since_s, alive.host)
        return msgspec.json.encode(head) + b"\n" + self.data


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    beat: int
    is_final: int
    steps: int
    inside: tuple[str, ...]
    since_s: float | None
    host: str


def unpack(packed: bytes) -> Message:
    """Return the message that ``pack`` was called on.

    Raises:
        ValueError: the bytes have another form.
    """
    line, _, data = packed.partition(b"\n")
    head = msgspec.json.decode(line, type=_Head)
    return Message(Heartbeat(head.steps, head.inside, head.since_s, head.host), data, bool(head.is_final), head.beat)
