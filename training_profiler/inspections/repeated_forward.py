"""Finds modules that are called again with the same input, or with one part of a batch after another, and weights that
are computed again from the same parameters.

Once would do: with that input, with the whole batch, or for all that use the weight.
"""

import contextlib
import sys
import weakref
from itertools import islice
from statistics import median
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from training_profiler.base.units import NS_PER_S
from training_profiler.inspections.compared_values import are_same, input_values, state_of
from training_profiler.inspections.inspection import (
    Counts,
    Following,
    Inspection,
    SeenCall,
    UserProgram,
    generator_state,
    hooks_of_all,
)
from training_profiler.instrumentation.loop_detection.modules import modules_within, parameters_within, plain_classes
from training_profiler.model.program import ComputedWeights, RepeatFacts, SliceFacts
from training_profiler.recording.object_identity import ObjectIdentity

MOST_VALUES: Final = 64  # of one input; a call with more is not compared
MOST_SEEN: Final = 2_000  # parameters among which they are looked for
MOSTLY: Final = 0.9  # of the calls get a part of a batch
_PLAIN: Final = (int, float, str, bool, type(None))


class _Call(NamedTuple):
    """A call that has ended."""

    tensors: list[ObjectIdentity]  # of its input, and of its module's state
    parameters: tuple[Any, ...]
    counts: Counts  # before it
    has_grad: bool
    trained: tuple[Any, ...]  # where parameters are whose gradients show a backward pass
    spent_ns: int = 0
    buffers: tuple[int, ...] = ()  # after it: their versions


# A call with what it is compared by, the same call before it, the state of generators (None: it is taken for random),
# and the line that repeats it.
_Compared = tuple[tuple[Any, ...], _Call, _Call | None, tuple[Any, ...] | None, str]


class RepeatedForward(Inspection):
    """Compares the outermost calls of some steps.

    Nothing of the program is kept alive: inputs and states are recognized by weak references and the versions of their
    tensors.
    """

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._count = self._without_grad = self._after_update = self._random = self._ns = 0
        self._steps_with: set[int] = set()  # in which calls were repeated
        self._place = ""
        self._ended: dict[tuple[Any, ...], _Call] = {}
        self._gradients: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []  # of ended calls, before a backward pass

    def stop(self) -> None:
        """Compare no more calls, and forget the inputs."""
        self._ended.clear()
        self._gradients.clear()

    def backward_begins(self, is_seen: bool) -> None:
        """Handle the begin of a backward pass; ``is_seen``: it adds to the gradients of parameters."""
        self._gradients.clear()
        for key, call in list(self._ended.items()):
            if not call.trained:
                continue
            if is_seen and not any(owner.is_gone for owner in call.tensors):
                self._gradients.append((key, _gradients(call.trained)))
            else:
                self._ended[key] = call._replace(trained=())

    def backward_ends(self) -> None:
        """Remember which calls the backward pass went through: their graphs are used."""
        for key, before in self._gradients:
            call = self._ended.get(key)
            if call is not None and before != _gradients(call.trained):
                self._ended[key] = call._replace(trained=())
        self._gradients.clear()

    def follow(self, seen: SeenCall) -> Following:
        """Compare the call with earlier ones, then keep it, and count it where it repeats one."""
        compared, module = self._compared(seen), seen.module
        if compared is None:
            return
        key, now, earlier, generator, place = compared
        yield
        spent_ns = yield
        ended = now._replace(spent_ns=spent_ns, buffers=_buffers(module))
        if earlier is None:
            if len(self._ended) >= 32:
                del self._ended[next(iter(self._ended))]
            self._ended[key] = ended
            return
        # A third call repeats the second one, whose graph may be used by then.
        latest = ended if ended.has_grad else earlier._replace(buffers=ended.buffers)
        self._ended[key] = latest._replace(spent_ns=min(spent_ns, earlier.spent_ns))
        self._count += 1
        self._steps_with.add(ended.counts.steps)
        self._ns += min(spent_ns, earlier.spent_ns)
        self._without_grad += not (ended.has_grad and earlier.has_grad)
        self._after_update += ended.parameters != earlier.parameters
        self._random += generator is None or generator != generator_state()
        self._place = place or self._place

    def _compared(self, seen: SeenCall) -> _Compared | None:
        """Return the call by its key, and what it repeats; None where it cannot be compared."""
        module, tensors = seen.module, list[Any]()
        if seen.is_bare or seen.is_watched:
            return None
        values = tuple(islice(input_values(seen.inputs, tensors), MOST_VALUES + 1))
        if not tensors or len(values) > MOST_VALUES:
            return None
        key = (id(module), values, state_of(module, tensors))
        owners = [ObjectIdentity(tensor) for tensor in tensors]
        now = _Call(owners, _versions(module), seen.counts, seen.has_grad, _trained(module) if seen.has_grad else ())
        earlier = self._ended.get(key)
        if earlier is None or not (are_same(earlier.tensors, tensors) and _is_repeated(earlier, now)):
            return key, now, None, None, ""
        if earlier.buffers != _buffers(module):
            return key, now, None, None, ""  # something has changed them since, such as a mask
        is_random = _has_dropout(module) or not all(tensor.is_cpu or tensor.is_cuda for tensor in tensors)
        return key, now, earlier, None if is_random else generator_state(), self._program.place_of(seen.caller)

    def facts(self, steps: int) -> RepeatFacts | None:
        """Return the repeated calls of so many steps; None where no call was repeated."""
        if not self._count:
            return None
        seconds, pairs = self._ns / NS_PER_S, (self._without_grad, self._after_update, self._random)
        return RepeatFacts(steps, self._count, seconds, *pairs, self._place, len(self._steps_with))


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
    return tuple((parameter._version, parameter.data_ptr()) for parameter in islice(trained, 8))


