"""Finds modules that are called again with the same input, so that one call would do."""

import contextlib
import random
import sys
import time
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.inspections.compared_values import are_same, input_values, state_of
from training_profiler.inspections.flop_eligibility import is_watched
from training_profiler.instrumentation.loop_detection.modules import is_bare, modules_within, parameters_within
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.recording.object_identity import ObjectIdentity
from training_profiler.snapshot.program import RepeatFacts

MOST_VALUES: Final = 64  # of one input; a call with more is not compared
MOST_KEPT: Final = 32  # calls that later ones are compared with
PARAMETERS: Final = 8  # of a module that are trained, whose versions show an update
MOST_GRADIENTS: Final = 64  # of a module, which show that a backward pass went through it
MOST_SEEN: Final = 2_000  # parameters among which they are looked for


class Counts(NamedTuple):
    """What the training has done so far."""

    backwards: int
    updates: int
    steps: int


class _Call(NamedTuple):
    """A call that has ended."""

    tensors: list[ObjectIdentity]  # of its input, and of its module's state
    parameters: tuple[Any, ...]
    counts: Counts  # before it
    has_grad: bool
    spent_ns: int
    trained: tuple[Any, ...] = ()  # where parameters are whose gradients show a backward pass
    buffers: tuple[int, ...] = ()  # after it: their versions


class _Open(NamedTuple):
    """A call under way; ``earlier`` is the same call before it."""

    key: tuple[Any, ...]
    ended: _Call
    earlier: _Call | None
    generator: tuple[Any, ...] | None  # the state of torch's generators before a repeated call; None: taken for random
    place: str
    call: ModuleCall | None = None
    began_ns: int = 0


class RepeatedForward:
    """Compares the outermost calls of some steps.

    Nothing of the program is kept alive: inputs and states are recognized by weak references and the versions of their
    tensors.

    Args:
        place_of: returns the user's line of a stack, "" if unknown.
    """

    def __init__(self, place_of: Callable[[Any], str]) -> None:
        self._place_of = place_of
        self._count = self._without_grad = self._after_update = self._random = self._ns = 0
        self._steps_with: set[int] = set()  # in which calls were repeated
        self._place = ""
        self._open: _Open | None = None
        self._ended: dict[tuple[Any, ...], _Call] = {}
        self._gradients: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []  # of ended calls, before a backward pass

    def stop(self) -> None:
        """Compare no more calls, and forget the inputs."""
        self._open = None
        self._ended.clear()
        self._gradients.clear()

    def backward_begins(self, is_seen: bool) -> None:
        """Handle the begin of a backward pass; ``is_seen``: it adds to the gradients of parameters. Does not raise."""
        with contextlib.suppress(Exception):
            self._gradients.clear()
            for key, call in list(self._ended.items()):
                if not call.trained:
                    continue
                if is_seen and not any(owner.is_gone for owner in call.tensors):
                    self._gradients.append((key, _gradients(call.trained)))
                else:
                    self._ended[key] = call._replace(trained=())

    def backward_ends(self) -> None:
        """Remember which calls the backward pass went through: their graphs are used. Does not raise."""
        with contextlib.suppress(Exception):
            for key, before in self._gradients:
                call = self._ended.get(key)
                if call is not None and before != _gradients(call.trained):
                    self._ended[key] = call._replace(trained=())
            self._gradients.clear()

    def begins(self, module: Any, inputs: tuple[Any, ...], has_grad: bool, caller: Any, counts: Counts) -> None:
        """Handle an outermost call that is about to begin. Does not raise."""
        with contextlib.suppress(Exception):  # of tensors that are not torch's own
            if self._open is None and not (is_bare(module) or is_watched(sys.modules["torch"])):
                self._begins(module, inputs, has_grad, caller, counts)

    def _begins(self, module: Any, inputs: tuple[Any, ...], has_grad: bool, caller: Any, counts: Counts) -> None:
        tensors: list[Any] = []
        values = tuple(islice(input_values(inputs, tensors), MOST_VALUES + 1))
        if not tensors or len(values) > MOST_VALUES:
            return
        key = (id(module), values, state_of(module, tensors))
        owners = [ObjectIdentity(tensor) for tensor in tensors]
        now = _Call(owners, _versions(module), counts, has_grad, 0, _trained(module) if has_grad else ())
        earlier = self._ended.get(key)
        if earlier is not None and not (are_same(earlier.tensors, tensors) and _is_repeated(earlier, now)):
            earlier = None
        if earlier is not None and earlier.buffers != _buffers(module):
            earlier = None  # something has changed them since, such as a mask
        if earlier is None:
            self._open = _Open(key, now, None, None, "")
        else:
            is_random = _has_dropout(module) or not all(tensor.is_cpu or tensor.is_cuda for tensor in tensors)
            generator = None if is_random else generator_state()
            self._open = _Open(key, now, earlier, generator, self._place_of(caller))

    def begun(self, call: ModuleCall) -> None:
        """Take the call that was about to begin; one whose inner calls are recorded, too, may be a trainer's."""
        if self._open is not None and self._open.call is None:
            is_trainer = call.is_explored
            self._open = None if is_trainer else self._open._replace(call=call, began_ns=time.perf_counter_ns())

    def ends(self, call: ModuleCall, module: Any) -> None:
        """Handle the end of an outermost call. Does not raise."""
        repeat = self._open
        if repeat is None or repeat.call is not call:
            return
        self._open = None
        with contextlib.suppress(Exception):  # of a generator that cannot be read
            self._ends(repeat, module, time.perf_counter_ns() - repeat.began_ns)

    def _ends(self, repeat: _Open, module: Any, spent_ns: int) -> None:
        earlier = repeat.earlier
        ended = repeat.ended._replace(spent_ns=spent_ns, buffers=_buffers(module))
        if earlier is None:
            if len(self._ended) >= MOST_KEPT:
                del self._ended[next(iter(self._ended))]
            self._ended[repeat.key] = ended
            return
        # A third call repeats the second one, whose graph may be used by then.
        latest = ended if ended.has_grad else earlier._replace(buffers=ended.buffers)
        self._ended[repeat.key] = latest._replace(spent_ns=min(spent_ns, earlier.spent_ns))
        is_random = repeat.generator is None or repeat.generator != generator_state()
        self._count += 1
        self._steps_with.add(repeat.ended.counts.steps)
        self._ns += min(spent_ns, earlier.spent_ns)
        self._without_grad += not (repeat.ended.has_grad and earlier.has_grad)
        self._after_update += repeat.ended.parameters != earlier.parameters
        self._random += is_random
        self._place = repeat.place or self._place

    def facts(self, steps: int) -> RepeatFacts | None:
        """Return the repeated calls of so many steps; None where no call was repeated."""
        if not self._count:
            return None
        return RepeatFacts(
            steps,
            self._count,
            self._ns / NS_PER_S,
            self._without_grad,
            self._after_update,
            self._random,
            self._place,
            len(self._steps_with),
        )


