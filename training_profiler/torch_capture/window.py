"""One window: torch.profiler at work between two ends of steps, on the main thread."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from training_profiler.device.backends import find_accelerator
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.section import Clock
from training_profiler.torch_capture.conflicts import active_profiler, before_others_start, stop_in_child
from training_profiler.torch_capture.trace_file import MARK, MARKS, Span, SpanBook

ACTIVITIES: Final = {"cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA"}
STEP: Final = "ProfilerStep#"


class Window:
    """Records from ``start`` to ``stop``.

    Args:
        first: its first step, counted from 1.
        last: its last one, if nothing ends it before.
    """

    def __init__(self, torch: Any, clock: Clock, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.ends_ns: list[int] = []  # of its steps
        self.must_end: str | None = None  # why it is to end before its time
        self.marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self.begin_ns = 0
        self.spans: SpanBook | None = None
        self.profile: Any = None
        self._torch, self._clock = torch, clock
        self._patches = Patches()

    @property
    def is_full(self) -> bool:
        """Whether its last step has ended."""
        return self.first + len(self.ends_ns) > self.last

    def keep_spans(self, spans: SpanBook) -> None:
        """Have the sections that ``spans`` collects written beside torch's own events."""
        self.spans = spans

    def start(self, give_way: Callable[[], None]) -> str | None:
        """Begin to record; ``give_way`` is called before a profiler starts, this one too.

        Returns:
            Why not, where a profiler of the program's is at work.
        """
        before_others_start(self._patches, self._torch, give_way)
        # Not before: one that starts on another thread after this look finds us in its way.
        why_not = active_profiler(self._torch)
        if why_not is not None:
            self._patches.undo()
            return why_not
        profiler = self._torch.profiler
        self.profile = profiler.profile(activities=self._activities(), record_shapes=True, profile_memory=True)
        self.profile.start()
        self._mark(self.marks[0])
        self.begin_ns = self._clock()
        return None

    def _activities(self) -> list[Any]:
        kinds = self._torch.profiler.ProfilerActivity
        activities = [kinds.CPU]
        found = find_accelerator()  # asking torch what it supports would initialise one that nobody uses yet
        if found is not None:
            kind = getattr(kinds, ACTIVITIES.get(found.kind, "PrivateUse1"), None)
            if kind is not None and kind in self._torch.profiler.supported_activities():
                activities.append(kind)
        return activities

    def _mark(self, marks: list[tuple[int, int]]) -> None:
        for _ in range(MARKS):
            before_ns = self._clock()
            with self._torch.profiler.record_function(f"{MARK} {before_ns}"):
                pass
            marks.append((before_ns, self._clock()))

    def stop(self) -> None:
        """Record no more; what was recorded can be written."""
        self._mark(self.marks[1])
        try:
            self.profile.stop()
        finally:
            self._patches.undo()

    def discard(self) -> None:
        """Record no more, and forget what was, in whatever state it is."""
        if self.profile is not None:
            with contextlib.suppress(Exception):
                self.profile.stop()
            self.profile = None
        self._patches.undo()

    def after_fork_in_child(self) -> None:
        """Forget it: in a forked child it is the parent's."""
        self._patches.undo()
        if self.profile is not None:
            stop_in_child(self._torch, self.profile)

    def steps_as_spans(self) -> list[Span]:
        """Return its steps, named as torch names them, by the run's own numbers."""
        begins_ns = [self.begin_ns, *self.ends_ns[:-1]]
        return [
            Span(f"{STEP}{number}", begin_ns, end_ns)
            for number, (begin_ns, end_ns) in enumerate(zip(begins_ns, self.ends_ns, strict=True), self.first)
        ]

    def file_name(self, rank: int, attempt: int) -> str:
        """Return what its trace is called."""
        steps = f"step{self.first}-{self.first + len(self.ends_ns) - 1}"
        return f"{steps}-rank{rank}{f'-attempt{attempt}' if attempt else ''}.pt.trace.json.gz"


def free_name(folder: Path, name: str) -> Path:
    """Return ``folder/name``, or that with a number in it where there is such a file: another process wrote it."""
    stem, _, ending = name.partition(".")
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.{ending}"
    return path
