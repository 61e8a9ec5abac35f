"""Whether a module is called from a method of another module that is not being called itself."""

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
