"""Changes for tests of trials; the process of a trial imports this module by its name."""

import time
from collections.abc import Iterable

from training_profiler.diagnosis.finding import Losses
from training_profiler.trials.treatment import Install, Treatment, TrialFacts


def slept(factor: float) -> Install:
    """Return what makes the program's pauses shorter or longer, by a known factor."""
    return lambda patches, torch: patches.replace(time, "sleep", lambda sleep: lambda seconds: sleep(factor * seconds))


def other_losses(patches, torch):
    """Add a little to each loss."""
    patches.replace(
        torch.nn.functional, "mse_loss", lambda loss: lambda *args, **kwargs: loss(*args, **kwargs) * (1 + 1e-6)
    )


def fail(patches, torch):
    raise RuntimeError("no such kernel")


TREATMENTS = (
    Treatment("sleep=0.5", "time.sleep(half)", Losses.EXACT, "", slept(0.5)),
    Treatment("sleep=2", "time.sleep(double)", Losses.EXACT, "", slept(2.0)),
    Treatment("nothing", "nothing", Losses.EXACT, ""),
    Treatment("losses", "losses*(1+1e-6)", Losses.CLOSE, "", other_losses),
    Treatment("fails", "fails", Losses.EXACT, "", fail),
)
EXCLUSIVE = ()


def suggested(findings: Iterable[object], facts: TrialFacts) -> list[Treatment]:
    """Return the changes that can be applied."""
    return [each for each in TREATMENTS if each.name != "fails"]
