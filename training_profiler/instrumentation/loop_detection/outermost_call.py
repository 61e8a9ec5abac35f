"""An outermost call of a module, which no other module makes."""

from types import CodeType
from typing import Any, Final

from training_profiler.recording.fields import Fields, field

_NO_METHOD: Final[tuple[tuple[int, int] | None, set[int]]] = (None, set())


class ModuleCall(Fields):
    """An outermost module call under way."""

    caller: CodeType | None = field(0)  # code of the function that makes this call in every step
    kind: type = field(1)
    is_bare: bool = field(2)
    is_in_method: bool = field(3)  # a method of a module makes it
    is_plain: bool = field(4)  # its end needs nothing but the exit of its span
    begin_ns: int = field(5)  # of its span; 0 if it extends the span before
    code: int = field(6)  # of its span

    def __init__(self, kind: type, begin_ns: int, code: int, is_explored: bool = False, has_grad: bool = True) -> None:
        self.kind = kind
        self.begin_ns = begin_ns
        self.code = code
        self.is_explored = is_explored  # calls inside are recorded too, because it may be a trainer module
        self.has_grad = has_grad
        self.is_bare = False
        self.is_trainer = False
        self.is_plain = False
        self.is_in_method = False
        self.around = _NO_METHOD  # of an explored call: the method it is called from, and the modules called there
        self.caller = None


def inputs_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the inputs of a module call."""
    return (*args, *kwargs.values(), *kwargs) if kwargs else args
