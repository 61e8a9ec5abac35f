"""Finds gradients that no optimizer uses, and graphs for gradients which no backward pass goes through.

Such are the gradients of a teacher that is called with gradients, or of layers that stay.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from statistics import median
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final

from training_profiler.inspections.inspection import (
    Following,
    Inspection,
    SeenCall,
    UserProgram,
    first_values,
    is_watched,
    tensors_within,
    why_not_counted,
)
from training_profiler.instrumentation.loop_detection.modules import parameters_within, plain_classes
from training_profiler.model.program import UnusedGradients, UnusedGraphs

LOOKED_AT: Final = 4  # updates, after which parameters without an optimizer are looked up
MOST_MODULES: Final = 16  # that are called; with more nothing is known
MOST_PARAMETERS: Final = 2_000  # of all of them
# They keep copies of parameters that their optimizers update instead.
WITH_COPIES: Final = ("deepspeed", "apex", "colossalai", "megatron")
MOST_PLACES: Final = 64  # lines that call modules


class _Called:
    """A module that is called with gradients."""

    def __init__(self, module: Any, place: str) -> None:
        self.module: Callable[[], Any] = weakref.ref(module)
        self.place = place
        self.ns = 0
        self.has_inputs_with_gradient = False
        # By the name of a parameter after some updates, what shows a change of its values, and another gradient. Weak
        # references would forbid ``torch.utils.swap_tensors``.
        self.before: dict[str, tuple[Any, Any]] = {}

    def took(self, ns: int, inputs: tuple[Any, ...]) -> None:
        """Add a call, and whether a gradient of an input is needed."""
        self.ns += ns
        self.has_inputs_with_gradient |= any(getattr(value, "requires_grad", False) for value in inputs)


class GradientUse(Inspection):
    """Looks at the parameters of modules that are called in some steps, and at those of all optimizers.

    Parameters count that get a gradient in these steps, keep their values, and are in no optimizer.
    """

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._called: dict[int, _Called] = {}
        self._has_looked = self._is_unknown = False
        self._found: UnusedGradients | None = None
        self._examples: list[tuple[Callable[[], Any], str]] = []  # unused parameters, by module and name
        self._hooks = contextlib.ExitStack()  # of trained parameters
        self._trained_ns = 0  # their latest gradient in a backward pass
        self._after_trained: list[float] = []  # parts of backward passes

    def follow(self, seen: SeenCall) -> Following:
        """Add the call of a module, if there are not too many."""
        module = seen.module
        if seen.is_bare or not seen.has_grad:
            return
        called = self._called.get(id(module))
        if called is None or called.module() is not module:
            if len(self._called) >= MOST_MODULES:
                self._is_unknown = True
                return
            called = self._called[id(module)] = _Called(module, self._program.place_of(seen.caller))
        yield
        called.took((yield), seen.inputs)

    def update_ends(self, optimizer: Any, steps: int) -> None:
        """Look up the parameters without an optimizer, once."""
        self._program.optimizers.add(optimizer)  # a copy is made without a call of its class
        if steps >= LOOKED_AT and not self._has_looked and not is_watched():
            self._has_looked = True
            trained = self._program.trained()
            for called in list(self._called.values()):
                for name, parameter in self._with_gradients(called):
                    if id(parameter) not in trained:
                        called.before[name] = _values(parameter), _gradient(parameter)
                    elif not self._program.may_be_compiled(called.module()):
                        self._hooks.callback(parameter.register_hook(self._reaches_trained).remove)
            if not any(called.before for called in self._called.values()):
                self._hooks.close()

    def _reaches_trained(self, gradient: Any) -> None:
        self._trained_ns = perf_counter_ns()

    def backward_ends(self, began_ns: int, ended_ns: int) -> None:
        """Add the part of a backward pass that comes after the last gradient of a trained parameter."""
        if began_ns < self._trained_ns < ended_ns:
            self._after_trained.append((ended_ns - self._trained_ns) / (ended_ns - began_ns))

    def _with_gradients(self, called: _Called) -> Iterator[tuple[str, Any]]:
        """Yield the parameters of a module that have a gradient now, if they are plain tensors; else it is unknown."""
        module, kind = called.module(), sys.modules["torch"].nn.Parameter
        if module is None:
            self._is_unknown = True
            return
        for number, (name, parameter) in enumerate(module.named_parameters()):
            # What is spread over ranks has to be left alone, and what others are computed from.
            if number >= MOST_PARAMETERS or type(parameter) is not kind:
                self._is_unknown = True
                return
            if parameter.requires_grad and parameter.grad is not None:
                yield name, parameter

    def stop(self) -> None:
        """Decide what is unused, and forget the rest."""
        self._hooks.close()
        with contextlib.suppress(Exception):
            self._found = self._decided()
        self._called.clear()

    def _decided(self) -> UnusedGradients | None:
        trained, all_ns = self._program.trained(), sum(called.ns for called in self._called.values())
        if not self._has_looked or is_watched():
            return None
        if not trained or not all_ns or any(name in sys.modules for name in WITH_COPIES):
            return None
        counted: set[int] = set()  # ids of parameters; two modules may share some
        numbers = all_numbers = 0
        part = passed_on = 0.0
        is_whole, most = True, (0, "", "")
        for called in self._called.values():
            own = unused = 0
            for name, parameter in self._with_gradients(called):
                if id(parameter) in counted:
                    continue
                counted.add(id(parameter))
                own += parameter.numel()
                if id(parameter) in trained or name not in called.before:
                    continue
                values, gradient = called.before[name]
                # Of one with fewer bytes, mixed precision may train a copy: its values do not show small changes.
                if parameter.itemsize < 4 or _values(parameter) != values:
                    return None  # something else updates it
                if _gradient(parameter) != gradient:
                    unused += parameter.numel()
                    self._examples.append((called.module, name))
            all_numbers += own
            if unused:
                numbers += unused
                is_whole &= unused == own and not called.has_inputs_with_gradient
                share = called.ns / all_ns * unused / own
                part += share
                passed_on += share if called.has_inputs_with_gradient else 0.0
                most = max(most, (unused, type(called.module()).__name__, called.place))
        if self._is_unknown or not numbers:
            return None
        after = median(self._after_trained) if self._after_trained and not passed_on else 0.0
        return UnusedGradients(numbers, all_numbers, min(1.0, part), min(1.0, passed_on), is_whole, *most[1:], after)

    def facts(self, steps: int) -> UnusedGradients | None:
        """Return what was found; None if nothing was, or an optimizer has got such a parameter since, or may have."""
        try:
            trained = self._program.trained()
            modules = ((module, name) for module_of, name in self._examples if (module := module_of()) is not None)
            if any(id(module.get_parameter(name)) in trained for module, name in modules):
                self._found = None
        except Exception:  # a module may have changed since
            self._found = None
        return self._found


def _gradient(parameter: Any) -> tuple[int, int, Any]:
    return id(parameter.grad), parameter.grad._version, first_values(parameter.grad)


def _values(parameter: Any) -> tuple[int, Any]:
    """Return what shows a change of a parameter's values, as far as it is known without waiting for a device."""
    return parameter._version, first_values(parameter)


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


