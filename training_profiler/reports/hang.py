"""Where the ranks of a training are that makes no steps: who is elsewhere, and who may wait for whom."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final, NamedTuple

from training_profiler.base.sections import BACKWARD_PASS, GRAPH_REPLAY, OPTIMIZER_STEP, SYNCHRONIZATION, name_of
from training_profiler.base.units import NS_PER_S, counted
from training_profiler.model.ranks import RankStacks, StackFrame, ThreadStack
from training_profiler.reports.layout import sentence
from training_profiler.reports.ranks import of_ranks

MOST_PLACES: Final = 4  # in one line
MOST_IDLE: Final = 3  # frames of a thread that is not the training's and only waits
FOR_RANKS: Final = "the other ranks"
# By the innermost frames: the end of the file, and the start of the function.
_WAITS: Final = (
    ("torch/distributed/", "", FOR_RANKS),
    ("torch/utils/data/dataloader.py", "_try_get_data", "the workers of a DataLoader"),
    ("torch/utils/data/dataloader.py", "_get_data", "the workers of a DataLoader"),
    ("subprocess.py", "", "a child process"),
    ("multiprocessing/popen_fork.py", "", "a child process"),
    ("multiprocessing/connection.py", "", "another process"),
    ("multiprocessing/queues.py", "", "another process"),
    ("concurrent/futures/", "", "another thread or process"),
    ("queue.py", "get", "another thread"),
    ("queue.py", "put", "another thread"),
    ("threading.py", "wait", "another thread"),
    ("threading.py", "_wait_for", "another thread"),
    ("threading.py", "join", "another thread"),
    ("socket.py", "", "the network"),
    ("ssl.py", "", "the network"),
)
_INNERMOST: Final = 12  # frames below the user's line that show what it waits for
# Where DDP and FSDP exchange gradients, in C++ or in a graph.
_MAY_SYNCHRONIZE: Final = (BACKWARD_PASS, OPTIMIZER_STEP, GRAPH_REPLAY)


class WaitingPlace(NamedTuple):
    """Where a rank's training thread is."""

    line: str  # of the user's code: "train.py:88 train"
    section: str
    waits_for: str  # "" where it computes, or where that is unknown


class Group(NamedTuple):
    """The ranks that are at the same place."""

    place: WaitingPlace
    ranks: tuple[int, ...]
    host: str  # of the first of them


def place_of(stacks: RankStacks) -> WaitingPlace:
    """Return where the training thread of a rank is."""
    thread = stacks.training
    if thread is None:
        return WaitingPlace("a training thread that has ended", "", "")
    frame = thread.users_frame or (thread.frames[-1] if thread.frames else None)
    line = "no Python code" if frame is None else frame_text(frame)
    return WaitingPlace(line, thread.sections[-1] if thread.sections else "", waits_for(thread))


def frame_text(frame: StackFrame) -> str:
    """Return a frame as "train.py:88 train"."""
    return f"{frame.file}:{frame.line} {frame.function}"


def waits_for(thread: ThreadStack) -> str:
    """Return what a thread waits for, by the library frames that its user's line called; "" if they do not show it."""
    frames = takewhile(lambda frame: not frame.is_users, reversed(thread.frames[-_INNERMOST:]))
    inner = [(f"/{frame.file}", frame.function.rpartition(".")[2]) for frame in frames]
    # A DataLoader waits in a queue: the cause comes before its mechanism.
    for file, function, what in _WAITS:
        for path, called in inner:
            is_file = f"/{file}" in path if file.endswith("/") else path.endswith(f"/{file}")
            if is_file and called.startswith(function):
                return what
    return FOR_RANKS if thread.sections and thread.sections[-1] == SYNCHRONIZATION else ""


def groups_of(stacks: Iterable[RankStacks]) -> list[Group]:
    """Return the ranks by place: first those that do not wait for others, and of these the fewest."""
    at: dict[WaitingPlace, list[RankStacks]] = {}
    for each in stacks:
        at.setdefault(place_of(each), []).append(each)
    groups = [Group(place, tuple(each.rank for each in ranks), ranks[0].host) for place, ranks in at.items()]
    return sorted(groups, key=lambda group: (group.place.waits_for == FOR_RANKS, len(group.ranks), group.ranks))