def _is_repeated(earlier: _Call, now: _Call) -> bool:
    """Return whether one of two calls with the same input would do.

    It would not where parameters changed between them by anything but an update, as in an attack or a line search.
    After an update, a call without gradients repeats the forward pass for a metric. Two calls with gradients belong to
    one backward pass, or no backward pass went through the first, such as a generator's that a discriminator learns
    from; otherwise each needs its own graph. Of two calls without gradients nothing is known: a search without
    gradients changes parameters by ``p.data`` between them, which leaves no trace.
    """
    if not (earlier.has_grad or now.has_grad):
        return False
    if earlier.parameters == now.parameters:
        return not (earlier.has_grad and now.has_grad) or earlier.counts == now.counts or bool(earlier.trained)
    return earlier.has_grad and not now.has_grad and earlier.counts.updates != now.counts.updates


def _versions(module: Any) -> tuple[Any, ...]:
    """Return what changes with each update of a module's parameters, also by ``p.data = ...``."""
    trained = (parameter for parameter in islice(parameters_within(module), MOST_SEEN) if parameter.requires_grad)
    return tuple((parameter._version, parameter.data_ptr()) for parameter in islice(trained, PARAMETERS))


def _trained(module: Any) -> tuple[Any, ...]:
    """Return where parameters are that get a gradient; nothing where they are computed from others, as in MAML.

    Weak references of the parameters themselves would forbid ``torch.utils.swap_tensors``.
    """
    places = ((inner, name) for inner in modules_within(module) for name in inner._parameters)
    trained = [
        (inner, name)
        for inner, name in islice(places, MOST_SEEN)
        if (parameter := inner._parameters[name]) is not None and parameter.requires_grad
    ]
    spread = trained[:: max(1, len(trained) // MOST_GRADIENTS)]
    if not all(inner._parameters[name].is_leaf for inner, name in spread):
        return ()
    return tuple((weakref.ref(inner), name) for inner, name in spread)


def _gradients(trained: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what changes with each backward pass that adds to the gradients of these parameters."""
    modules = [(module_of(), name) for module_of, name in trained]
    parameters = [None if inner is None else inner._parameters.get(name) for inner, name in modules]
    gradients = [None if parameter is None else parameter.grad for parameter in parameters]
    return tuple(None if gradient is None else (id(gradient), gradient._version) for gradient in gradients)


def _buffers(module: Any) -> tuple[int, ...]:
    """Return what changes with each write to a module's buffers."""
    return tuple(
        buffer._version for each in modules_within(module) for buffer in each._buffers.values() if buffer is not None
    )


def _has_dropout(module: Any) -> bool:
    """Return whether a module in train mode drops values at random, as far as its classes and arguments show it."""
    return any(
        inner.training and ("Drop" in type(inner).__name__ or _rate(inner, "dropout") or _rate(inner, "attn_dropout"))
        for inner in modules_within(module)
        if _rate(inner, "p") != 0.0
    )


def _rate(module: Any, name: str) -> float | None:
    rate = vars(module).get(name)
    return float(rate) if isinstance(rate, (int, float)) else None


def generator_state() -> tuple[Any, ...]:
    """Return the state of the generators that random numbers come from, the device's too. It waits for no device."""
    torch, numpy_random = sys.modules["torch"], sys.modules.get("numpy.random")
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.default_generators[torch.cuda.current_device()].get_state())
    others = () if numpy_random is None else _numpys(numpy_random)
    return random.getstate(), *others, *(state.numpy().tobytes() for state in states)


def _numpys(numpy_random: Any) -> tuple[Any, ...]:
    _, key, position, *_ = numpy_random.get_state()
    return key.tobytes(), position
