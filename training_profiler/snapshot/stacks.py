"""Where the threads of a rank are at one moment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A function that runs, and its line."""

    file: str
    line: int
    function: str
    is_users: bool  # whether it is the user's code and not a library's


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread, outermost frame first."""

    name: str
    frames: tuple[StackFrame, ...]
    is_training: bool = False
    sections: tuple[str, ...] = ()  # that it is in, outermost first
    since_s: float | None = None  # time in the innermost section

    @property
    def users_frame(self) -> StackFrame | None:
        """The innermost frame of the user's code; None without one."""
        return next((frame for frame in reversed(self.frames) if frame.is_users), None)


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of all threads of a rank, without the profiler's own."""

    asked_ns: int  # when they were asked for, by the wall clock; identifies the request
    wall_ns: int
    rank: int
    host: str
    pid: int
    steps: int | None  # ended so far; None where its Python could not answer
    threads: tuple[ThreadStack, ...] = ()

    @property
    def training(self) -> ThreadStack | None:
        """The stack of the thread that trains; None where it has ended."""
        return next((thread for thread in self.threads if thread.is_training), None)