class GraphUse(Inspection):
    """Follows the graphs of the outermost calls of some steps until they are freed.

    A graph is unused if it is freed and no backward pass reached an output of its call. One that still lives at the end
    counts as used. Nothing of the program is kept alive.
    """

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._module: Callable[[], Any] = lambda: None
        self._thread = 0  # of the call under way; 0 without any
        self._graph: _Graph | None = None  # of it
        self._place = ""
        self._calls = self._unused = self._all_ns = self._unused_ns = 0
        self._places: dict[str, int] = {}  # ns of calls with an unused graph, by class and line
        self._is_over = False

    def follow(self, seen: SeenCall) -> Following:
        """Put a hook on a module that is trained, and keep the time of its call with the graph."""
        module = seen.module
        # Hooks forbid the fast path of transformer layers, which is only taken where nothing is trained.
        if not seen.has_grad or not any(parameter.requires_grad for parameter in parameters_within(module)):
            return
        if seen.is_watched or why_not_counted(sys.modules["torch"]) or self._program.may_be_compiled(module):
            return
        self._place = f"{type(module).__name__}\n{self._program.place_of(seen.caller)}"
        self._module = weakref.ref(module)
        handle = module.register_forward_hook(self._returns)
        try:
            yield
            self._thread = get_ident()
            spent_ns = yield
        finally:
            self._thread = 0
            handle.remove()
            graph, self._graph = self._graph, None
        if graph is not None:
            graph.took(spent_ns)
            self._calls += 1
            self._all_ns += spent_ns

    def _returns(self, module: Any, inputs: Any, output: Any) -> None:
        """Put a hook on the nodes that made the outputs."""
        if get_ident() != self._thread or module is not self._module():
            return
        with contextlib.suppress(Exception):
            plain = plain_classes(sys.modules["torch"])
            tensors = list(tensors_within(output))
            if len(tensors) > 16 or any(type(tensor) not in plain for tensor in tensors):
                return  # with more, its graph is taken for used
            # A change in place gives a view another node, and keeps that of its base in the graph.
            nodes = [(each if each._base is None else each._base).grad_fn for each in tensors if each.requires_grad]
            if not nodes or any(node is None for node in nodes):
                return
            graph = self._graph = _Graph(self._place, self._finish)
            for node in nodes:
                node.register_prehook(graph.reached)

    def _finish(self, graph: _Graph) -> None:
        if self._is_over or graph.is_used:
            return
        self._unused += 1
        self._unused_ns += graph.ns
        if graph.place in self._places or len(self._places) < MOST_PLACES:
            self._places[graph.place] = self._places.get(graph.place, 0) + graph.ns

    def stop(self) -> None:
        """Look at no more calls. Graphs that are still there count as used."""
        self._is_over = True

    def facts(self, steps: int) -> UnusedGraphs | None:
        """Return the calls of so many steps whose graph nothing used; None where there are none."""
        places = dict(self._places)  # another thread may free a graph meanwhile
        if not places or not self._all_ns or not steps:
            return None
        kind, _, place = max(places, key=lambda each: places[each]).partition("\n")
        part = min(1.0, self._unused_ns / self._all_ns)
        return UnusedGraphs(steps, self._unused, self._calls, part, kind, place)
