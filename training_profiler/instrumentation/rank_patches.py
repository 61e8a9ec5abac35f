"""Patches for manually instrumented trainings: tracebacks, DDP's gradient synchronization, sync points of the ranks."""

import sys
from typing import Final

from training_profiler.instrumentation.context import Install, PatchContext
from training_profiler.instrumentation.patches import ddp, dynamo, excepthook, sync_points
from training_profiler.instrumentation.patching import Patches, after_import
from training_profiler.recording.recorder import Recorder

AUTO_INSTRUMENTATION: Final = "TorchFinder"
RANK_PATCHES: Final[tuple[Install, ...]] = (ddp.install, sync_points.install, dynamo.install)


def has_finder() -> bool:
    """Return whether the bootstrap's finder waits for torch, and will have all patches installed."""
    return any(type(finder).__name__ == AUTO_INSTRUMENTATION for finder in sys.meta_path)


class RankPatches:
    """The few patches of a process whose sections are manual. They do not import torch.

    ``Instrumentation`` is a class of its own: it detects loops, steps and epochs, and its patches fail one by one.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.context: Final = PatchContext(recorder, lambda: None, self._disable)
        self._patches: Patches | None = None

    def install(self) -> None:
        """Install the patches, now or when the program has imported torch."""
        if self._patches is None:
            self._patches = Patches()
            excepthook.install(self._patches, self.context, None)
            if has_finder():
                return
            if hasattr(sys.modules.get("torch"), "distributed"):
                self._install_now()
            else:
                self._patches.keep(after_import("torch", self._install_now))

    def _install_now(self) -> None:
        if self._patches is not None:
            self.context.guarded(self._install_all)

    def _install_all(self) -> None:
        assert self._patches is not None
        torch = sys.modules["torch"]
        self.context.use_compiler_of(torch)
        for install in RANK_PATCHES:
            install(self._patches, self.context, torch)

    def _disable(self, error: Exception) -> None:
        if self._patches is not None:
            self._patches.undo()
        self.context.gradient_sync.stop(error)

    def close(self) -> None:
        """Read the last statistics at the end of the run, and remove the patches."""
        self.context.gradient_sync.read()
        self.uninstall()

    def notes(self) -> list[str]:
        """Return sentences on failed measurements."""
        note = self.context.gradient_sync.note()
        return [] if note is None else [note]

    def uninstall(self) -> None:
        """Remove the patches; what they recorded stays."""
        if self._patches is not None:
            self._patches.undo()
            self._patches = None

    def after_fork_in_child(self) -> None:
        """Remove the patches and discard what they recorded: in a forked process it is the parent's."""
        self.uninstall()
        self.context.reset_rank_observations()
