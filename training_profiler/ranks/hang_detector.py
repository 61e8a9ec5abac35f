"""How this rank is just now, told from beside the training; and a line where the training has come to a stop."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.ranks.channel import ReceivedMessage
from training_profiler.ranks.liveness import unresponsive_after_s
from training_profiler.ranks.message import Heartbeat
from training_profiler.recording.known_sections import OUTSIDE_STEPS_SECTIONS
from training_profiler.recording.recorder import Recorder, open_sections
from training_profiler.snapshot.snapshot import PROFILER
from training_profiler.units import NS_PER_S

QUIET_S: Final = 60.0  # without a step, and
QUIET_STEPS: Final = 20  # times what a step took before: then it is said
MOST_NAMED: Final = 4  # ranks


class HangDetector:
    """What the board's thread asks of the training thread, which knows nothing of it.

    Args:
        recorder: whose events tell where the training thread is.
        accumulator: which knows what was open at the last drain.
        training_thread: returns the serial of that thread.
        host: name of this machine.
        say: takes the line, once for each stop.
        steps: returns how many steps have ended.
    """

    def __init__(
        self,
        recorder: Recorder,
        accumulator: Accumulator,
        training_thread: Callable[[], int],
        host: str,
        say: Callable[[str], None],
        steps: Callable[[], int],
    ) -> None:
        self._steps_ended = steps
        self._recorder, self._accumulator = recorder, accumulator
        self._training_thread = training_thread
        self._host = host
        self._say = say
        self._steps, self._steps_ns = 0, 0  # seen to end, and in what time, stops and validation left out
        self._last_steps, self._last_ns = 0, recorder.clock()
        self._has_said = False

    def heartbeat(self) -> Heartbeat:
        """Return how many steps have ended, and where the training thread is."""
        thread = self._training_thread()
        before = self._accumulator.open_sections(thread)
        inside, since_s = before, None
        for buffer in list(self._recorder.buffers):
            if buffer.thread_id == thread:
                inside, since_ns = open_sections(buffer, self._recorder.names.names, before)
                since_s = None if since_ns is None else max(0.0, (self._recorder.clock() - since_ns) / NS_PER_S)
        return Heartbeat(self._steps_ended(), tuple(name for name in inside if name != PROFILER), since_s, self._host)

    def check(self, told: Mapping[int, ReceivedMessage], interval_s: float) -> None:
        """Report where the ranks are if the training has made steps and has stopped making them.

        Args:
            told: the latest message of each other rank.
            interval_s: time between two heartbeats of a rank.
        """
        now_ns, own = self._recorder.clock(), self.heartbeat()
        if own.steps != self._last_steps or not set(OUTSIDE_STEPS_SECTIONS).isdisjoint(own.inside):
            if self._last_steps and own.steps != self._last_steps and not self._has_said:
                self._steps += own.steps - self._last_steps
                self._steps_ns += now_ns - self._last_ns
            self._has_said &= own.steps == self._last_steps
            self._last_steps, self._last_ns = own.steps, now_ns
            return
        quiet_ns = now_ns - self._last_ns
        if self._has_said or not own.steps or quiet_ns < QUIET_S * NS_PER_S:
            return
        if quiet_ns * self._steps >= QUIET_STEPS * self._steps_ns:
            self._has_said = True
            self._say(hang_text(quiet_ns / NS_PER_S, own, told, unresponsive_after_s(interval_s)))


def hang_text(quiet_s: float, own: Heartbeat, told: Mapping[int, ReceivedMessage], silent_s: float) -> str:
    """Return the line on a training without a step for ``quiet_s``: where ranks are that are not where most are."""
    heard = {rank: one for rank, one in told.items() if one.heard_s_ago <= silent_s or one.is_final}
    places = Counter(_place(one.alive) for one in heard.values())
    elsewhere = [rank for rank, one in heard.items() if one.is_final or _place(one.alive) != _place(own)]
    # Of many ranks it is the few that tell: where one is, and all others wait for it.
    elsewhere.sort(key=lambda rank: (places[_place(heard[rank].alive)], rank))
    parts = [f"rank 0 {'is in ' + own.inside[-1] if own.inside else 'is in no section'}"]
    parts += [
        f"{_named(rank, heard[rank].alive)} "
        + ("has ended" if heard[rank].is_final else _at(heard[rank].alive, heard[rank].heard_s_ago))
        for rank in elsewhere[:MOST_NAMED]
    ]
    if len(elsewhere) > MOST_NAMED:
        parts.append(f"{len(elsewhere) - MOST_NAMED} more elsewhere")
    text = f"Profiler: no training step for {quiet_s:.0f} s: {', '.join(parts)}"
    silent = [rank for rank in told if rank not in heard]
    return text + "".join(_silence(rank, told[rank]) for rank in silent[:MOST_NAMED]) + _more(silent)


def _place(alive: Heartbeat) -> str:
    return alive.inside[-1] if alive.inside else ""


def _named(rank: int, alive: Heartbeat) -> str:
    return f"rank {rank} ({alive.host})" if alive.host else f"rank {rank}"


def _at(alive: Heartbeat, heard_s_ago: float) -> str:
    if not alive.inside:
        return "in no section"
    since = "" if alive.since_s is None else f" since {alive.since_s + heard_s_ago:.0f} s"
    return f"in {alive.inside[-1]}{since}"


def _silence(rank: int, one: ReceivedMessage) -> str:
    return f"; {_named(rank, one.alive)} has not been heard of for {one.heard_s_ago:.0f} s"


def _more(silent: Sequence[int]) -> str:
    return f"; and {len(silent) - MOST_NAMED} more" if len(silent) > MOST_NAMED else ""
