"""Stacks of ranks, for tests."""

from training_profiler.model.ranks import RankStacks, StackFrame, ThreadStack

ASKED_NS = 1_700_000_000_000_000_000


def frame(text: str, is_users: bool = True) -> StackFrame:
    """Return the frame of "train.py:88 train"."""
    place, _, function = text.partition(" ")
    file, _, line = place.rpartition(":")
    return StackFrame(file, int(line), function, is_users)


def training_at(line: str, *library: str, section: str = "", since_s: float | None = None) -> ThreadStack:
    """Return the training thread at a line of train.py's loop, in frames of libraries, outermost first."""
    frames = (frame("train.py:9 <module>"), frame(line), *(frame(each, is_users=False) for each in library))
    return ThreadStack("MainThread", frames, True, (section,) if section else (), since_s)


def stacks_of(rank: int, *threads: ThreadStack, asked_ns: int = ASKED_NS, host: str = "node0") -> RankStacks:
    return RankStacks(asked_ns, asked_ns + 1, rank, host, 100 + rank, 1200, threads)
