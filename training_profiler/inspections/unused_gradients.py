"""Finds gradients that no optimizer uses: of a teacher that is called with gradients, or of layers that stay."""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from training_profiler.inspections.compared_values import first_values
from training_profiler.inspections.flop_eligibility import is_watched
from training_profiler.instrumentation.loop_detection.modules import is_bare
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.recording.object_identity import LiveObjects
from training_profiler.snapshot.program import UnusedGradients

LOOKED_AT: Final = 4  # updates, after which parameters without an optimizer are looked up
MOST_MODULES: Final = 16  # that are called; with more nothing is known
MOST_PARAMETERS: Final = 2_000  # of all of them
FULL_PRECISION: Final = 4  # bytes
# They keep copies of parameters that their optimizers update instead.
WITH_COPIES: Final = ("deepspeed", "apex", "colossalai", "megatron")


class _Called:
    """A module that is called with gradients."""

    __slots__ = ("__weakref__", "before", "has_inputs_with_gradient", "module", "ns", "place")

    def __init__(self, module: Any, place: str) -> None:
        self.module: Callable[[], Any] = weakref.ref(module)
        self.place = place
        self.ns = 0
        self.has_inputs_with_gradient = False
        self.before: dict[str, _Before] = {}  # by the name of a parameter

    def look_at(self, inputs: tuple[Any, ...]) -> None:
        """Note whether a gradient of an input is needed."""
        self.has_inputs_with_gradient |= any(getattr(value, "requires_grad", False) for value in inputs)

    def took(self, ns: int) -> None:
        """Add a call."""
        self.ns += ns


class _Before(NamedTuple):
    """A parameter after some updates: what shows a change of its values, and another gradient.

    Weak references would forbid ``torch.utils.swap_tensors``.
    """

    values: tuple[int, Any]
    gradient: tuple[int, int, Any]


