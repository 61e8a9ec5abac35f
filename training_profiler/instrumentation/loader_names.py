"""What a program calls its data loaders: the variable, attribute or key that holds what a call returns.

The source of the call says it. A function that returns the loader passes it on to the line that called the function.
"""

import ast
import gc
import linecache
from collections.abc import Sequence
from itertools import islice
from os.path import basename
from types import FrameType
from typing import Any, Final, NamedTuple

from training_profiler.model.program import CallSite

MOST_FRAMES: Final = 6  # functions that return the loader of another one
LIBRARIES: Final = ("site-packages", "dist-packages")
MOST_NAME: Final = 60  # characters
# Functions that return what they are given, or what stands for it.
PASSES_ON: Final = frozenset(
    ("cycle", "enumerate", "iter", "list", "prepare", "profile_dataloader", "setup_dataloaders", "tqdm", "tuple")
)
_TRANSPARENT: Final = (ast.Await, ast.BoolOp, ast.IfExp, ast.Starred, ast.Dict, ast.comprehension)


class SourceCall(NamedTuple):
    """A call under way: where its expression begins and ends in a source file, and the function it stands in."""

    file: str
    function: str
    span: tuple[int, int, int, int]  # line and column of its begin, line and column of its end


class HeldAs(NamedTuple):
    """What one line does with the value of a call."""

    name: str = ""
    is_returned: bool = False
    has_computed_key: bool = False
    places: tuple[int, ...] = ()  # of the value in what is returned, innermost first


def calls_under_way(frame: FrameType | None, site: CallSite) -> tuple[SourceCall, ...]:
    """Return the calls of the program on the stack, from the one at ``site`` on, as far as a library's function."""
    calls: list[SourceCall] = []
    while frame is not None and len(calls) < MOST_FRAMES:
        code = frame.f_code
        if calls and any(folder in code.co_filename for folder in LIBRARIES):
            break
        if calls or (frame.f_lineno == site.line and basename(code.co_filename) == basename(site.path or site.file)):
            begin, end, column, end_column = next(islice(code.co_positions(), frame.f_lasti // 2, None))
            if None in (begin, end, column, end_column):
                break
            calls.append(SourceCall(code.co_filename, code.co_name, (begin, column, end, end_column)))  # type: ignore[arg-type]
        frame = frame.f_back
    return tuple(calls)


def held_as(calls: Sequence[SourceCall], number: int) -> HeldAs:
    """Return what holds the value of the first call, the ``number``-th that it returned; an empty name if unknown."""
    known = HeldAs()
    for call in calls:
        held = _held(call, number, known.places)
        known = held._replace(name=held.name or known.name)
        if not held.is_returned:
            return known
    # A library takes what the function returns: Lightning's train_dataloader.
    function = calls[-1].function if calls and calls[-1].function.isidentifier() else ""
    return known._replace(name=known.name or function)


def keys_of(loader: Any) -> dict[int, str]:
    """Return the keys of the dictionary that holds a loader, by the ids of its values; empty if there is none."""
    for holder in gc.get_referrers(loader):
        if type(holder) is dict and not {"__name__", "__dict__"} & holder.keys():  # no module's variables, no class's
            return {id(value): key for key, value in holder.items() if isinstance(key, str)}
    return {}


def _held(call: SourceCall, number: int, places: tuple[int, ...]) -> HeldAs:
    linecache.checkcache(call.file)
    lines = linecache.getlines(call.file)
    path = _path_to(ast.parse("".join(lines)), call.span) if lines else []
    if not path or not isinstance(path[-1], ast.Call):
        return HeldAs()
    trail, value = [*places], path[-1]
    for parent in reversed(path[:-1]):
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            target = parent.targets[0] if isinstance(parent, ast.Assign) else parent.target
            return _in_target(target, trail, path)
        if isinstance(parent, ast.Return | ast.Lambda):
            return HeldAs(is_returned=True, places=tuple(trail))
        if isinstance(parent, ast.Dict) and value in parent.values:
            key = parent.keys[parent.values.index(value)]
            return HeldAs(str(key.value)) if isinstance(key, ast.Constant) else HeldAs(has_computed_key=True)
        if isinstance(parent, ast.DictComp):
            return HeldAs(has_computed_key=True)
        if isinstance(parent, ast.keyword) and parent.arg:
            return HeldAs(parent.arg)
        if isinstance(parent, ast.Tuple | ast.List):
            trail.append(parent.elts.index(value))
        elif isinstance(parent, ast.ListComp | ast.GeneratorExp):
            trail.append(number)
        elif isinstance(parent, ast.Call) and _name_of(parent.func) in PASSES_ON and value in parent.args:
            if len(parent.args) > 1 and _name_of(parent.func) != "tqdm":
                trail.append(parent.args.index(value))
        elif isinstance(parent, ast.Expr) and call.function == "__init__":  # a subclass of the program's begins
            return HeldAs(is_returned=True)
        elif not isinstance(parent, _TRANSPARENT):
            break
        value = parent  # type: ignore[assignment]
    return HeldAs()


def _in_target(target: ast.expr, trail: list[int], path: list[ast.AST]) -> HeldAs:
    while isinstance(target, ast.Tuple | ast.List) and trail and trail[-1] < len(target.elts):
        target = target.elts[trail.pop()]
    if isinstance(target, ast.Subscript):
        is_known = isinstance(target.slice, ast.Constant) and not trail
        return HeldAs(str(target.slice.value)) if is_known else HeldAs(has_computed_key=not trail)  # type: ignore[attr-defined]
    name = _name_of(target)
    function = next((node for node in reversed(path) if isinstance(node, ast.FunctionDef)), None)
    is_returned = isinstance(target, ast.Name) and any(
        isinstance(node, ast.Return) and _name_of(node.value) == name for node in ast.walk(function or ast.Pass())
    )
    places = "".join(f"[{at}]" for at in reversed(trail))
    return HeldAs(name and name + places, is_returned, places=tuple(trail))


def _name_of(node: Any) -> str:
    """Return the name of a variable or of an attribute; "" for other expressions."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def _path_to(tree: ast.AST, span: tuple[int, int, int, int]) -> list[ast.AST]:
    """Return the nodes around an expression, outermost first, and the expression; empty if there is none."""
    for child in ast.iter_child_nodes(tree):
        at = _span(child)
        if at is None or (at[:2] <= span[:2] and span[2:] <= at[2:]):
            below = _path_to(child, span)
            if below or at == span:
                return [child, *below]
    return []


def _span(node: ast.AST) -> tuple[int, int, int, int] | None:
    if not hasattr(node, "end_col_offset"):
        return None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
