"""Changes for tests of trials; the process of a trial imports this module by its name."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training_profiler.findings.losses import Losses
from training_profiler.instrumentation.patching import Patches
from training_profiler.trials.treatments.treatment import Treatment, TrialFacts


@dataclass(frozen=True)
class Nothing(Treatment):
    """Changes nothing."""


@dataclass(frozen=True)
class ShorterSleep(Treatment):
    """Makes the program's pauses shorter, by a known part."""

    factor: float = 1.0

    def install(self, patches: Patches, torch: Any) -> None:
        patches.replace(time, "sleep", lambda sleep: lambda seconds: sleep(self.factor * seconds))


@dataclass(frozen=True)
class OtherLosses(Treatment):
    """Adds a little to each loss."""

    def install(self, patches: Patches, torch: Any) -> None:
        patches.replace(
            torch.nn.functional, "mse_loss", lambda loss: lambda *args, **kwargs: loss(*args, **kwargs) * (1 + 1e-6)
        )


@dataclass(frozen=True)
class Fails(Treatment):
    """Cannot be applied."""

    def install(self, patches: Patches, torch: Any) -> None:
        raise RuntimeError("no such kernel")


TREATMENTS = (
    ShorterSleep("sleep*0.5", "sleep", "time.sleep(half)", Losses.EXACT, factor=0.5),
    ShorterSleep("sleep*2", "sleep", "time.sleep(double)", Losses.EXACT, factor=2.0),
    Nothing("nothing", "nothing", "nothing", Losses.EXACT),
    OtherLosses("losses", "losses", "losses*(1+1e-6)", Losses.CLOSE),
    Fails("fails", "fails", "fails", Losses.EXACT),
)
EXCLUSIVE = ()


def suggested(findings: Iterable[object], facts: TrialFacts) -> list[Treatment]:
    """Return the changes that can be applied."""
    return [each for each in TREATMENTS if each.name != "fails"]
