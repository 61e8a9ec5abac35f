"""Finds graphs of earlier steps that something keeps, such as a list of losses: the graph of each loss is marked.

A mark is a small object among the metadata of one node of autograd's graph, which torch keeps for anomaly detection. It
lives as long as the node. A tensor that is weakly referenced would not do: ``total += loss`` keeps the graph alone.
"""

import contextlib
import functools
import weakref
from typing import Any, Final

from training_profiler.inspections.kept_losses import lines_that_keep
from training_profiler.instrumentation.call_sites import CallSites
from training_profiler.safety.fault_guard import BackgroundThread
from training_profiler.snapshot.program import CallSite, KeptGraphs

MARKED: Final = 16  # steps whose graphs are marked
AFTER: Final = 8  # steps later, a graph that is alive is kept
DEPTH: Final = 8  # nodes behind the loss, where the graph of the model's output lies
KEY: Final = "training_profiler"
_LEAF: Final = "AccumulateGrad"  # a parameter's own node


class _Mark:
    """Lives as long as a node of a graph."""

    __slots__ = ("__weakref__",)


class GraphMarks:
    """Marks the graphs of some early steps, one a step."""

    def __init__(self, calls: CallSites) -> None:
        self._calls = calls
        self._marks: list[tuple[int, list[weakref.ref[_Mark]]]] = []  # by update, those that are not old enough
        self._optimizer = self._updates = 0
        self._followed = self._kept = 0
        self._site: CallSite | None = None
        self._place = ""  # the lines that keep them, once they are found

    @property
    def is_over(self) -> bool:
        """Whether enough graphs were followed."""
        return self._followed >= MARKED

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> None:
        """Mark the graph of a loss, if it is the first one since the last update. Does not raise."""
        with contextlib.suppress(Exception):  # of tensors that are not torch's own
            if self._followed + len(self._marks) < MARKED and (not self._marks or self._marks[-1][0] < self._updates):
                marks = _marked(kwargs.get("tensors", args[0] if args else ()))
                if marks:
                    self._marks.append((self._updates, marks))
                    self._site = self._site or self._calls.site(frame)

    def update_ends(self, optimizer: Any) -> None:
        """Check whether a graph that is old by now is alive. Of several optimizers, the first one counts."""
        self._optimizer = self._optimizer or id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        self._updates += 1
        while self._marks and self._marks[0][0] <= self._updates - AFTER:
            _, marks = self._marks.pop(0)
            self._followed += 1
            self._kept += any(mark() is not None for mark in marks)
            if self.is_over and self._kept:
                self._look_for_lines()

    def _look_for_lines(self) -> None:
        """Read the program's source on a thread of its own: the disk that it is on may not respond."""
        if self._site is not None:
            work = functools.partial(self._name_lines, self._site)
            with contextlib.suppress(RuntimeError):  # no thread can be started
                BackgroundThread("kept losses", lambda thread: work(), lambda part, begin: begin(), "").start()

    def _name_lines(self, site: CallSite) -> None:
        self._place = lines_that_keep(site)

    def facts(self) -> KeptGraphs | None:
        """Return what was found so far; None where no graph is old enough."""
        if not self._followed:
            return None
        backward = "" if self._site is None else self._site.place
        return KeptGraphs(self._followed, self._kept, AFTER, self._place, backward)


def _marked(tensors: Any) -> list[weakref.ref[_Mark]]:
    """Mark the node of the loss and one behind it; a node that is marked already belongs to no single step."""
    node, marks = getattr(tensors[0] if isinstance(tensors, (list, tuple)) else tensors, "grad_fn", None), []
    last = first = node
    for _ in range(DEPTH):
        behind = None if last is None else next((each for each, _ in last.next_functions if each is not None), None)
        if behind is None or _LEAF in behind.name():
            break
        last = behind
    for each in (first, last):
        if each is not None and KEY not in each.metadata:
            each.metadata[KEY] = mark = _Mark()
            marks.append(weakref.ref(mark))
    return marks