def _trained(module: Any) -> tuple[Any, ...]:
    """Return where parameters are that get a gradient, as their own weak references would forbid ``swap_tensors``."""
    places = ((inner, name) for inner in modules_within(module) for name in inner._parameters)
    trained = [
        (inner, name)
        for inner, name in islice(places, MOST_SEEN)
        if (parameter := inner._parameters[name]) is not None and parameter.requires_grad
    ]
    spread = trained[:: max(1, len(trained) // 64)]
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


class SlicedBatches(Inspection):
    """Looks at the outermost calls of some steps, by the shapes of their inputs.

    A batch counts if one module got all of its rows in one step, in one part after another. One row of a sequence,
    without the dimension of rows, may be a moment of time. A call that gets anything else, such as a second tensor, may
    need the one before it, as a recurrent cell does, and so may one of a module that keeps a state.
    """

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._calls = self._slices = self._rows = self._of_rows = 0
        self._whole: ObjectIdentity | None = None  # the batch whose parts are seen
        self._module: tuple[Any, ...] = ()  # that got them, the step, and its state before the last of them
        self._tensors: list[ObjectIdentity] = []  # of that state
        self._seen: set[int] = set()  # offsets of its parts
        self._seen_rows = 0
        self._place = ""

    def follow(self, seen: SeenCall) -> Following:
        """Add the part of a batch that the call gets, if any, and keep nothing of it."""
        if seen.is_bare or not seen.has_grad:
            return
        others, tensors, module = [value for value in seen.inputs if type(value) not in _PLAIN], list[Any](), None
        with contextlib.suppress(Exception):  # of tensors that are not torch's own, or a state that cannot be compared
            is_tensor = len(others) == 1 and type(others[0]) in plain_classes(sys.modules["torch"])
            if is_tensor and _is_part(others[0]):
                module = (seen.counts.steps, id(seen.module), *state_of(seen.module, tensors))
        yield
        self._calls += 1
        if module is not None:
            self._add(others[0], module, tensors, seen.caller)

    def _add(self, part: Any, module: tuple[Any, ...], tensors: list[Any], caller: Any) -> None:
        """Add a part to the batch that it belongs to; ``module`` is what gets it, the step, and the state before."""
        whole, offset = part._base, part.storage_offset()
        is_known = self._whole is not None and self._whole.matches(whole) and self._module == module
        if not is_known or not are_same(self._tensors, tensors):
            self._whole, self._module, self._seen_rows = ObjectIdentity(whole), module, 0
            self._tensors = [ObjectIdentity(tensor) for tensor in tensors]
            self._seen.clear()
        if offset in self._seen:
            return
        self._seen.add(offset)
        self._seen_rows += part.shape[0]
        if self._seen_rows == whole.shape[0]:
            self._slices += len(self._seen)
            self._rows += self._seen_rows
            self._of_rows = self._seen_rows
            self._whole = None
            self._place = self._place or self._program.place_of(caller)

    def facts(self, steps: int) -> SliceFacts | None:
        """Return the slices of so many steps; None without any, or where most calls have something else."""
        if not self._slices or self._slices < MOSTLY * self._calls:
            return None
        return SliceFacts(steps, self._slices, self._rows / self._slices, self._of_rows, self._place)


def _is_part(tensor: Any) -> bool:
    """Return whether a tensor has some rows of a batch, at most half of them."""
    whole, rows = tensor._base, tensor.shape[0] if tensor.dim() else 0
    if whole is None or not rows or tensor.dim() != whole.dim() or tensor.shape[1:] != whole.shape[1:]:
        return False
    return bool(2 * rows <= whole.shape[0] and not whole.storage_offset() and tensor.stride() == whole.stride())


class RepeatedWeights(Inspection):
    """Times parametrizations, which are computed at each use of their weight, by hooks within some steps.

    Those of forward passes are on all modules, during a call; those of backward passes are in the graph of the call.
    """

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._names: dict[int, dict[int, str]] = {}  # of weights, by their ids, within each outermost module
        self._thread = self._began_ns = 0  # of the call, and of the parametrization under way
        self._counts = Counts(0, 0, 0)
        self._weights: dict[int, str] = {}  # of the call under way
        self._once: set[tuple[str, int, int]] = set()  # weights of each backward pass and update
        self._uses = 0
        self._spent_ns, self._all_ns = [0, 0], [0, 0]  # forward and backward, of parametrizations and of all
        self._hooks_ns = 0  # in hooks, of the call under way
        self._parts: list[list[float]] = []  # of each step; of some of them another program has most of the time
        self._place = ""

    def follow(self, seen: SeenCall) -> Following:
        """Add the call; that of a module with parametrizations has hooks."""
        module = seen.module
        if not seen.has_grad or len(self._parts) >= 9:
            return
        if seen.counts.steps != self._counts.steps:
            if all(self._all_ns):
                self._parts.append([spent / whole for spent, whole in zip(self._spent_ns, self._all_ns, strict=True)])
            self._spent_ns, self._all_ns = [0, 0], [0, 0]
        self._counts = seen.counts
        if id(module) not in self._names:
            lists = [path for path, each in module.named_modules() if type(each).__name__ == "ParametrizationList"]
            lists = [] if lists and self._program.may_be_compiled(module) else lists
            self._names[id(module)] = {
                id(module.get_submodule(path)): path.replace("parametrizations.", "") for path in lists
            }
        self._weights, self._thread, self._hooks_ns = self._names[id(module)], get_ident(), 0
        with hooks_of_all(self._enters, self._leaves) if self._weights else contextlib.nullcontext():
            yield
            spent_ns = yield
        self._all_ns[0] += spent_ns - self._hooks_ns

    def backward_ends(self, spent_ns: int) -> None:
        """Add a backward pass whose forward pass was seen."""
        self._all_ns[1] += spent_ns

    def _enters(self, module: Any, inputs: tuple[Any, ...]) -> None:
        if get_ident() == self._thread and id(module) in self._weights:
            self._place = self._place or self._program.place_of(sys._getframe(1))
            self._began_ns = perf_counter_ns()

    def _leaves(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        name = self._weights.get(id(module))
        if get_ident() != self._thread or name is None:
            return
        now_ns = perf_counter_ns()
        self._spent_ns[0] += now_ns - self._began_ns
        self._uses += 1
        self._once.add((name, self._counts.backwards, self._counts.updates))
        node = getattr(output, "grad_fn", None)
        if node is not None:
            node.register_prehook(self._gradient_begins)
            for last in _nodes_before_parameters(node):
                last.register_hook(self._gradient_ends)
        self._hooks_ns += perf_counter_ns() - now_ns

    def _gradient_begins(self, gradients: Any) -> None:
        self._began_ns = perf_counter_ns()

    def _gradient_ends(self, *gradients: Any) -> None:
        now_ns = perf_counter_ns()
        self._spent_ns[1] += now_ns - self._began_ns
        self._began_ns = now_ns

    def facts(self, steps: int) -> ComputedWeights | None:
        """Return what was computed again; None for nothing."""
        if self._uses <= len(self._once) or not self._parts:
            return None
        again = 1 - len(self._once) / self._uses
        forward, backward = map(median, zip(*self._parts, strict=True))
        names = {name for name, _, _ in self._once}
        calls = self._uses / len(self._once)
        return ComputedWeights(min(names), len(names), calls, again * forward, again * backward, self._place)


def _nodes_before_parameters(node: Any) -> list[Any]:
    """Return the nodes of a graph that give gradients to parameters; the graph of a parametrization is small."""
    waiting, visited, found = [node], set[Any](), []
    while waiting and len(visited) < 200:
        node = waiting.pop()
        inner = [each for each, _ in node.next_functions if each is not None and each not in visited]
        visited.update(inner)
        if any(each.name().endswith("AccumulateGrad") for each in inner):
            found.append(node)
        waiting += inner
    return found
