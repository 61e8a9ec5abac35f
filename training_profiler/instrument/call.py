"""A call of a module."""

from types import CodeType


class Call:
    """An outermost module call under way."""

    __slots__ = ("around", "begin_ns", "caller", "code", "has_grad", "is_bare", "is_driver", "is_explored", "kind")

    def __init__(self, kind: type, begin_ns: int, code: int, is_explored: bool = False, has_grad: bool = True) -> None:
        self.kind = kind
        self.begin_ns = begin_ns  # of its span; 0 where it extends the one before
        self.code = code  # of its span
        self.is_explored = is_explored  # what it calls is looked at, for it may be a trainer that holds the model
        self.has_grad = has_grad
        self.is_bare = False
        self.is_driver = False
        self.around: tuple[tuple[int, int] | None, set[int]] = (None, set())  # the method it is called from
        self.caller: CodeType | None = None  # code of a plain function that calls it again and again
