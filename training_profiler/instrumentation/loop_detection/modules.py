"""Calls of modules, the methods that make them, and which modules are trainable, unlike losses and frozen teachers."""

from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from training_profiler.recording.event_codes import Fields, field

MAX_CODES: Final = 10_000
MAX_FRAMES: Final = 8
MAX_MODULES: Final = 100_000
CALLS_PER_CHECK: Final = 64  # of a frozen module
Said = TypeVar("Said")


def is_compiled(module: Any) -> bool:
    """Return whether ``module`` may run compiled code, which patches cannot follow."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def plain_classes(torch: Any) -> tuple[type, ...]:
    """Return the tensor classes without behaviour of their own."""
    return (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))


class ModuleCall(Fields):
    """An outermost module call under way, which no other module makes."""

    caller: CodeType | None = field(0)  # code of the function that makes this call in every step
    kind: type = field(1)
    is_bare: bool = field(2)
    is_plain: bool = field(3)  # C has recorded its begin, and its end needs nothing but the exit of its span
    begin_ns: int = field(4)  # of its span; 0 if it extends the span before
    code: int = field(5)  # of its span
    mode: bool = field(6)  # ``module.training``, as C may go on with
    use: Any = field(7)  # of a call without gradients: the ``ModuleUse`` to which C adds others like it
    is_explored = False  # calls inside are recorded too, because it may be a trainer module
    around: tuple[tuple[int, int] | None, set[int]]  # of an explored one: its method, and the modules called there
    is_trainer = False

    def __init__(self, kind: type, begin_ns: int, code: int, has_grad: bool = True) -> None:
        self.kind, self.begin_ns, self.code, self.has_grad = kind, begin_ns, code, has_grad


class MethodFrames:
    """Recognizes methods of ``torch.nn.Module`` classes by their code objects.

    Only the code of a frame is kept: the frame would keep its local variables alive.
    """

    def __init__(self, root: type) -> None:
        self._root = root
        self.depth = 0  # number of the methods found last
        # By id, because hashing a code object reads all of it. The code is kept so that its id is not reused.
        self._is_method: dict[int, tuple[CodeType, bool]] = {}

    def outermost(self, frame: FrameType | None) -> tuple[int, int] | None:
        """Return a key of the outermost method in the run of methods that ends at ``frame``; None without any.

        Two successive calls of a method may have the same key, because frames are reused.
        """
        method: FrameType | None = None
        for self.depth in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            known = self._is_method.get(id(code)) or read_code(self._is_method, code, self._is_of_class)
            if not known[1]:
                break
            method, frame = frame, frame.f_back
        return None if method is None else (id(method), id(method.f_code))

    def _is_of_class(self, code: CodeType) -> bool:
        return "." in code.co_qualname and any(
            _code_of(vars(kind).get(code.co_name)) is code for kind in _subclasses(self._root)
        )


def read_code(
    known: dict[int, tuple[CodeType, Said]], code: CodeType, says: Callable[[CodeType], Said]
) -> tuple[CodeType, Said]:
    """Return ``code`` with what it ``says``, and remember both by its id."""
    if len(known) >= MAX_CODES:
        known.clear()
    found = known[id(code)] = (code, says(code))
    return found


def _code_of(function: Any) -> CodeType | None:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _subclasses(root: type) -> Iterator[type]:
    visited: set[type] = set()
    waiting = [root]
    while waiting:
        kind = waiting.pop()
        if kind not in visited:
            visited.add(kind)
            waiting += type.__subclasses__(kind)
            yield kind


class TrainableModules:
    """Remembers which modules are trainable, by id alone: nothing is left on them or keeps them alive."""

    def __init__(self) -> None:
        self._trainable: set[int] = set()
        self._frozen: dict[int, int] = {}  # id -> calls since the module was found frozen

    def is_trainable(self, module: Any) -> bool:
        """Return whether a parameter of ``module`` requires a gradient, or did at an earlier call."""
        if not module._modules and not module._parameters:
            return False
        key = id(module)
        if key in self._trainable:
            return True
        if type(module).__module__.startswith("torch.nn.utils.param"):  # computes a weight at each access
            return False
        calls = self._frozen.get(key, 0)
        if calls >= 8 and calls % CALLS_PER_CHECK:  # checking all parameters of a large model takes 0.1 ms
            self._frozen[key] = calls + 1
            return False
        if len(self._trainable) + len(self._frozen) > MAX_MODULES:
            self._trainable.clear()
            self._frozen.clear()
        # In train mode it is frozen only for a moment, as a discriminator is while its generator trains.
        if any(parameter.requires_grad or module.training for parameter in parameters_within(module)):
            self._trainable.add(key)
            self._frozen.pop(key, None)
            return True
        self._frozen[key] = calls + 1
        return False

    @property
    def is_any(self) -> bool:
        """Whether any module was found trainable so far."""
        return bool(self._trainable)

    def was_trained(self, module: int) -> bool:
        """Return whether the module with this id was found trainable at this or an earlier call."""
        return module in self._trainable


def is_bare(module: Any) -> bool:
    """Return whether ``module`` has no parameters, as most losses."""
    if module._parameters:
        return False
    if not module._modules:
        return True
    for inner in module._modules.values():  # nearly always one of them has some, which is much quicker to see here
        if inner is not None:
            for parameter in inner._parameters.values():
                if parameter is not None:
                    return False
    return next(parameters_within(module), None) is None


def modules_within(module: Any) -> Iterator[Any]:
    """Yield ``module`` and each module inside it once. No method is called: a class may have its own ``modules``."""
    visited: set[int] = set()
    waiting = [module]
    while waiting:
        inner = waiting.pop()
        if inner is not None and id(inner) not in visited:
            visited.add(id(inner))
            yield inner
            waiting += inner._modules.values()


def parameters_within(module: Any) -> Iterator[Any]:
    """Yield the parameters of ``module`` and of all modules inside it, whatever its own ``parameters`` returns."""
    for inner in modules_within(module):
        yield from (parameter for parameter in inner._parameters.values() if parameter is not None)
