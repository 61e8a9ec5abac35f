"""Which modules can be trained: those with a parameter that wants a gradient. Losses and frozen teachers cannot."""

from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

MOST_CODES: Final = 10_000
MOST_FRAMES: Final = 8


class MethodFrames:
    """Tells methods of ``torch.nn.Module`` classes from other functions, by their code objects.

    Nothing is read from a frame but its code: its local variables would live on with it.
    """

    def __init__(self, root: type) -> None:
        self._root = root
        # By id, for a code object's hash goes through all of its code; the code is kept so that the id stays its own.
        self._is_method: dict[int, tuple[CodeType, bool]] = {}

    def outermost(self, frame: FrameType | None) -> tuple[int, int] | None:
        """Return what identifies the outermost of the methods that ``frame`` and those around it are; None without any.

        Two calls of one method after another may look the same: frames are used again.
        """
        found: FrameType | None = None
        for _ in range(MOST_FRAMES):
            if frame is None or not self._is_method_code(frame.f_code):
                break
            found, frame = frame, frame.f_back
        return None if found is None else (id(found), id(found.f_code))

    def _is_method_code(self, code: CodeType) -> bool:
        known = self._is_method.get(id(code))
        if known is None:
            if len(self._is_method) >= MOST_CODES:
                self._is_method.clear()
            known = self._is_method[id(code)] = (code, "." in code.co_qualname and self._is_of_module(code))
        return known[1]

    def _is_of_module(self, code: CodeType) -> bool:
        return any(_code_of(vars(kind).get(code.co_name)) is code for kind in _subclasses(self._root))


def _code_of(function: Any) -> CodeType | None:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _subclasses(root: type) -> Iterator[type]:
    seen: set[type] = set()
    waiting = [root]
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += type.__subclasses__(kind)
            yield kind


MOST_MODULES: Final = 100_000
LOOKED_AT_EACH: Final = 64  # calls after which a frozen module is looked at again


class Trainable:
    """Remembers modules by id alone: nothing is left on them, and they live no longer for it."""

    def __init__(self) -> None:
        self._trainable: set[int] = set()
        self._frozen: dict[int, int] = {}  # id -> calls since it was found to be frozen

    def is_trainable(self, module: Any) -> bool:
        """Return whether any parameter of ``module`` requires a gradient, or has at an earlier call."""
        if not module._modules and not module._parameters:
            return False
        key = id(module)
        if key in self._trainable:
            return True
        if type(module).__module__.startswith("torch.nn.utils.param"):  # computes a weight whenever one looks at it
            return False
        calls = self._frozen.get(key, 0)
        if calls >= 8 and calls % LOOKED_AT_EACH:  # looking through all parameters of a large model takes 0.1 ms
            self._frozen[key] = calls + 1
            return False
        if len(self._trainable) + len(self._frozen) > MOST_MODULES:
            self._trainable.clear()
            self._frozen.clear()
        # In train mode it is only frozen for a moment, as a discriminator while its generator learns.
        if any(parameter.requires_grad or module.training for parameter in module.parameters()):
            self._trainable.add(key)
            self._frozen.pop(key, None)
            return True
        self._frozen[key] = calls + 1
        return False

    @property
    def is_any(self) -> bool:
        """Whether any module was found to be trainable so far."""
        return bool(self._trainable)

    def was_trained(self, module: int) -> bool:
        """Return whether the module with this id was found trainable at this or an earlier call."""
        return module in self._trainable


def is_bare(module: Any) -> bool:
    """Return whether ``module`` has no parameter at all, as most losses."""
    return not module._parameters and (not module._modules or next(module.parameters(), None) is None)
