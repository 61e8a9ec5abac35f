"""Finds frozen modules that compute the same features of a loader's batches in each epoch."""

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from threading import get_ident
from time import perf_counter_ns
from types import FunctionType, MethodType
from typing import Any, Final

from training_profiler.base.units import NS_PER_S
from training_profiler.inspections.inspection import (
    Following,
    Inspection,
    SeenCall,
    UserProgram,
    first_values,
    generator_state,
    hooks_of_all,
    is_watched,
    tensors_within,
)
from training_profiler.instrumentation.loop_detection.modules import modules_within, parameters_within
from training_profiler.model.program import FrozenFacts
from training_profiler.recording.object_identity import ObjectIdentity

# Whether a data set draws random numbers for its samples, as far as its classes and functions show it by name.
#
# Where workers make the batches, and where a data set has a generator of its own, the state of torch's and Python's
# generators shows nothing. Nothing of the program is called.

MOST_OBJECTS: Final = 256
MOST_FUNCTIONS: Final = 64  # of one object
MOST_OF_LIST: Final = 8
MOST_OF_DICT: Final = 64
DEPTH: Final = 5
OF_FUNCTIONS: Final = frozenset(
    (
        *("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randrange", "randperm", "random"),
        *("random_", "random_sample", "uniform", "uniform_", "normal", "normal_", "standard_normal", "gauss"),
        *("bernoulli", "bernoulli_", "binomial", "multinomial", "choice", "choices", "sample", "shuffle"),
        *("permutation", "integers", "default_rng", "RandomState", "epoch", "_epoch", "current_epoch"),
    )
)
OF_CLASSES: Final = ("random", "augment", "jitter", "mixup", "cutmix", "cutout", "noise", "erasing")
_PLAIN: Final = ("torch", "builtins", "typing", "collections")
_LIBRARIES: Final = ("albumentations", "imgaug", "audiomentations", "volumentations", "kornia", "torch_audiomentations")


def draws_random_numbers(*objects: Any) -> bool:
    """Return whether one of these objects, or what they hold, seems to draw random numbers for a sample."""
    waiting = [(value, 0) for value in objects]
    visited: set[int] = set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in visited:
            continue
        if len(visited) >= MOST_OBJECTS:
            return False
        visited.add(id(value))
        if _is_random(value):
            return True
        if depth < DEPTH:
            waiting += [(inner, depth + 1) for inner in _held(value)]
    return False


def _is_random(value: Any) -> bool:
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        return _draws([value], {})
    kind = type(value)
    if _drops_merges(value):
        return True
    if kind.__module__.partition(".")[0] in _LIBRARIES or any(word in kind.__name__.lower() for word in OF_CLASSES):
        return True
    names = ("__getitem__", "__iter__", "__call__", "__getitems__", "forward", "transform")
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in _PLAIN]
    methods = {name: each for base in reversed(own) for name, each in vars(base).items() if type(each) is FunctionType}
    return _draws([methods[name] for name in names if name in methods], methods)


def _drops_merges(value: Any) -> bool:
    """Return whether a tokenizer leaves out merges by chance; it has no generator of Python's."""
    if not type(value).__module__.startswith(("tokenizers", "transformers")):
        return False
    tokenizer = getattr(value, "backend_tokenizer", value)
    return type(tokenizer).__module__ == "tokenizers" and bool(getattr(tokenizer.model, "dropout", None))


def _draws(functions: list[FunctionType], methods: Mapping[str, FunctionType]) -> bool:
    """Return whether functions draw random numbers, or what they call by name of these methods or their module."""
    seen: list[FunctionType] = []
    while functions and len(seen) < MOST_FUNCTIONS:
        seen.append(function := functions.pop())
        names = function.__code__.co_names
        if not OF_FUNCTIONS.isdisjoint(names):
            return True
        called = [methods.get(name, function.__globals__.get(name)) for name in names]
        inner = [each for each in called if type(each) is FunctionType and each.__module__ == function.__module__]
        functions += [each for each in inner if each not in seen]
        if any(map(_drops_merges, called)):
            return True
    return False


def _held(value: Any) -> Iterator[Any]:
    """Yield what an object holds that may take part in making a sample; of long lists, the first are enough."""
    if isinstance(value, (list, tuple)):
        yield from islice(value, MOST_OF_LIST)
    elif isinstance(value, dict):
        yield from list(dict.values(value))[:MOST_OF_DICT]
    elif isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                yield cell.cell_contents
    elif type(value).__module__ != "builtins":
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from list(attributes.values())[:MOST_OF_DICT]