def where_text(stacks: Sequence[RankStacks], is_alone: bool) -> str:
    """Return where the ranks are, in one line; ``is_alone``: the training has a single rank."""
    groups = groups_of(stacks)
    if is_alone:
        return "".join(_at(group.place, FOR_RANKS) for group in groups[:1])
    if len(groups) == 1:
        who = "the only rank that answered" if len(stacks) == 1 else f"all {len(stacks)} ranks that answered"
        return f"{who} at {_at(groups[0].place, FOR_RANKS)}"
    elsewhere = of_ranks(groups[0].ranks)
    shown = groups[:MOST_PLACES]
    parts = [f"{_who(group, groups)} at {_at(group.place, '' if group is groups[0] else elsewhere)}" for group in shown]
    more = sum(len(group.ranks) for group in groups[MOST_PLACES:])
    return "; ".join([*parts, *([f"{more} more ranks at {len(groups) - MOST_PLACES} other places"] if more else [])])


def _who(group: Group, groups: Sequence[Group]) -> str:
    """Return the ranks of a group; with the host if it is one rank and not all are on one host."""
    has_hosts = len({each.host for each in groups}) > 1
    return of_ranks(group.ranks) + (f" ({group.host})" if has_hosts and len(group.ranks) == 1 else "")


def _at(place: WaitingPlace, ranks: str) -> str:
    """Return the place and what its ranks wait for, such as the other ``ranks``."""
    text = place.line + (f" (in {name_of(place.section)})" if place.section else "")
    if place.waits_for == FOR_RANKS:
        return f"{text}, waiting for {ranks or FOR_RANKS}"
    if place.waits_for:
        return f"{text}, waiting for {place.waits_for}"
    if ranks and ranks != FOR_RANKS and place.section in _MAY_SYNCHRONIZE:
        return f"{text}, which may wait for {ranks}"
    return text


def render_stacks(stacks: Sequence[RankStacks], world_size: int, missing: Sequence[str], now_s: float) -> str:
    """Return the stacks of all ranks as text, at ``now_s`` on the wall clock; equal stacks are shown once.

    ``missing`` are sentences on the ranks that did not answer.
    """
    lines, groups = list[str](), groups_of(stacks)
    if stacks:
        taken_s = max(each.wall_ns for each in stacks) / NS_PER_S
        ago = f", {now_s - taken_s:.0f} s ago" if now_s - taken_s >= 10 else ""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(taken_s))
        of = f"{len(stacks)} of {world_size} ranks" if world_size > 1 else "the training"
        lines = [f"Stacks of {of} at {when}{ago}", ""]
        if world_size == 1:
            lines.append(f"It is at {_at(groups[0].place, FOR_RANKS)}.")
        else:
            others = [FOR_RANKS if len(groups) == 1 else "", *[of_ranks(groups[0].ranks)] * (len(groups) - 1)]
            at = zip(groups, others, strict=True)
            lines += [f"{sentence(_who(group, groups))} at {_at(group.place, ranks)}" for group, ranks in at]
    lines += missing
    same: dict[tuple[ThreadStack, ...], list[RankStacks]] = {}
    for each in stacks:
        same.setdefault(tuple(replace(thread, since_s=None) for thread in each.threads), []).append(each)
    order = {rank: place for place, group in enumerate(groups) for rank in group.ranks}
    for ranks in sorted(same.values(), key=lambda ranks: (order[ranks[0].rank], ranks[0].rank)):
        lines += ["", *_rank_lines(ranks, world_size)]
    return "\n".join(lines) + "\n"


def _rank_lines(ranks: Sequence[RankStacks], world_size: int) -> list[str]:
    """Return the threads of ranks with the same stacks, the training's first."""
    first = ranks[0]
    title = f"{sentence(of_ranks([each.rank for each in ranks]))}, process " if world_size > 1 else "Process "
    steps = "" if first.steps is None else f", after {counted(first.steps, 'step')}"
    lines = [f"{title}{first.pid} on {first.host}{' (the first of them)' * (len(ranks) > 1)}{steps}"]
    for thread in sorted(first.threads, key=lambda thread: not thread.is_training):
        waits = waits_for(thread)
        since = "" if thread.since_s is None else f" since {thread.since_s:.0f} s"
        inside = f", in {' > '.join(thread.sections)}{since}" if thread.sections else ""
        kind = "training thread" if thread.is_training else "thread"
        lines.append(f"  {kind} {thread.name}{inside}{f', waiting for {waits}' if waits else ''}:")
        is_idle = not thread.is_training and waits and thread.users_frame is None
        frames = thread.frames[-MOST_IDLE:] if is_idle else thread.frames
        lines += [f"    {frame_text(frame)}" for frame in frames] or ["    (no Python code)"]
    return lines
