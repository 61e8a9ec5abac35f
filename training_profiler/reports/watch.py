"""A run while it is watched: the picture of one moment, a line for other streams, and a log of events."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from training_profiler.base.sections import name_of
from training_profiler.base.units import S_PER_MINUTE, duration_text, ms_text, time_text
from training_profiler.diagnosis.finding import Finding, brief
from training_profiler.model.snapshot import AllRanksStats, Snapshot
from training_profiler.reports.answer import Origin, answer_of
from training_profiler.reports.console import share_rows, title_lines
from training_profiler.reports.layout import MIN_WIDTH, Layout, shortened
from training_profiler.reports.ranks import attempt_lines, exchange_lines, ranges_text, rank_lines
from training_profiler.reports.resources import loader_lines, machine_lines
from training_profiler.reports.sections import largest_shares, left_text, status_text
from training_profiler.reports.verdict import important

ENDED: Final = "ended"
MOST_EVENTS: Final = 200
FEWEST_EVENTS: Final = 3  # that keep their lines on a low terminal
MOST_RANKS: Final = 8
LEVELS: Final = " ▁▂▃▄▅▆▇█"
ASCII_LEVELS: Final = " .:-=+*#@"


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run as it was seen at one moment."""

    snapshot: Snapshot
    findings: Sequence[Finding]
    folder: str  # as it can be typed
    program: str | None
    state: str
    attempt: int = 0
    written_s_ago: float = 0.0
    recent_step_s: float | None = None  # mean of the last interval with steps
    recent_shares: Mapping[str, float] | None = None  # of its time, by section
    over_steps: Sequence[tuple[int, float, float]] = ()  # consecutive steps: count, sum of numbers, sum of seconds
    captures: Sequence[str] = ()
    remarks: Sequence[str] = ()  # about the reading


