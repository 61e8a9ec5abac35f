"""What is seen of other ranks where sections are written by hand: DDP's exchanges of gradients, and meetings."""

import sys
from typing import Any, Final

from training_profiler.instrumentation.patches import ddp
from training_profiler.instrumentation.patches.collectives import FUNCTIONAL, give_back_to_dynamo, replace_all
from training_profiler.instrumentation.patches.ddp import GradientSync
from training_profiler.instrumentation.patches.dynamo import DYNAMO, hide_from_dynamo
from training_profiler.instrumentation.patches.sync_points import BY_HOST, BY_TENSORS, SyncPoints, noted
from training_profiler.instrumentation.patching import Patches, after_import
from training_profiler.recording.section import Clock

WATCH_TO_COME: Final = "TorchFinder"  # waits for torch as this does, and sees far more


class RankPatches:
    """The few seams of a process whose training writes its sections itself. Torch is not imported for them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._patches: Patches | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.meetings = SyncPoints()
        self.exchange = GradientSync(self.meetings, self._clock)

    def install(self) -> None:
        """Put them in place, now or when the program has imported torch."""
        if self._patches is None and not any(type(one).__name__ == WATCH_TO_COME for one in sys.meta_path):
            self._patches = Patches()
            if hasattr(sys.modules.get("torch"), "distributed"):
                self._replace()
            else:
                self._patches.keep(after_import("torch", self._replace))

    def finish(self) -> None:
        """Read what is still to be had, at the end of the run, and take out all seams."""
        self.exchange.read()
        self.uninstall()

    def notes(self) -> list[str]:
        """Return sentences on what was seen, for the report."""
        note = self.exchange.note()
        return [] if note is None else [note]

    def uninstall(self) -> None:
        """Take them out, exactly; what was seen stays."""
        if self._patches is not None:
            self._patches.undo()
            self._patches = None

    def in_child(self) -> None:
        """Take them out and forget what was seen: in a forked process it is the parent's."""
        self.uninstall()
        self._begin_anew()

    def _replace(self) -> None:
        patches = self._patches
        if patches is None:
            return
        try:
            torch = sys.modules["torch"]
            ddp.install(patches, self, torch)
            if torch.distributed.is_available():
                self._note_meetings(patches, torch)
        except Exception as error:
            patches.undo()
            self.exchange.why_not = f"{type(error).__name__}: {error}"

    def _note_meetings(self, patches: Patches, torch: Any) -> None:
        is_compiling = torch.compiler.is_dynamo_compiling
        originals = {}

        def make(name: str, original: Any) -> Any:
            module = torch.distributed.distributed_c10d
            replacement = noted(lambda: self.meetings, module, name, original, is_compiling)
            originals[replacement] = original
            return replacement

        replace_all(patches, torch, (*BY_HOST, *BY_TENSORS), make)
        _when_imported(patches, FUNCTIONAL, lambda: give_back_to_dynamo(sys.modules[FUNCTIONAL], originals))
        _when_imported(patches, DYNAMO, hide_from_dynamo)


def _when_imported(patches: Patches, name: str, action: Any) -> None:
    if name in sys.modules:
        action()
    else:
        patches.keep(after_import(name, action))
