"""Passes without gradients before the training begins: features made ahead of time look like a first validation."""

from typing import NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass
from training_profiler.snapshot.program import PassesBefore


class _Passes(NamedTuple):
    """Evaluations of one loader."""

    made: tuple[str, str]  # the class of its data set, and the line that made it
    evaluations: int
    ns: int


class FirstEvaluations:
    """Evaluations before the first training event, by their loaders, and which loaders are evaluated later.

    A loader that is made again for each evaluation may not be recognized, so what the same line makes later counts as
    it.
    """

    def __init__(self) -> None:
        self._has_trained = False
        self._before: dict[int, _Passes] = {}  # by the id of a loader
        self._later: set[int | tuple[str, str]] = set()
        self._latest: tuple[int, tuple[str, str]] | None = None  # the loader under way, until the training begins

    def training_begins(self) -> None:
        """Handle a training event."""
        self._has_trained = True

    def passes(self, loader_pass: LoaderPass) -> None:
        """Handle a pass that turns out to be an evaluation."""
        loader, counts = loader_pass.loader_id, loader_pass.counts
        arguments = None if counts is None else counts.arguments
        made = ("", "") if arguments is None else (arguments.data_set, arguments.made_at)
        if self._has_trained:
            self._later.update((loader, made))
        else:
            self._latest = (loader, made) if loader else None

    def ended(self, ns: int) -> None:
        """Handle the end of an evaluation that took ``ns``."""
        latest, self._latest = self._latest, None
        if latest is not None:
            loader, made = latest
            before = self._before.get(loader, _Passes(made, 0, 0))
            self._before[loader] = _Passes(made, before.evaluations + 1, before.ns + ns)

    def facts(self) -> PassesBefore | None:
        """Return the evaluations before the training over loaders that are not evaluated later; None without any."""
        found = [each for loader, each in list(self._before.items()) if not {loader, each.made} & self._later]
        if not found:
            return None
        return PassesBefore(sum(each.evaluations for each in found), sum(each.ns for each in found) / NS_PER_S)
