"""One change that can be tried from outside, on an unedited program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training_profiler.findings.losses import Losses as Losses
from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import CallFacts
from training_profiler.trials.edits import Edit
from training_profiler.trials.facts import TrialFacts as ProgramFacts


class DoesNotApplyError(Exception):
    """A change has found nothing that it could change, which only the program itself shows; the message says why."""


@dataclass(frozen=True)
class Treatment:
    """A change to try: where it makes sense, how it is applied, and its edit.

    ``losses`` is what to expect of them. A ceiling cannot be had by an edit: it bounds what an edit can bring.
    """

    name: str  # unique: "num_workers=2"
    family: str  # what --only takes: "num_workers"
    label: str  # for the table: "DataLoader(num_workers=2)"
    losses: Losses
    ceiling: bool = field(default=False, kw_only=True)
    effect: str = field(default="", kw_only=True)  # on the losses, in words

    def reason_not(self, facts: ProgramFacts) -> str | None:
        """Return in a few words why the change does not apply to this program here; None if it does."""
        return None

    @property
    def cycle(self) -> int:
        """The number of steps after which batches come in the same pattern: that of the workers that make them."""
        return 1

    def environment(self) -> Mapping[str, str]:
        """Return the variables that the trial's process needs. An LD_PRELOAD goes before one that is set."""
        return {}

    def apply(self) -> None:
        """Apply the change to this process, before the user's program runs. Imports torch."""
        import torch

        self.install(Patches(), torch)

    def install(self, patches: Patches, torch: Any) -> None:
        """Apply the change through ``patches``, which can undo it."""

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edits of the user's code that have the same effect; none if no edit has it.

        ``calls`` are those of the first run.
        """
        return []
