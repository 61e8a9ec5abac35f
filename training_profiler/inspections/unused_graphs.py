"""Finds forward passes that record a graph for gradients which no backward pass goes through."""

import contextlib
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final

from training_profiler.inspections.flop_eligibility import is_watched, plain_classes, why_not_counted
from training_profiler.inspections.frozen_forward import tensors_within
from training_profiler.instrumentation.loop_detection.modules import is_bare, parameters_within
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.snapshot.program import UnusedGraphs

MOST_OUTPUTS: Final = 16  # tensors that a call returns; with more its graph is taken for used
MOST_PLACES: Final = 64  # lines that call modules


class _Graph:
    """The graph of one call. Hooks of its last nodes alone hold it, so it ends with them."""

    __slots__ = ("finish", "is_used", "ns", "place")

    def __init__(self, place: str, finish: Callable[["_Graph"], None]) -> None:
        self.place = place
        self.finish = finish
        self.ns = 0  # what the call took
        self.is_used = False

    def reached(self, gradients: Any) -> None:
        """Handle a backward pass that reaches one of the nodes, as their hook."""
        self.is_used = True

    def took(self, ns: int) -> None:
        """Note what the call took."""
        self.ns = ns

    def __del__(self) -> None:
        """Report the graph when the last of its nodes is freed, on whichever thread."""
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.finish(self)


class GraphUse:
    """Follows the graphs of the outermost calls of some steps until they are freed.

    A graph is unused if it is freed and no backward pass reached an output of its call. One that still lives at the end
    counts as used. Nothing of the program is kept alive.

    Args:
        place_of: returns the user's line of a stack, "" if unknown.
        may_be_compiled: whether a hook could make dynamo compile a module again.
    """

    def __init__(self, place_of: Callable[[Any], str], may_be_compiled: Callable[[Any], bool]) -> None:
        self._place_of = place_of
        self._may_be_compiled = may_be_compiled
        self._handle: Any = None  # of the hook that sees the outputs of the call under way
        self._call: ModuleCall | None = None
        self._module: Callable[[], Any] = lambda: None
        self._thread = self._began_ns = 0
        self._graph: _Graph | None = None  # of the call under way
        self._place = self._kind = ""
        self._calls = self._unused = self._all_ns = self._unused_ns = 0
        self._places: dict[str, int] = {}  # ns of calls with an unused graph, by line and class
        self._is_over = False

    def begins(self, module: Any, caller: Any) -> None:
        """Handle an outermost call with gradients that is about to begin. Does not raise."""
        if self._call is not None or self._is_over:
            return
        self._unhook()
        with contextlib.suppress(Exception):  # of modules with methods of their own
            torch = sys.modules["torch"]
            # Hooks forbid the fast path of transformer layers, which is only taken where nothing is trained.
            if is_bare(module) or not any(parameter.requires_grad for parameter in parameters_within(module)):
                return
            if is_watched(torch) or why_not_counted(torch) is not None or self._may_be_compiled(module):
                return
            self._place, self._kind = self._place_of(caller), type(module).__name__
            self._module, self._thread = weakref.ref(module), get_ident()
            self._handle = module.register_forward_hook(self._returns)

    def begun(self, call: ModuleCall) -> None:
        """Take the call that was about to begin; one whose inner calls are recorded, too, may be a trainer's."""
        if self._handle is None or self._call is not None:
            return
        if call.is_explored:
            self._unhook()
            return
        self._call, self._began_ns = call, perf_counter_ns()

    def _returns(self, module: Any, inputs: Any, output: Any) -> None:
        """Put a hook on the nodes that made the outputs."""
        if self._call is None or get_ident() != self._thread or module is not self._module():
            return
        with contextlib.suppress(Exception):
            plain = plain_classes(sys.modules["torch"])
            tensors = list(tensors_within(output))
            if len(tensors) > MOST_OUTPUTS or any(type(tensor) not in plain for tensor in tensors):
                return
            # A change in place gives a view another node, and keeps that of its base in the graph.
            nodes = [(each if each._base is None else each._base).grad_fn for each in tensors if each.requires_grad]
            if not nodes or any(node is None for node in nodes):
                return
            graph = self._graph = _Graph(f"{self._kind}\n{self._place}", self._finish)
            for node in nodes:
                node.register_prehook(graph.reached)

    def ends(self, call: ModuleCall, now_ns: int) -> None:
        """Handle the end of an outermost call at ``now_ns``."""
        if self._call is not call:
            return
        self._call, graph, self._graph = None, self._graph, None
        self._unhook()
        if graph is not None:
            graph.took(now_ns - self._began_ns)
            self._calls += 1
            self._all_ns += graph.ns

    def _finish(self, graph: _Graph) -> None:
        if self._is_over or graph.is_used:
            return
        self._unused += 1
        self._unused_ns += graph.ns
        if graph.place in self._places or len(self._places) < MOST_PLACES:
            self._places[graph.place] = self._places.get(graph.place, 0) + graph.ns

    def stop(self) -> None:
        """Look at no more calls. Graphs that are still there count as used."""
        self._is_over, self._call, self._graph = True, None, None
        self._unhook()

    def _unhook(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def facts(self, steps: int) -> UnusedGraphs | None:
        """Return the calls of so many steps whose graph nothing used; None where there are none."""
        places = dict(self._places)  # another thread may free a graph meanwhile
        if not places or not self._all_ns or not steps:
            return None
        kind, _, place = max(places, key=lambda each: places[each]).partition("\n")
        part = min(1.0, self._unused_ns / self._all_ns)
        return UnusedGraphs(steps, self._unused, self._calls, part, kind, place)