MOST_MODULES: Final = 16  # that are followed
MOST_LAYERS: Final = 64  # within trained ones
MOST_PARAMETERS: Final = 2_000  # of one of them
MOST_KEPT: Final = 32  # of its parameters and buffers, whose changes show that it is not frozen
MOST_KEPT_INSIDE: Final = 4  # of a layer
NEARLY_ALL: Final = 0.9  # of the batches
LEAST: Final = 0.01  # of the time of all modules


class _Frozen:
    """A module that was frozen in a call, perhaps one within the trained module ``outer``."""

    def __init__(self, module: Any, place: str, has_grad: bool, outer: Any = None) -> None:
        self.module: Callable[[], Any] = weakref.ref(module)
        self.outer: Callable[[], Any] | None = None if outer is None else weakref.ref(outer)
        # The names that lead to it, such as "encoder.layers.0".
        path = "" if outer is None else next((path for path, each in outer.named_modules() if each is module), "")
        self.text = f"{path} of {type(outer).__name__}" if path else type(module).__name__
        self.place = place
        self.has_grad = has_grad
        self.signature = _signature(module)
        tensors = [
            (inner, name, tensor)
            for inner in modules_within(module)
            for name, tensor in (*inner._parameters.items(), *inner._buffers.items())
            if tensor is not None
        ]
        spread = tensors[:: max(1, len(tensors) // (MOST_KEPT if outer is None else MOST_KEPT_INSIDE))]
        self.is_on_cpu = all(tensor.is_cpu for _, _, tensor in spread)
        # Parameters and buffers at the first call; a weak reference of one of them would forbid ``swap_tensors``.
        self.samples = [(weakref.ref(inner), name, _state(tensor)) for inner, name, tensor in spread]
        self.batches = 0
        self.spent = 0.0  # in them: ns, or within another module, parts of its calls

    def took(self, spent: float) -> None:
        """Add what it took in a batch."""
        self.spent += spent
        self.batches += 1

    def stays(self, trained: set[int]) -> bool:
        """Return whether nothing has changed or trained it since, as far as its tensors are still there."""
        for owner_of, name, before in self.samples:
            owner = owner_of()
            if owner is None:
                continue
            tensor = owner._parameters.get(name, owner._buffers.get(name))
            if tensor is None or _state(tensor) != before:
                return False
            if tensor.requires_grad and (self.has_grad or id(tensor) in trained):
                return False
        return True


class _InnerCalls:
    """Times the frozen layers of a trained module within one of its calls, as hooks of all modules.

    A layer counts until a trained one has been called: what comes later may depend on that.
    """

    def __init__(self, generator: tuple[Any, ...], follow: Callable[[Any, bool], bool]) -> None:
        self._generator = generator  # the state of torch's generators before the call
        self._follow = follow  # remembers a module that is frozen, with gradients or without; False for others
        self._thread = get_ident()
        self._open: Any = None  # the frozen module under way
        self._began_ns = 0
        self._is_over = False
        self.spent_ns = Counter[int]()  # by the id of the module

    def begins(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """Handle the begin of a call of a module, as a hook."""
        if self._is_over or self._open is not None or get_ident() != self._thread:
            return
        with contextlib.suppress(Exception):  # of modules with methods of their own
            if _is_function(module) or any(getattr(value, "requires_grad", False) for value in inputs):
                return
            if self._follow(module, sys.modules["torch"].is_grad_enabled()):
                self._is_over = generator_state() != self._generator
                self._open, self._began_ns = module, perf_counter_ns()

    def ends(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Handle the end of a call of a module, as a hook."""
        now_ns = perf_counter_ns()
        if self._is_over or get_ident() != self._thread or not (self._open is None or self._open is module):
            return
        try:
            if self._open is None:
                self._is_over = not _is_function(module)
            else:
                self._open = None
                values = output if isinstance(output, (list, tuple)) else [output]
                needs_gradient = any(getattr(value, "requires_grad", False) for value in values)
                self._is_over = needs_gradient or generator_state() != self._generator
                if not self._is_over:
                    self.spent_ns[id(module)] += now_ns - self._began_ns
        except Exception:  # of modules with methods of their own
            self._is_over = True


class FrozenForward(Inspection):
    """Looks at the outermost calls of some steps, and in few of them inside, at modules that are not trained.

    A call counts if it depends on a batch of a loader alone: no random number was drawn for it, from the begin of the
    fetch on, and no trained module was called since.
    """

    def __init__(self, program: UserProgram) -> None:
        self._program = program
        self._known: dict[int, _Frozen] = {}
        self._generator: tuple[Any, ...] | None = None  # since the batch was fetched; None: it is not known or random
        self._before_fetch: tuple[Any, ...] | None = None
        self._is_fetched = self._is_first = self._has_called = self._is_counted = False
        self._clean: list[tuple[ObjectIdentity, int]] = []  # inputs that depend on the batch alone
        self._random_iterator: tuple[Any, bool] = (None, False)  # the latest, and whether its samples are random
        self.same_fetches = 0  # that drew no random numbers, beside the first of a pass; -1 after one that did
        self._pending = Counter[int]()  # ns of calls that no backward pass has followed yet, by module
        self._pending_all = Counter[int]()
        self._fractions: list[dict[int, float]] = []  # of the looks inside that no backward pass has followed yet
        self._trained_modules: dict[int, tuple[Any, ...]] = {}  # their signatures, by id
        self._batches = self._looks = 0
        self._all_ns = Counter[int]()  # of all outermost calls
        self._found: list[tuple[float, _Frozen]] = []  # with their parts of that time
        self._all_s = 0.0  # of a batch
        self._facts: FrozenFacts | None = None  # of the last report

    # The batch

    def fetch_begins(self, iterator: Any, is_first: bool) -> None:
        """Handle the begin of a fetch; in the first of a pass, the sampler draws numbers."""
        self._before_fetch = None
        if is_watched():
            return
        known, _ = self._random_iterator
        if known is None or not known.matches(iterator):
            parts = [getattr(iterator, name, None) for name in ("_dataset", "_collate_fn")]  # private: may be gone
            self._random_iterator = (ObjectIdentity(iterator), draws_random_numbers(*parts))
        is_more = self._is_fetched and not self._has_called  # a step may take batches of two loaders
        self._is_first = is_first or (is_more and self._is_first)
        self._before_fetch = None if is_more and self._generator is None else generator_state()

    def fetch_ends(self) -> None:
        """Handle the end of a fetch that returned a batch."""
        self._forget_pending()  # they are of an evaluation
        self._generator, self._is_fetched, self._has_called, self._is_counted = None, True, False, False
        self._clean.clear()
        if self._before_fetch is not None and not is_watched():
            state = generator_state()
            is_random = self._random_iterator[1] or state != self._before_fetch
            self._generator = None if is_random else state
            if not self._is_first and self.same_fetches >= 0:
                self.same_fetches = -1 if is_random else self.same_fetches + 1

    def backward_ends(self) -> None:
        """Count the calls since the fetch: they belong to the training."""
        self._has_called = True  # the next fetch is that of another step, also after the first of a pass
        if self._is_fetched and not self._is_first:
            self._batches += not self._is_counted
            self._is_counted = True
            self._all_ns.update(self._pending_all)
            self._looks += len(self._fractions)
            for key, ns in self._pending.items():
                self._known[key].took(ns)
            for key, part in (item for parts in self._fractions for item in parts.items()):
                self._known[key].took(part)
        self._forget_pending()

    def _forget_pending(self) -> None:
        for each in (self._pending, self._pending_all, self._fractions):
            each.clear()

    # Calls

    def follow(self, seen: SeenCall) -> Following:
        """Keep the time of the call until a backward pass shows that it belongs to the training."""
        if not self._is_fetched or self._is_first or (seen.is_bare and not seen.is_watched):
            return
        looked_at, key = None, id(seen.module)
        with contextlib.suppress(Exception):  # of modules with methods of their own
            looked_at = None if seen.is_watched else self._look_at(seen)
        if looked_at is None:
            self._generator = None
            if seen.is_watched:
                self._clean.clear()
            return
        frozen, inner, before = looked_at
        try:
            yield
            with contextlib.nullcontext() if inner is None else hooks_of_all(inner.begins, inner.ends):
                spent_ns = yield
        except GeneratorExit:  # later calls are taken for random, as after any that is not followed to its end
            self._generator = None
            raise
        self._pending_all[key] += spent_ns
        if inner is not None:
            self._fractions.append({layer: ns / max(1, spent_ns) for layer, ns in inner.spent_ns.items()})
        if frozen is None or is_watched() or (before is not None and generator_state() != before):
            self._generator = None  # later calls may depend on what it returns
        else:
            self._pending[key] += spent_ns

    def _look_at(self, seen: SeenCall) -> tuple[_Frozen | None, _InnerCalls | None, tuple[Any, ...] | None]:
        """Return the module if it is frozen and the call depends on the batch alone, else what looks at its layers.

        The state of the generators before the call is beside them, where it is known.
        """
        self._has_called = True
        module, has_grad, trained = seen.module, seen.has_grad, self._program.trained()
        frozen: _Frozen | None = None
        inner: _InnerCalls | None = None
        tensors = list(tensors_within(seen.inputs))
        state = generator_state() if self._generator is not None or self._clean else None
        is_clean = state is not None and state == self._generator
        if is_clean:
            self._clean += [(ObjectIdentity(tensor), tensor._version) for tensor in tensors]
        elif tensors:  # such as a teacher after its student
            is_clean = all(
                any(known.matches(tensor) and version == tensor._version for known, version in self._clean)
                for tensor in tensors
            )
        if is_frozen(module, has_grad, trained):
            if is_clean and not any(tensor.requires_grad for tensor in tensors):
                frozen = self._frozen(module, self._program.place_of(seen.caller), has_grad)
        else:
            if id(module) not in self._trained_modules:
                self._trained_modules[id(module)] = _signature(module)
            is_due = has_grad and self._looks + len(self._fractions) < 3  # batches
            if state is not None and is_clean and is_due and not self._program.may_be_compiled(module):
                place = self._program.place_of(seen.caller)

                def follow(layer: Any, has_grad: bool) -> bool:
                    return is_frozen(layer, has_grad, trained) and bool(self._frozen(layer, place, has_grad, module))

                inner = _InnerCalls(state, follow)
        return frozen, inner, state

    def _frozen(self, module: Any, place: str, has_grad: bool, outer: Any = None) -> _Frozen | None:
        known = self._known.get(id(module))
        if known is None or known.module() is not module:
            if len(self._known) >= (MOST_MODULES if outer is None else MOST_LAYERS):
                return None
            known = self._known[id(module)] = _Frozen(module, place, has_grad, outer)
        return known

    # What was found

    def stop(self) -> None:
        """Decide what is frozen, and forget the rest."""
        with contextlib.suppress(Exception):
            self._decide()
        self._known.clear()
        self._all_ns.clear()
        self._clean.clear()
        self._is_fetched, self._random_iterator = False, (None, False)

    def _decide(self) -> None:
        all_ns = self._all_ns.total()
        for frozen in self._known.values() if all_ns else ():
            ns, batches = frozen.spent, self._batches
            if frozen.outer is not None:
                ns = frozen.spent / max(1, self._looks) * self._all_ns[id(frozen.outer())]
                batches = self._looks
            # On a device a change of ``p.data`` is not seen: a module like a trained one may be its average.
            is_copy = not frozen.is_on_cpu and frozen.signature in self._trained_modules.values()
            if ns >= LEAST * all_ns and batches and frozen.batches >= NEARLY_ALL * batches and not is_copy:
                self._found.append((ns / all_ns, frozen))
        self._all_s = all_ns / NS_PER_S / max(1, self._batches)

    def facts(self, steps: int) -> FrozenFacts | None:
        """Return what was found; None if nothing was, or if it has changed since."""
        try:
            if self._found and is_watched():
                return self._facts
            trained = self._program.trained()
            self._found = [(share, frozen) for share, frozen in self._found if frozen.stays(trained)]
        except Exception:
            self._found = []
        self._facts = None
        if self._found:
            _, most = max(self._found, key=lambda found: found[0])
            part = min(1.0, sum(share for share, _ in self._found))
            seconds, count = part * self._all_s, len(self._found)
            self._facts = FrozenFacts(self._batches, part, most.has_grad, most.text, most.place, seconds, count)
        return self._facts


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


def _state(tensor: Any) -> tuple[Any, ...]:
    return tensor._version, tensor.data_ptr(), first_values(tensor)


def _signature(module: Any) -> tuple[Any, ...]:
    """Return what a module and its moving average have in common; not their class, which would outlive the program."""
    parameters = [each for inner in modules_within(module) for each in inner._parameters.values() if each is not None]
    return type(module).__qualname__, len(parameters), sum(each.numel() for each in parameters)


def _is_function(module: Any) -> bool:
    """Return whether a module only computes something of its input, such as an activation."""
    return next(parameters_within(module), None) is None and not (module.training and module._buffers)
