"""Finds in a program's source the lines that keep each loss, such as ``losses.append(loss)`` or ``total += loss``."""

import ast
import contextlib
import re
from collections.abc import Iterator
from typing import Final

from training_profiler.base.units import BYTES_PER_MIB
from training_profiler.safety.files import read_file
from training_profiler.snapshot.program import CallSite

MOST_BYTES: Final = BYTES_PER_MIB
MOST_LINES: Final = 3
BACKWARD: Final = "backward"
KEEPERS: Final = ("append", "appendleft", "add", "insert", "put")  # methods that keep an argument


def lines_that_keep(backward: CallSite) -> str:
    """Return the lines, as reports name them, that keep the loss of this backward pass; "" if none is seen."""
    with contextlib.suppress(Exception):
        # Without escapes, some of which make Python 3.12 and newer warn; each keeps its place.
        tree = ast.parse(re.sub(rb"\\[^\r\n]", b"__", read_file(backward.path, MOST_BYTES, follow=True)))
        lines = kept_at(tree, backward.line)[:MOST_LINES]
        return f"{backward.file}:{', '.join(map(str, lines))}" if lines else ""
    return ""


def kept_at(tree: ast.Module, line: int) -> list[int]:
    """Return the lines of the same function that keep the loss of the backward pass at ``line``.

    The loss is kept as it is, or in a sum: ``float(loss)``, ``loss.item()`` and ``loss.detach()`` keep no graph.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    within = [function for function in functions if _covers(function, line)]
    nodes = list(ast.walk(max(within, key=lambda function: function.lineno, default=tree)))
    calls = [node for node in nodes if _is_backward(node) and _covers(node, line)]
    losses = {name.id for call in calls for name in ast.walk(call) if isinstance(name, ast.Name)}
    losses |= {name for node in nodes for name in _parts(node, losses)}
    return sorted({getattr(node, "lineno", 0) for node in nodes if _keeps(node, losses)})


def _parts(node: ast.AST, losses: set[str]) -> Iterator[str]:
    """Yield the names that a sum of losses is assigned from: both of ``loss = policy_loss + value_loss``."""
    if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id in losses for to in node.targets):
        yield from _bare(node.value)


def _is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == BACKWARD


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return first <= line <= (last or first)


def _keeps(node: ast.AST, losses: set[str]) -> bool:
    if isinstance(node, ast.AugAssign):
        return (
            isinstance(node.op, ast.Add)
            and not losses & set(_bare(node.target))
            and bool(losses & {*_bare(node.value)})
        )
    if isinstance(node, ast.Assign):
        return any(_is_store(target, node.value, losses) for target in node.targets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPERS:
        return any(losses & set(_bare(argument)) for argument in node.args)
    return False


def _is_store(target: ast.expr, value: ast.expr, losses: set[str]) -> bool:
    """Return whether an assignment keeps a loss: ``history[step] = loss``, or ``total = total + loss``."""
    names = set(_bare(value))
    if not losses & names:
        return False
    return isinstance(target, ast.Subscript) or (
        isinstance(value, ast.BinOp) and bool(set(_bare(target)) & (names - losses))
    )


def _bare(value: ast.expr) -> Iterator[str]:
    """Yield the names whose own values are part of this one, through arithmetic and containers, but no call."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, ast.BinOp):
        yield from (name for side in (value.left, value.right) for name in _bare(side))
    elif isinstance(value, (ast.List, ast.Tuple)):
        yield from (name for element in value.elts for name in _bare(element))
    elif isinstance(value, ast.UnaryOp):
        yield from _bare(value.operand)
    elif isinstance(value, ast.Attribute):  # self.total
        yield ast.unparse(value)
