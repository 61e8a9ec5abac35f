"""Passes without gradients before the training begins: features made ahead of time look like a first validation."""

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass
from training_profiler.snapshot.program import PassesBefore
from training_profiler.units import NS_PER_S


class FirstEvaluations:
    """Evaluations before the first training event, by their loaders, and which loaders are evaluated later."""

    def __init__(self) -> None:
        self._has_trained = False
        self._before: dict[int, tuple[int, int]] = {}  # by the id of a loader: evaluations, ns
        self._later: set[int] = set()
        self._loader = 0  # the id of the one under way; 0 for none, or where the training has begun

    def training_begins(self) -> None:
        """Handle a training event."""
        self._has_trained = True

    def passes(self, loader_pass: LoaderPass) -> None:
        """Handle a pass that turns out to be an evaluation."""
        if self._has_trained:
            self._later.add(loader_pass.loader_id)
        else:
            self._loader = loader_pass.loader_id

    def ended(self, ns: int) -> None:
        """Handle the end of an evaluation that took ``ns``."""
        loader, self._loader = self._loader, 0
        if loader:
            count, before_ns = self._before.get(loader, (0, 0))
            self._before[loader] = count + 1, before_ns + ns

    def facts(self) -> PassesBefore | None:
        """Return the evaluations before the training over loaders that are not evaluated later; None without any."""
        found = [spent for loader, spent in list(self._before.items()) if loader not in self._later]
        if not found:
            return None
        counts, times_ns = zip(*found, strict=True)
        return PassesBefore(sum(counts), sum(times_ns) / NS_PER_S)