class EventLog:
    """What happened in a run, from one look to the next."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MOST_EVENTS)
        self._last: WatchedRun | None = None

    def update(self, run: WatchedRun) -> list[str]:
        """Compare a look with the last one, and return the new lines."""
        at = duration_text(run.snapshot.wall_s)
        new = [f"{at:>11}  {text}" for text in _events(self._last, run)]
        self.lines.extend(new)
        self._last = run
        return new


def _events(last: WatchedRun | None, run: WatchedRun) -> Iterator[str]:
    if last is not None and run.attempt != last.attempt:
        yield f"attempt {run.attempt} has begun"
        last = None
    yield from run.remarks
    known_epochs = 0 if last is None else sum(epoch.is_complete for epoch in last.snapshot.epochs)
    epochs = [epoch for epoch in run.snapshot.epochs if epoch.is_complete][known_epochs:]
    if epochs:
        which = ranges_text(epoch.number for epoch in epochs)
        last_s, steps = duration_text(epochs[-1].wall_s), epochs[-1].steps
        yield f"ended: epoch {which}{', the last' if len(epochs) > 1 else ''} after {last_s}, {steps} steps"
    known = [] if last is None else [finding.code for finding in important(last.snapshot, last.findings)]
    now = important(run.snapshot, run.findings)
    for finding in now:
        if finding.code not in known:
            yield f"found {finding.code}: {brief(finding.message)}"
    codes = [finding.code for finding in now]
    yield from (f"no longer found: {code}" for code in known if code not in codes)
    seen = () if last is None else last.captures
    yield from (f"captured {name}" for name in run.captures if name not in seen)
    yield from _of_ranks(None if last is None else last.snapshot.ranks, run.snapshot.ranks)
    off = () if last is None else last.snapshot.health.disabled
    yield from (f"switched off: {name}" for name in run.snapshot.health.disabled if name not in off)
    if last is None or run.state != last.state:
        why = f" by {run.snapshot.ended_by}" if run.snapshot.ended_by else ""
        yield f"the run is {run.state}{why}" if run.state != ENDED else f"the run has ended{why}"


def _of_ranks(last: AllRanksStats | None, ranks: AllRanksStats | None) -> Iterator[str]:
    if ranks is None:
        return
    silent = set(ranks.unresponsive) - set(() if last is None else last.unresponsive)
    if silent:
        yield f"no sign of rank {ranges_text(silent)} any more"
    ended = {} if last is None else {rank.who.rank: rank.ended_by for rank in last.ranks}
    for rank in ranks.ranks:
        if rank.ended_by and not ended.get(rank.who.rank):
            yield f"rank {rank.who.rank} was ended by {rank.ended_by}"


def watch_lines(run: WatchedRun, events: Sequence[str], layout: Layout, height: int | None = None) -> list[str]:
    """Return the picture of a run; at most ``height`` lines, of which the last events keep some."""
    snapshot = run.snapshot
    lines = [
        *_now(run, layout),
        *title_lines(snapshot, run.program, layout),
        *answer_of(snapshot, run.findings, layout, Origin())[0],
    ]
    of_machine = (*machine_lines(snapshot), *exchange_lines(snapshot), *attempt_lines(snapshot))
    for block in (
        share_rows(snapshot, layout),
        [line for text in _ranks(snapshot) for line in layout.wrap(text)],
        rank_lines(snapshot, layout),
        loader_lines(snapshot, layout),
        [line for text in of_machine for line in layout.wrap(text)],
    ):
        if block:
            lines += ["", *block]
    # The end of a sentence goes first; ``shortened`` is for names, whose end identifies them.
    shown = [line if len(line) <= layout.width else f"{line[: layout.width - 2]}.." for line in events]
    if height is None:
        return [*lines, "", "events", *shown]
    kept = min(len(shown), max(FEWEST_EVENTS, height - len(lines) - 2))
    room = height - kept - 2
    if len(lines) > room:
        lines = [*lines[: max(0, room - 1)], f"... {len(lines) - room + 1} more lines on a taller terminal"]
    return [*lines, "", "events", *shown[len(shown) - kept :]][:height]


def _now(run: WatchedRun, layout: Layout) -> Iterator[str]:
    age = f", figures {_age(run)}" if _age(run) else ""
    yield f"{shortened(run.folder, layout.width - len(run.state) - len(age) - 2)}: {run.state}{age}"
    if run.recent_step_s is None:
        yield "no step so far"
        return
    shares = largest_shares(run.recent_shares or {})
    left = left_text(run.snapshot) if run.state != ENDED else ""
    yield from layout.wrap("; ".join(filter(None, (f"last steps: {time_text(run.recent_step_s)} each", left, shares))))
    yield sparkline(run.over_steps, layout)


def _age(run: WatchedRun) -> str:
    """Return how old the figures of a run are that has not ended: "3 s old"; "" if they are of this second."""
    seconds = round(run.written_s_ago)
    if run.state == ENDED or not seconds:
        return ""
    return f"{f'{seconds} s' if seconds < S_PER_MINUTE else duration_text(seconds)} old"


def sparkline(points: Sequence[tuple[int, float, float]], layout: Layout) -> str:
    """Return step time over the steps as one line, from the first step to the last."""
    means = [seconds / count for count, _, seconds in points]
    counts = [count for count, _, _ in points]
    if not means:
        return ""
    label = f" {ms_text(min(means))} to {ms_text(max(means))}"
    columns = min(len(means), max(5, max(MIN_WIDTH, layout.width) - len(label) - len("steps ")))
    edges = [round(at * len(means) / columns) for at in range(columns + 1)]
    values = [
        sum(mean * count for mean, count in zip(means[a:b], counts[a:b], strict=True)) / sum(counts[a:b])
        for a, b in pairwise(edges)
    ]
    levels = LEVELS if layout.is_unicode else ASCII_LEVELS
    low, high = min(values), max(values)
    scale = (len(levels) - 2) / (high - low) if high > low else 0.0
    drawn = "".join(levels[1 + round((value - low) * scale)] for value in values)
    return f"steps {drawn}{label}"


def _ranks(snapshot: Snapshot) -> Iterator[str]:
    """Yield where each rank is, those with the most work first."""
    if snapshot.ranks is None:
        return
    ranks = sorted(snapshot.ranks.ranks, key=lambda rank: -(rank.work_over_best or 0.0))
    for rank in ranks[:MOST_RANKS]:
        parts = [f"step {rank.steps}"]
        parts += [f"{ms_text(rank.step_s)} each"] if rank.step_s is not None else []
        parts += [f"{ms_text(rank.work_s)} of work"] if rank.work_s is not None else []
        parts += [f"{rank.work_over_best:.2f}x the least"] if rank.work_over_best is not None else []
        parts += [f"in {' > '.join(map(name_of, rank.inside))}"] if rank.inside and not rank.is_final else []
        yield f"{rank.who}: {', '.join(parts)}"
    if len(ranks) > MOST_RANKS:
        yield f"and {len(ranks) - MOST_RANKS} more ranks"


def progress_line(run: WatchedRun, width: int) -> str:
    """Return one line on the last steps."""
    rate = 1 / run.recent_step_s if run.recent_step_s else None
    left = left_text(run.snapshot) if run.state != ENDED else ""
    detail = ", ".join(filter(None, (left, largest_shares(run.recent_shares or {}), _age(run))))
    return status_text(run.snapshot.steps, rate, detail, width)
