"""The CUDA graphs that a program captures, and what it did meanwhile: a replay of a graph does that again."""

import contextlib
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from training_profiler.recording.object_identity import forgetting


class CapturedGraph:
    """What a program did while it captured ``graph``."""

    def __init__(self, graph: Any) -> None:
        self.graph_id: Final = id(graph)
        self._has_gradients = False
        # The id of each optimizer that updated, in order, and a function that returns None once it is gone.
        self._optimizers: dict[int, Callable[[], Any]] = {}
        self._updating: list[int] = []  # ids of the optimizers whose updates are under way, outermost first

    @property
    def trains(self) -> bool:
        """Whether a replay computes gradients for parameters, or updates them."""
        return self._has_gradients or bool(self._optimizers)

    def optimizers(self) -> list[Any]:
        """Return the optimizers that a replay updates with, each once; this object in place of those that are gone."""
        found = [reference() for reference in self._optimizers.values()]
        alive = [optimizer for optimizer in found if optimizer is not None]
        return alive if len(alive) == len(found) else [*alive, self]

    def gradients_begin(self) -> None:
        """Note a backward pass."""
        self._has_gradients = True

    def update_begins(self, optimizer: Any) -> None:
        """Note an optimizer update. One inside another, such as that of a base class, is a part of it."""
        if not self._updating:
            self._optimizers.setdefault(id(optimizer), weakref.ref(optimizer))
        self._updating.append(id(optimizer))

    def update_ends(self, optimizer: Any) -> None:
        """Note the end of an update."""
        while self._updating and self._updating.pop() != id(optimizer):
            pass

    def add(self, graph: "CapturedGraph") -> None:
        """Note the replay of another graph, which becomes a part of this one."""
        self._has_gradients |= graph._has_gradients
        for key, reference in graph._optimizers.items():
            self._optimizers.setdefault(key, reference)


class GraphCaptures:
    """The captures under way on all threads, and the graphs of those that are over."""

    def __init__(self) -> None:
        self.under_way: Final[dict[int, CapturedGraph]] = {}  # by thread
        self.has_replayed_updates = False
        self._training: dict[int, tuple[Callable[[], Any], CapturedGraph]] = {}  # by the id of a graph that trains

    def begin(self, graph: Any) -> None:
        """Note that the calling thread captures ``graph`` from now on."""
        self.under_way[get_ident()] = CapturedGraph(graph)

    def end(self, graph: Any, *, has_failed: bool) -> int:
        """Note that ``graph`` was captured, or could not be; return the thread that began, 0 if that was not seen."""
        key, training = id(graph), self._training
        thread = next((thread for thread, capture in list(self.under_way.items()) if capture.graph_id == key), 0)
        captured = self.under_way.pop(thread, None)
        training.pop(key, None)  # an earlier capture
        if captured is not None and captured.trains and not has_failed:
            with contextlib.suppress(TypeError):  # a class of graphs that cannot be referenced weakly
                training[key] = weakref.ref(graph, forgetting(training, key)), captured
        return thread

    def on_this_thread(self) -> CapturedGraph | None:
        """Return what the calling thread captures; None if it captures nothing."""
        return self.under_way.get(get_ident())

    def training_graph(self, graph: Any) -> CapturedGraph | None:
        """Return what was captured in ``graph``; None if it does not train, or if its capture was not seen."""
        found = self._training.get(id(graph))
        return found[1] if found is not None and found[0]() is graph else None

    def note_replayed_update(self) -> None:
        """Remember that steps are replayed: Python does not see what is in them."""
        self.has_replayed_updates = True