class GradientUse:
    """Looks at the parameters of modules that are called in some steps, and at those of all optimizers.

    Parameters count that get a gradient in these steps, keep their values, and are in no optimizer.

    Args:
        optimizers: all that the program has made so far and that are alive; others are added when they update.
        place_of: returns the user's line of a stack, "" if unknown.
    """

    def __init__(self, optimizers: LiveObjects, place_of: Callable[[Any], str]) -> None:
        self._optimizers = optimizers
        self._place_of = place_of
        self._called: dict[int, _Called] = {}
        self._open: tuple[Any, _Called, int] | None = None  # the call, its module, and when it began
        self._next: _Called | None = None  # of the call that is about to begin
        self._has_looked = self._is_unknown = False
        self._found: UnusedGradients | None = None
        self._examples: list[tuple[Callable[[], Any], str]] = []  # unused parameters, by module and name

    def begins(self, module: Any, inputs: tuple[Any, ...], caller: Any) -> None:
        """Handle an outermost call with gradients that is about to begin. Does not raise."""
        self._next = None
        with contextlib.suppress(Exception):  # of modules with methods of their own
            if is_bare(module) or self._open is not None:
                return
            called = self._called.get(id(module))
            if called is None or called.module() is not module:
                if len(self._called) >= MOST_MODULES:
                    self._is_unknown = True
                    return
                called = self._called[id(module)] = _Called(module, self._place_of(caller))
            called.look_at(inputs)
            self._next = called

    def begun(self, call: ModuleCall) -> None:
        """Take the call that was about to begin; one whose inner calls are recorded, too, may be a trainer's."""
        called, self._next = self._next, None
        if called is not None and not call.is_explored:
            self._open = call, called, perf_counter_ns()

    def ends(self, call: ModuleCall) -> None:
        """Handle the end of an outermost call."""
        if self._open is not None and self._open[0] is call:
            _, called, began_ns = self._open
            called.took(perf_counter_ns() - began_ns)
            self._open = None

    def update_ends(self, optimizer: Any, steps: int) -> None:
        """Look up the parameters without an optimizer, once. Does not raise."""
        self._optimizers.add(optimizer)  # a copy is made without a call of its class
        if steps >= LOOKED_AT and not self._has_looked:
            with contextlib.suppress(Exception):
                if is_watched(sys.modules["torch"]):
                    return
                self._has_looked = True
                trained = self._trained()
                for called in list(self._called.values()):
                    for name, parameter in self._with_gradients(called):
                        if id(parameter) not in trained:
                            called.before[name] = _before(parameter)

    def _trained(self) -> set[int]:
        """Return the ids of the parameters that optimizers have."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}

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
        """Decide what is unused, and forget the rest. Does not raise."""
        with contextlib.suppress(Exception):
            self._found = self._decided()
        self._called.clear()
        self._open = self._next = None

    def _decided(self) -> UnusedGradients | None:
        trained, all_ns = self._trained(), sum(called.ns for called in self._called.values())
        if not self._has_looked or is_watched(sys.modules["torch"]):
            return None
        if not trained or not all_ns or any(name in sys.modules for name in WITH_COPIES):
            return None
        sums = _GradientSums()
        for called in self._called.values():
            own = unused = 0
            for name, parameter in self._with_gradients(called):
                if id(parameter) in sums.counted:
                    continue
                sums.counted.add(id(parameter))
                own += parameter.numel()
                before = called.before.get(name)
                if id(parameter) in trained or before is None:
                    continue
                if not _stays(parameter, before):
                    return None  # something else updates it
                if _gradient(parameter) != before.gradient:
                    unused += parameter.numel()
                    self._examples.append((called.module, name))
            sums.add(called, own, unused, called.ns / all_ns)
        return None if self._is_unknown else sums.facts()

    def facts(self) -> UnusedGradients | None:
        """Return what was found; None if nothing was, or an optimizer has got such a parameter since."""
        if self._found is not None and self._is_trained_by_now():
            self._found = None
        return self._found

    def _is_trained_by_now(self) -> bool:
        """Return whether an optimizer has such a parameter, or that is not known: a module may have changed since."""
        try:
            trained = self._trained()
            modules = ((module, name) for module_of, name in self._examples if (module := module_of()) is not None)
            return any(id(module.get_parameter(name)) in trained for module, name in modules)
        except Exception:
            return True


class _GradientSums:
    """What the modules add up to."""

    def __init__(self) -> None:
        self.counted: set[int] = set()  # ids of parameters; two modules may share some
        self._unused = self._all = 0
        self._part = self._passed_on = 0.0
        self._is_whole = True
        self._most: tuple[int, str, str] = (0, "", "")

    def add(self, called: _Called, own: int, unused: int, share: float) -> None:
        """Add a module with ``own`` numbers that have a gradient, and its share of the forward passes."""
        self._all += own
        if unused:
            self._unused += unused
            self._is_whole &= unused == own and not called.has_inputs_with_gradient
            self._part += share * unused / own
            self._passed_on += share * unused / own if called.has_inputs_with_gradient else 0.0
            self._most = max(self._most, (unused, type(called.module()).__name__, called.place))

    def facts(self) -> UnusedGradients | None:
        """Return the facts; None if all gradients are used."""
        _, name, place = self._most
        if not self._unused:
            return None
        part, passed_on = min(1.0, self._part), min(1.0, self._passed_on)
        return UnusedGradients(self._unused, self._all, part, passed_on, self._is_whole, name, place)


def _gradient(parameter: Any) -> tuple[int, int, Any]:
    return id(parameter.grad), parameter.grad._version, first_values(parameter.grad)


def _before(parameter: Any) -> _Before:
    return _Before((parameter._version, first_values(parameter)), _gradient(parameter))


def _stays(parameter: Any, before: _Before) -> bool:
    """Return whether a parameter has kept its values, as far as that is known without waiting for a device.

    Of one with fewer bits, mixed precision may train a copy: small changes are not shown by its values.
    """
    return parameter.itemsize >= FULL_PRECISION and (parameter._version, first_values(parameter)) == before.values
