"""Finds frozen modules that compute the same features of a loader's batches in each epoch."""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.inspections.compared_values import first_values
from training_profiler.inspections.flop_eligibility import is_watched
from training_profiler.inspections.frozen_layers import InnerCalls
from training_profiler.inspections.random_data import draws_random_numbers
from training_profiler.inspections.repeated_forward import generator_state
from training_profiler.instrumentation.loop_detection.modules import is_bare, modules_within
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.recording.object_identity import LiveObjects, ObjectIdentity
from training_profiler.snapshot.program import FrozenFacts

MOST_MODULES: Final = 16  # that are followed
MOST_PARAMETERS: Final = 2_000  # of one of them
MOST_KEPT: Final = 32  # of its parameters and buffers, whose changes show that it is not frozen
MOST_KEPT_INSIDE: Final = 4  # of a layer
NEARLY_ALL: Final = 0.9  # of the batches
INNER_LOOKS: Final = 3  # batches, in which the layers of a trained module are looked at
LEAST: Final = 0.01  # of the time of all modules
DEPTH: Final = 3  # of inputs within inputs


class _Sample(NamedTuple):
    """A parameter or buffer when its module was first called.

    Weak references of the tensor itself would forbid ``torch.utils.swap_tensors``.
    """

    owner: Callable[[], Any]
    name: str
    before: tuple[Any, ...]


