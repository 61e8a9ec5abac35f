"""One window of deep capture: torch.profiler records between two ends of steps on the main thread."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.section import Clock
from training_profiler.tables.backends import find_accelerator
from training_profiler.tables.sections import CLOCK_MARK
from training_profiler.torch_capture.conflicts import active_profiler, before_others_start, stop_after_fork_in_child
from training_profiler.torch_capture.trace_file import MARKS, CapturedSpans, WrittenSpan

STEP: Final = "ProfilerStep#"


class Window:
    """Records from ``start`` to ``stop``.

    Args:
        first: its first step, counted from 1.
        last: its last step unless it ends early.
    """

    def __init__(self, torch: Any, clock: Clock, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.ends_ns: list[int] = []  # of its steps
        self.must_end: str | None = None  # reason to end early
        self.marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self.begin_ns = 0
        self.spans: CapturedSpans | None = None
        self.profile: Any = None
        self._torch, self._clock = torch, clock
        self._patches = Patches()

    @property
    def is_full(self) -> bool:
        """Whether its last step has ended."""
        return self.first + len(self.ends_ns) > self.last

    def keep_spans(self, spans: CapturedSpans) -> None:
        """Add the sections in ``spans`` to the trace."""
        self.spans = spans

    def start(self, give_way: Callable[[], None]) -> str | None:
        """Start recording. ``give_way`` is called before any profiler starts, including this one.

        Returns:
            The reason if a profiler of the program is active, else None.
        """
        before_others_start(self._patches, self._torch, give_way)
        # Check after patching: a profiler that starts later on another thread calls ``give_way``.
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
        accelerator = find_accelerator()  # supported_activities() would initialise an unused accelerator
        if accelerator is not None:
            kind = getattr(kinds, accelerator.backend.profiler_activity or "", None)
            if kind is not None and kind in self._torch.profiler.supported_activities():
                activities.append(kind)
        return activities

    def _mark(self, marks: list[tuple[int, int]]) -> None:
        for _ in range(MARKS):
            before_ns = self._clock()
            with self._torch.profiler.record_function(f"{CLOCK_MARK} {before_ns}"):
                pass
            marks.append((before_ns, self._clock()))

    def stop(self) -> None:
        """Stop recording. The trace can be written."""
        self._mark(self.marks[1])
        try:
            self.profile.stop()
        finally:
            self._patches.undo()

    def discard(self) -> None:
        """Stop recording in any state and discard the trace."""
        if self.profile is not None:
            with contextlib.suppress(Exception):
                self.profile.stop()
            self.profile = None
        self._patches.undo()

    def after_fork_in_child(self) -> None:
        """Discard the window: it belongs to the parent process."""
        self._patches.undo()
        if self.profile is not None:
            stop_after_fork_in_child(self._torch, self.profile)

    def end_early(self, why: str) -> None:
        """End the window with the next step or sooner. ``why`` completes "ended ..."."""
        self.must_end = why

    def begin_a_step_later(self) -> None:
        """Leave out the first step: it had ended before the window opened."""
        self.first, self.last = self.first + 1, self.last + 1

    def release_profile(self) -> None:
        """Free torch's recorded events."""
        self.profile = None

    def steps_as_spans(self) -> list[WrittenSpan]:
        """Return its steps with torch's name and the run's step numbers."""
        begins_ns = [self.begin_ns, *self.ends_ns[:-1]]
        return [
            WrittenSpan(f"{STEP}{number}", begin_ns, end_ns)
            for number, (begin_ns, end_ns) in enumerate(zip(begins_ns, self.ends_ns, strict=True), self.first)
        ]

    def file_name(self, rank: int, attempt: int) -> str:
        """Return the name of its trace file."""
        steps = f"step{self.first}-{self.first + len(self.ends_ns) - 1}"
        return f"{steps}-rank{rank}{f'-attempt{attempt}' if attempt else ''}.pt.trace.json.gz"


def free_name(folder: Path, name: str) -> Path:
    """Return ``folder/name``, with a number added if another process has written that file."""
    stem, _, ending = name.partition(".")
    path, number = folder / name, 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}.{ending}"
    return path
