"""Heartbeat of this rank, and whether the training has stopped making progress."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.span_matching import Events, read_events
from training_profiler.base.sections import OUTSIDE_STEPS_SECTIONS, PROFILER, name_of
from training_profiler.base.units import NS_PER_S
from training_profiler.ranks.identity import this_process
from training_profiler.ranks.message import QUIET_S, QUIET_STEPS, Heartbeat, ReceivedMessage, unresponsive_after_s
from training_profiler.recording.event_codes import LOADER, SECTION_MASK, is_inferred, section_id
from training_profiler.recording.recorder import Recorder, TrainingProgress
from training_profiler.recording.section import ThreadBuffer

NESTED: Final = 4  # rounds that find spans without others inside; what is left is read one by one


def open_sections(
    buffer: ThreadBuffer, names: Mapping[int, str], before: Sequence[tuple[str, int]] = ()
) -> tuple[tuple[str, ...], int | None]:
    """Return the open sections of a thread, outermost first, and when it entered the last of them.

    Does not wait for the thread, so a section may be missing at the very moment of a drain. The time is None if it is
    unknown.

    Args:
        buffer: of the thread.
        names: of sections, by their id.
        before: the sections that were open at the last drain, and when they were entered.
    """
    stack: list[tuple[str, int | None, bool]] = [(name, at_ns, False) for name, at_ns in before]
    events = buffer.events[:]
    for at_ns, code in _without_leaves(read_events(events[: len(events) // 2 * 2])):
        name = names.get(section_id(code), "")
        if code > 0:
            stack.append((name, at_ns, is_inferred(code)))
            continue
        row = next((row for row in reversed(range(len(stack))) if stack[row][0] == name), None)
        if row is not None:
            del stack[row]
    manual = next((row for row, section in enumerate(stack) if not section[2]), len(stack))
    kept = [section for row, section in enumerate(stack) if row <= manual or not section[2]]  # manual sections win
    return tuple(name for name, _, _ in kept), kept[-1][1] if kept else None


def _without_leaves(events: Events) -> list[tuple[int, int]]:
    """Return the times and codes without changes of loader, and without spans that nothing is open in.

    An exit that follows an enter of its section ends it, whatever is around both. That leaves little of the thousands
    of steps that may wait for a drain.
    """
    at = np.flatnonzero(np.abs(events.codes) & LOADER == 0)
    for _ in range(NESTED):
        codes = events.codes[at]
        ids = np.abs(codes) & SECTION_MASK
        enters = np.flatnonzero((codes[:-1] > 0) & (codes[1:] < 0) & (ids[:-1] == ids[1:]))
        if not len(enters):
            break
        at = np.delete(at, np.concatenate([enters, enters + 1]))
    return list(zip(events.times_ns[at].tolist(), events.codes[at].tolist(), strict=True))


MOST_NAMED: Final = 4  # ranks


class Hang(NamedTuple):
    """A training that has stopped making steps."""

    quiet_s: float  # since the last step
    text: str  # where each rank is


@dataclass(eq=False)
class HangDetector:
    """Checks from a thread beside the training whether that makes steps. The training thread does nothing for it."""

    recorder: Recorder  # its events show where the training thread is
    accumulator: Accumulator  # knows the sections that were open at the last drain
    progress: TrainingProgress
    host: str  # name of this machine

    def __post_init__(self) -> None:
        self._process = this_process()
        self._steps, self._steps_ns = 0, 0  # ended so far and their time, without hangs and validation
        self._last_steps, self._last_ns = 0, self.recorder.clock()
        self._has_reported = False

    def heartbeat(self) -> Heartbeat:
        """Return how many steps have ended, and where the training thread is."""
        inside, since_s = self.inside(self.progress.thread_id)
        return Heartbeat(self.progress.steps, inside, since_s, self.host, self._process)

    def inside(self, thread: int) -> tuple[tuple[str, ...], float | None]:
        """Return the open sections of a thread, by its number, outermost first, and the time in the innermost."""
        before = self.accumulator.open_spans(thread)
        inside: tuple[str, ...] = tuple(name for name, _ in before)
        since_s = None
        for buffer in list(self.recorder.buffers):
            if buffer.thread_id == thread:
                inside, since_ns = open_sections(buffer, self.recorder.names.names, before)
                since_s = None if since_ns is None else max(0.0, (self.recorder.clock() - since_ns) / NS_PER_S)
        return tuple(name for name in inside if name != PROFILER), since_s

    def check(self, messages: Mapping[int, ReceivedMessage], interval_s: float) -> Hang | None:
        """Return a hang, once, if the training has made steps and has stopped making them.

        Args:
            messages: the latest message of each other rank.
            interval_s: time between two heartbeats of a rank.
        """
        now_ns, steps = self.recorder.clock(), self.progress.steps
        # Where the training thread is takes milliseconds to find where steps are short: thousands are not drained yet.
        own = self.heartbeat() if steps == self._last_steps else None
        if own is None or not set(OUTSIDE_STEPS_SECTIONS).isdisjoint(own.inside):
            if self._last_steps and own is None and not self._has_reported:
                self._steps += steps - self._last_steps
                self._steps_ns += now_ns - self._last_ns
            self._has_reported &= own is not None
            self._last_steps, self._last_ns = steps, now_ns
            return None
        quiet_ns = now_ns - self._last_ns
        if self._has_reported or not own.steps or quiet_ns < QUIET_S * NS_PER_S:
            return None
        if quiet_ns * self._steps < QUIET_STEPS * self._steps_ns:
            return None
        self._has_reported = True
        quiet_s = quiet_ns / NS_PER_S
        return Hang(quiet_s, hang_text(quiet_s, own, messages, unresponsive_after_s(interval_s)))


def hang_text(quiet_s: float, own: Heartbeat, messages: Mapping[int, ReceivedMessage], silent_s: float) -> str:
    """Return the line on a training without a step for ``quiet_s``: the ranks that are elsewhere than rank 0."""
    responsive = {rank: last for rank, last in messages.items() if last.age_s <= silent_s or last.is_final}
    places = Counter(_place(last.heartbeat) for last in responsive.values())
    elsewhere = [rank for rank, last in responsive.items() if last.is_final or _place(last.heartbeat) != _place(own)]
    # The place with the fewest ranks comes first: all others may wait for a rank there.
    elsewhere.sort(key=lambda rank: (places[_place(responsive[rank].heartbeat)], rank))
    parts = [f"rank 0 {'is in ' + name_of(own.inside[-1]) if own.inside else 'is in no section'}"]
    for rank in elsewhere[:MOST_NAMED]:
        last, at = responsive[rank], "in no section"
        if last.is_final:
            at = "has ended"
        elif last.heartbeat.inside:
            since_s = last.heartbeat.since_s
            since = "" if since_s is None else f" since {since_s + last.age_s:.0f} s"
            at = f"in {name_of(last.heartbeat.inside[-1])}{since}"
        parts.append(f"{_named(rank, last.heartbeat)} {at}")
    if len(elsewhere) > MOST_NAMED:
        parts.append(f"{len(elsewhere) - MOST_NAMED} more elsewhere")
    texts = [f"no training step for {quiet_s:.0f} s: {', '.join(parts)}"]
    silent = [(rank, last) for rank, last in messages.items() if rank not in responsive]
    for rank, last in silent[:MOST_NAMED]:
        texts.append(f"{_named(rank, last.heartbeat)} has not responded for {last.age_s:.0f} s")
    return "; ".join(texts + ([f"and {len(silent) - MOST_NAMED} more"] if len(silent) > MOST_NAMED else []))


def _place(heartbeat: Heartbeat) -> str:
    return heartbeat.inside[-1] if heartbeat.inside else ""


def _named(rank: int, heartbeat: Heartbeat) -> str:
    return f"rank {rank} ({heartbeat.host})" if heartbeat.host else f"rank {rank}"
