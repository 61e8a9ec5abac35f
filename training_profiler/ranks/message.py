"""What one rank tells the others: a line on how it is just now, and below it what it has measured."""

import json
from dataclasses import dataclass
from typing import Any


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
        """Return it as bytes."""
        head = [self.beat, int(self.is_final), self.alive.steps, self.alive.inside, self.alive.since_s, self.alive.host]
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.data


def unpack(packed: bytes) -> Message:
    """Return what ``pack`` was called on.

    Raises:
        ValueError, TypeError: it is not of that form.
    """
    head, _, data = packed.partition(b"\n")
    given: Any = json.loads(head)
    beat, is_final, steps, inside, since_s, host = given
    alive = Heartbeat(int(steps), tuple(map(str, inside)), None if since_s is None else float(since_s), str(host))
    return Message(alive, data, bool(is_final), int(beat))