class _Frozen:
    """A module that was frozen in a call."""

    def __init__(self, module: Any, place: str, has_grad: bool, outer: Any = None) -> None:
        self.module: Callable[[], Any] = weakref.ref(module)
        self.outer: Callable[[], Any] | None = None if outer is None else weakref.ref(outer)
        path = "" if outer is None else _path(outer, module)
        self.text = f"{path} of {type(outer).__name__}" if path else type(module).__name__
        self.place = place
        self.has_grad = has_grad
        self.signature = _signature(module)
        self.is_on_cpu = True
        self.samples = list(self._samples(module))
        self.ns = self.batches = 0
        self.fraction = 0.0  # of the calls of ``outer``, added up

    def _samples(self, module: Any) -> Iterator[_Sample]:
        tensors = [
            (inner, name, tensor)
            for inner in modules_within(module)
            for name, tensor in (*inner._parameters.items(), *inner._buffers.items())
            if tensor is not None
        ]
        most = MOST_KEPT if self.outer is None else MOST_KEPT_INSIDE
        for inner, name, tensor in tensors[:: max(1, len(tensors) // most)]:
            self.is_on_cpu &= tensor.is_cpu
            yield _Sample(weakref.ref(inner), name, _state(tensor))

    def took(self, ns: int) -> None:
        """Add what it took in a batch."""
        self.ns += ns
        self.batches += 1

    def took_part(self, fraction: float) -> None:
        """Add its part of the call of ``outer`` in a batch."""
        self.fraction += fraction
        self.batches += 1

    def stays(self, trained: set[int]) -> bool:
        """Return whether nothing has changed or trained it since, as far as its tensors are still there."""
        for sample in self.samples:
            owner = sample.owner()
            if owner is None:
                continue
            tensor = owner._parameters.get(sample.name, owner._buffers.get(sample.name))
            if tensor is None or _state(tensor) != sample.before:
                return False
            if tensor.requires_grad and (self.has_grad or id(tensor) in trained):
                return False
        return True


class _OpenForward(NamedTuple):
    """An outermost call under way."""

    module: Any
    frozen: _Frozen | None
    inner: InnerCalls | None
    generator: tuple[Any, ...] | None  # before the call
    call: ModuleCall | None = None
    began_ns: int = 0


class FrozenForward:
    """Looks at the outermost calls of some steps, and in few of them inside, at modules that are not trained.

    A call counts if it depends on a batch of a loader alone: no random number was drawn for it, from the begin of the
    fetch on, and no trained module was called since.

    Args:
        optimizers: all that the program has made so far and that are alive.
        place_of: returns the user's line of a stack, "" if unknown.
        is_compiled: returns whether parts of a module may be compiled, so that its calls must be left alone.
    """

    def __init__(
        self, optimizers: LiveObjects, place_of: Callable[[Any], str], is_compiled: Callable[[Any], bool]
    ) -> None:
        self._optimizers = optimizers
        self._place_of = place_of
        self._is_compiled = is_compiled
        self._known: dict[int, _Frozen] = {}
        self._open: _OpenForward | None = None
        self._generator: tuple[Any, ...] | None = None  # since the batch was fetched; None: it is not known or random
        self._before_fetch: tuple[Any, ...] | None = None
        self._is_fetched = self._is_first = self._has_called = self._is_counted = False
        self._clean: list[tuple[ObjectIdentity, int]] = []  # inputs that depend on the batch alone
        self._random_iterator: tuple[Any, bool] = (None, False)  # the latest, and whether its samples are random
        self._pending: dict[int, int] = {}  # ns of calls that no backward pass has followed yet, by module
        self._pending_all: dict[int, int] = {}
        self._fractions: list[dict[int, float]] = []  # of the looks inside that no backward pass has followed yet
        self._trained_modules: dict[int, tuple[Any, ...]] = {}  # their signatures, by id
        self._batches = self._looks = 0
        self._all_ns: dict[int, int] = {}  # of all outermost calls
        self._found: list[_Frozen] = []
        self._all_s = 0.0  # of a batch
        self._shares: dict[int, float] = {}
        self._facts: FrozenFacts | None = None  # of the last report

    # The batch

    def fetch_begins(self, iterator: Any, is_first: bool) -> None:
        """Handle the begin of a fetch; in the first of a pass, the sampler draws numbers. Does not raise."""
        with contextlib.suppress(Exception):
            self._before_fetch = None
            if is_watched(sys.modules["torch"]):
                return
            self._look_at(iterator)
            is_more = self._is_fetched and not self._has_called  # a step may take batches of two loaders
            self._is_first = is_first or (is_more and self._is_first)
            self._before_fetch = None if is_more and self._generator is None else generator_state()

    def _look_at(self, iterator: Any) -> None:
        known, _ = self._random_iterator
        if known is None or not known.matches(iterator):
            parts = [getattr(iterator, name, None) for name in ("_dataset", "_collate_fn")]  # private: may be gone
            self._random_iterator = (ObjectIdentity(iterator), draws_random_numbers(*parts))

    def fetch_ends(self) -> None:
        """Handle the end of a fetch that returned a batch. Does not raise."""
        self._pending, self._pending_all, self._fractions = {}, {}, []  # of an evaluation
        self._generator, self._is_fetched, self._has_called, self._is_counted = None, True, False, False
        self._clean.clear()
        with contextlib.suppress(Exception):
            if self._before_fetch is None or is_watched(sys.modules["torch"]):
                return
            state = generator_state()
            is_random = self._random_iterator[1] or state != self._before_fetch
            self._generator = None if is_random else state

    def backward_ends(self) -> None:
        """Count the calls since the fetch: they belong to the training."""
        if self._is_fetched and not self._is_first:
            self._batches += not self._is_counted
            self._is_counted = True
            for key, ns in self._pending.items():
                self._known[key].took(ns)
            for key, ns in self._pending_all.items():
                self._all_ns[key] = self._all_ns.get(key, 0) + ns
            self._looks += len(self._fractions)
            for fractions in self._fractions:
                for key, fraction in fractions.items():
                    self._known[key].took_part(fraction)
        self._pending, self._pending_all, self._fractions = {}, {}, []

    # Calls

    def begins(self, module: Any, inputs: tuple[Any, ...], has_grad: bool, caller: Any) -> None:
        """Handle an outermost call that is about to begin. Does not raise."""
        if self._open is not None or not self._is_fetched or self._is_first:
            return
        try:
            if is_watched(sys.modules["torch"]):
                self._generator = None
                self._clean.clear()
            elif not is_bare(module):
                self._begins(module, inputs, has_grad, caller)
        except Exception:  # of modules with methods of their own
            self._generator = None

    def _begins(self, module: Any, inputs: tuple[Any, ...], has_grad: bool, caller: Any) -> None:
        self._has_called = True
        trained = self._trained()
        frozen: _Frozen | None = None
        inner: InnerCalls | None = None
        tensors = list(tensors_within(inputs))
        state = generator_state() if self._generator is not None or self._clean else None
        is_clean = state is not None and state == self._generator
        if is_clean:
            self._clean += [(ObjectIdentity(tensor), tensor._version) for tensor in tensors]
        elif tensors and all(self._is_clean(tensor) for tensor in tensors):  # such as a teacher after its student
            is_clean = True
        if is_frozen(module, has_grad, trained):
            if is_clean and not any(tensor.requires_grad for tensor in tensors):
                frozen = self._frozen(module, self._place_of(caller), has_grad)
        else:
            if id(module) not in self._trained_modules:
                self._trained_modules[id(module)] = _signature(module)
            is_due = self._looks + len(self._fractions) < INNER_LOOKS
            if state is not None and is_clean and has_grad and is_due and not self._is_compiled(module):
                place = self._place_of(caller)
                inner = InnerCalls(
                    state,
                    lambda layer, with_grad: is_frozen(layer, with_grad, trained),
                    lambda layer, with_grad: self._frozen(layer, place, with_grad, module) is not None,
                )
        self._open = _OpenForward(module, frozen, inner, state)

    def _is_clean(self, tensor: Any) -> bool:
        return any(known.matches(tensor) and version == tensor._version for known, version in self._clean)

    def _frozen(self, module: Any, place: str, has_grad: bool, outer: Any = None) -> _Frozen | None:
        known = self._known.get(id(module))
        if known is None or known.module() is not module:
            if len(self._known) >= MOST_MODULES * (1 if outer is None else 4):
                return None
            known = self._known[id(module)] = _Frozen(module, place, has_grad, outer)
        return known

    def begun(self, call: ModuleCall) -> None:
        """Take the call that was about to begin; one whose inner calls are recorded, too, may be a trainer's."""
        if self._open is None or self._open.call is not None:
            return
        if call.is_explored:
            self._open = self._generator = None
            return
        if self._open.inner is not None:
            self._open.inner.begin()
        self._open = self._open._replace(call=call, began_ns=perf_counter_ns())

    def ends(self, call: ModuleCall, now_ns: int) -> None:
        """Handle the end of an outermost call at ``now_ns``. Does not raise."""
        ended = self._open
        if ended is None or ended.call is not call:
            return
        spent_ns = now_ns - ended.began_ns
        self._open = None
        key = id(ended.module)
        self._pending_all[key] = self._pending_all.get(key, 0) + spent_ns
        if ended.inner is not None:
            ended.inner.end()
            self._fractions.append({layer: ns / max(1, spent_ns) for layer, ns in ended.inner.spent_ns.items()})
        with contextlib.suppress(Exception):
            if is_watched(sys.modules["torch"]):
                self._generator = None
                return
            is_random = ended.generator is not None and generator_state() != ended.generator
            if ended.frozen is None or is_random:
                self._generator = None  # later calls may depend on what it returns
            else:
                self._pending[key] = self._pending.get(key, 0) + spent_ns

    def _trained(self) -> set[int]:
        """Return the ids of the parameters that optimizers have."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}

    # What was found

    def stop(self) -> None:
        """Decide what is frozen, and forget the rest. Does not raise."""
        if self._open is not None and self._open.inner is not None:
            self._open.inner.end()
        with contextlib.suppress(Exception):
            self._decide()
        self._known.clear()
        self._all_ns.clear()
        self._clean.clear()
        self._open, self._is_fetched, self._random_iterator = None, False, (None, False)

    def _decide(self) -> None:
        all_ns = sum(self._all_ns.values())
        self._all_s = all_ns / NS_PER_S / max(1, self._batches)
        for frozen in self._known.values() if all_ns else ():
            outer = None if frozen.outer is None else frozen.outer()
            ns = frozen.ns
            if frozen.outer is not None:
                ns = int(frozen.fraction / max(1, self._looks) * self._all_ns.get(id(outer), 0))
            of = self._batches if frozen.outer is None else self._looks
            # On a device a change of ``p.data`` is not seen: a module like a trained one may be its average.
            is_copy = not frozen.is_on_cpu and frozen.signature in self._trained_modules.values()
            if ns >= LEAST * all_ns and of and frozen.batches >= NEARLY_ALL * of and not is_copy:
                self._found.append(frozen)
                self._shares[id(frozen)] = ns / all_ns

    def facts(self) -> FrozenFacts | None:
        """Return what was found; None if nothing was, or if it has changed since."""
        try:
            if self._found and is_watched(sys.modules["torch"]):
                return self._facts
            trained = self._trained()
            self._found = [frozen for frozen in self._found if frozen.stays(trained)]
        except Exception:
            self._found = []
        self._facts = self._facts_of_found() if self._found else None
        return self._facts

    def _facts_of_found(self) -> FrozenFacts:
        most = max(self._found, key=lambda frozen: self._shares[id(frozen)])
        part = min(1.0, sum(self._shares[id(frozen)] for frozen in self._found))
        count, batch_s = len(self._found), part * self._all_s
        return FrozenFacts(self._batches, part, most.has_grad, most.text, most.place, batch_s, count)


def is_frozen(module: Any, has_grad: bool, trained: set[int]) -> bool:
    """Return whether a call trains no parameter of ``module``, and its output for a sample needs no other sample.

    Args:
        has_grad: gradients are recorded.
        trained: ids of the parameters that optimizers have.
    """
    torch, count = sys.modules["torch"], 0
    normalization = torch.nn.modules.batchnorm._BatchNorm
    for inner in modules_within(module):
        if isinstance(inner, normalization) and (inner.training or inner.running_mean is None):
            return False
        for parameter in inner._parameters.values():
            if parameter is None:
                continue
            count += 1
            # Those of other classes are spread over ranks, or packed.
            if count > MOST_PARAMETERS or type(parameter) is not torch.nn.Parameter:
                return False
            if not (parameter.is_cpu or parameter.is_cuda):  # the state of the device's generator is not read
                return False
            if parameter.requires_grad and (has_grad or id(parameter) in trained):
                return False
    return count > 0


def tensors_within(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Yield the tensors among inputs."""
    inner: Iterable[Any] = ()
    if isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, sys.modules["torch"].Tensor):
        yield value
    for each in inner if depth else ():
        yield from tensors_within(each, depth - 1)


def _state(tensor: Any) -> tuple[Any, ...]:
    return tensor._version, tensor.data_ptr(), first_values(tensor)


def _signature(module: Any) -> tuple[Any, ...]:
    """Return what a module and its moving average have in common."""
    parameters = [each for inner in modules_within(module) for each in inner._parameters.values() if each is not None]
    return type(module), len(parameters), sum(each.numel() for each in parameters)


def _path(outer: Any, module: Any) -> str:
    """Return the names that lead from one module to another: "encoder.layers.0"."""
    waiting = [(outer, "")]
    visited: set[int] = set()
    while waiting:
        inner, path = waiting.pop()
        if inner is module:
            return path
        if id(inner) not in visited:
            visited.add(id(inner))
            named = inner._modules.items()
            waiting += [(each, f"{path}.{name}" if path else name) for name, each in named if each is not None]
    return ""
