"""Finds losses whose graphs are kept from step to step, and in sources what keeps, adds to and works through things.

The graph of a loss is marked: a mark is a small object among the metadata of one node of autograd's graph, which torch
keeps for anomaly detection. It lives as long as the node. A tensor that is weakly referenced would not do:
``total += loss`` keeps the graph alone.
"""

import ast
import contextlib
import os
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from training_profiler.base.units import BYTES_PER_MIB
from training_profiler.instrumentation.call_sites import CallSites
from training_profiler.model.program import PUT_TOGETHER, CallSite, KeptGraphs
from training_profiler.safety.fault_guard import BackgroundThread
from training_profiler.safety.files import read_file

MARKED: Final = 16  # steps whose graphs are marked
AFTER: Final = 8  # steps later, a graph that is alive is kept
DEPTH: Final = 8  # nodes behind the loss, where the graph of the model's output lies
KEY: Final = "training_profiler"
MOST_BYTES: Final = BYTES_PER_MIB  # of a source file
MOST_LINES: Final = 3
BACKWARD: Final = "backward"
LOSS_METHODS: Final = ("training_step", "compute_loss", "forward")  # a trainer calls these, and backward() itself
KEEPERS: Final = ("append", "appendleft", "add", "insert", "put")  # methods that keep an argument
ADDS: Final = re.compile(r"\.add_param_group$|\bparam_groups\b.*\.(append|extend)$")
PUTS: Final = {*KEEPERS, "extend", "update", "setdefault"}  # methods that add elements
# What is as quick for many elements as for few.
QUICK: Final = {*KEEPERS, "pop", "popleft", "get", "shape", "size", "dim", "dtype", "device", "numel", "extend"}
AS_LARGE: Final = {*PUT_TOGETHER, "tensor", "array", "asarray", "sorted"}  # these copy all elements


class _Mark:
    """Lives as long as a node of a graph."""

    __slots__ = ("__weakref__",)


class GraphMarks:
    """Marks the graphs of some early steps, one a step.

    Args:
        read_classes: returns files and names of the classes that a trainer holds whose method a frame is of.
    """

    def __init__(self, calls: CallSites, read_classes: Callable[[Any], set[tuple[str, str]]]) -> None:
        self._calls, self._read_classes = calls, read_classes
        self._marks: list[tuple[int, list[weakref.ref[_Mark]]]] = []  # by update, those that are not old enough
        self._optimizer = self._updates = 0
        self._followed = self._kept = 0
        self._site: CallSite | None = None
        self._classes: set[tuple[str, str]] = set()  # files and names of those that the trainer of a framework has
        self._place = ""  # the lines that keep them, once they are found

    @property
    def is_over(self) -> bool:
        """Whether enough graphs were followed."""
        return self._followed >= MARKED

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> None:
        """Mark the graph of a loss, if it is the first one since the last update."""
        if self._followed + len(self._marks) < MARKED and (not self._marks or self._marks[-1][0] < self._updates):
            marks = _marked(kwargs.get("tensors", args[0] if args else ()))
            if marks:
                self._marks.append((self._updates, marks))
                if self._site is None:
                    self._site = self._calls.site(frame)
                    self._classes = self._read_classes(frame) if self._site and self._site.inside else set()

    def update_ends(self, optimizer: Any) -> None:
        """Check whether a graph that is old by now is alive. Of several optimizers, the first one counts."""
        self._optimizer = self._optimizer or id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        self._updates += 1
        while self._marks and self._marks[0][0] <= self._updates - AFTER:
            _, marks = self._marks.pop(0)
            self._followed += 1
            self._kept += any(mark() is not None for mark in marks)
            if self.is_over and self._kept and self._site is not None:
                beside_the_training("kept losses", lambda: self._name_lines(self._site))

    def _name_lines(self, site: CallSite | None) -> None:
        of_methods = (lines_of_methods(*each) for each in sorted(self._classes))
        self._place = "" if site is None else lines_that_keep(site) or next(filter(None, of_methods), "")

    def facts(self) -> KeptGraphs | None:
        """Return what was found so far; None where no graph is old enough."""
        if not self._followed:
            return None
        backward = "" if self._site is None else self._site.place
        return KeptGraphs(self._followed, self._kept, AFTER, self._place, backward)


def _marked(tensors: Any) -> list[weakref.ref[_Mark]]:
    """Mark the node of the loss and one behind it; a node that is marked already belongs to no single step."""
    node, marks = getattr(tensors[0] if isinstance(tensors, (list, tuple)) else tensors, "grad_fn", None), []
    last = first = node
    for _ in range(DEPTH):
        behind = None if last is None else next((each for each, _ in last.next_functions if each is not None), None)
        if behind is None or "AccumulateGrad" in behind.name():
            break
        last = behind
    for each in (first, last):
        if each is not None and KEY not in each.metadata:
            each.metadata[KEY] = mark = _Mark()
            marks.append(weakref.ref(mark))
    return marks


def beside_the_training(name: str, read: Callable[[], None]) -> BackgroundThread | None:
    """Read source on a thread of its own: the disk that it is on may not respond."""
    with contextlib.suppress(RuntimeError):  # no thread can be started
        thread = BackgroundThread(name, lambda thread: read(), lambda part, begin: begin(), "")
        thread.start()
        return thread
    return None


def tree_of(path: str) -> ast.Module:
    """Return the syntax tree of a file; raise if it has none."""
    # Without escapes, some of which make Python 3.12 and newer warn; each keeps its place.
    return ast.parse(re.sub(rb"\\[^\r\n]", b"__", read_file(path, MOST_BYTES, follow=True)))


def lines_that_keep(backward: CallSite) -> str:
    """Return the lines, as reports name them, that keep the loss of this backward pass; "" if none is seen."""
    with contextlib.suppress(Exception):
        lines = kept_at(tree_of(backward.path), backward.line)[:MOST_LINES]
        return f"{backward.file}:{', '.join(map(str, lines))}" if lines else ""
    return ""


def kept_at(tree: ast.Module, line: int) -> list[int]:
    """Return the lines of the same function that keep the loss of the backward pass at ``line``.

    The loss is kept as it is, or in a sum: ``float(loss)``, ``loss.item()`` and ``loss.detach()`` keep no graph.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    within = [function for function in functions if _covers(function, line)]
    nodes = list(ast.walk(max(within, key=lambda function: function.lineno, default=tree)))
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == BACKWARD and _covers(node, line)
    ]
    return _kept_in(nodes, {name.id for call in calls for name in ast.walk(call) if isinstance(name, ast.Name)})


def lines_of_methods(path: str, name: str) -> str:
    """Return the lines, as reports name them, in which methods of a class keep the loss that they return."""
    with contextlib.suppress(Exception):
        classes = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef) and node.name == name]
        methods = [each for node in classes for each in node.body if getattr(each, "name", "") in LOSS_METHODS]
        lines: list[int] = []
        for method in methods:
            nodes = list(ast.walk(method))
            values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
            lines += _kept_in(nodes, {name for value in values for name in _bare(value)})
        return f"{os.path.basename(path)}:{', '.join(map(str, lines[:MOST_LINES]))}" if lines else ""
    return ""


def _kept_in(nodes: list[ast.AST], losses: set[str]) -> list[int]:
    """Return the lines of a function that keep one of these losses."""
    sums = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id in losses for to in node.targets)
    ]
    losses |= {name for value in sums for name in _bare(value)}  # both of ``loss = policy_loss + value_loss``
    return sorted({getattr(node, "lineno", 0) for node in nodes if _keeps(node, losses)})


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return first <= line <= (last or first)


def _keeps(node: ast.AST, losses: set[str]) -> bool:
    if isinstance(node, ast.AugAssign):
        is_other = isinstance(node.op, ast.Add) and not losses & set(_bare(node.target))
        return is_other and bool(losses & set(_bare(node.value)))
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


def _bare(value: ast.AST) -> Iterator[str]:
    """Yield the names whose own values are part of this one, through arithmetic and containers, but no call."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, ast.Attribute):  # self.total
        yield ast.unparse(value)
    elif isinstance(value, ast.Subscript):  # outputs["loss"]
        yield from _bare(value.value)
    elif isinstance(value, (ast.BinOp, ast.UnaryOp, ast.List, ast.Tuple, ast.Dict, ast.IfExp)):
        yield from (name for each in ast.iter_child_nodes(value) for name in _bare(each))


def lines_that_put(tree: ast.Module, name: str) -> Iterator[int]:
    """Yield the lines that add elements to a variable, or to a container in it."""
    last = name.rpartition(".")[2]

    def is_it(node: ast.AST) -> bool:
        while isinstance(node, ast.Subscript):
            node = node.value
        return isinstance(node, ast.Attribute) and node.attr == last if "." in name else getattr(node, "id", "") == name

    for node in ast.walk(tree):
        targets: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PUTS:
            targets = [node.func.value]
        elif isinstance(node, ast.Assign):
            again = any(is_it(each) for each in ast.walk(node.value))  # as of torch.cat
            targets = [each for each in node.targets if isinstance(each, ast.Subscript) or again]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        if any(map(is_it, targets)):
            yield getattr(node, "lineno", 0)


def lines_that_add(tree: ast.Module, file: str) -> str:
    """Return the lines, as reports name them, that give parameters to an optimizer; "" of none."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    lines = sorted({node.lineno for node in calls if ADDS.search(ast.unparse(node.func))})[:MOST_LINES]
    return f"{file}:{', '.join(map(str, lines))}" if lines else ""


def lines_that_work_through(tree: ast.AST, name: str, of_copies: bool = True) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of what takes longer where a variable has more elements.

    A function of the same file that gets the variable works through it, too, and so does what works through a copy that
    its own function made, such as by ``torch.cat``.
    """
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    last = name.rpartition(".")[2]

    def is_it(node: ast.AST) -> bool:
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return False
        if "." in name:
            return isinstance(node, ast.Attribute) and node.attr == last
        return isinstance(node, ast.Name) and node.id == name

    def visit(node: ast.AST, around: ast.AST, statement: ast.AST) -> Iterator[tuple[int, int]]:
        statement = node if isinstance(node, ast.stmt) else statement
        if is_it(node) and not _is_quick(node, around):
            yield _lines_of(statement, node)
            called = getattr(getattr(around, "func", None), "id", getattr(getattr(around, "func", None), "attr", ""))
            if called in functions:
                yield functions[called].lineno, functions[called].end_lineno or functions[called].lineno
        within = [lines for inner in ast.iter_child_nodes(node) for lines in visit(inner, node, statement)]
        yield from within
        if within and isinstance(node, ast.With) and "open(" in ast.unparse(node.items[0]):
            yield node.lineno, node.lineno  # the file is emptied before, and the rest of it written after

    yield from visit(tree, tree, tree)
    for function in functions.values() if of_copies else ():
        for copy in {copy for node in ast.walk(function) for copy in _copies(node, is_it)}:
            yield from lines_that_work_through(function, copy, of_copies=False)


def _copies(node: ast.AST, is_it: Callable[[ast.AST], bool]) -> Iterator[str]:
    """Yield the names that an assignment gives to copies of all of a variable's elements."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        pairs = [(target, getattr(node, "value", target))]
        if isinstance(target, ast.Tuple) and isinstance(pairs[0][1], ast.Tuple):
            pairs = list(zip(target.elts, pairs[0][1].elts, strict=False))
        for to, value in pairs:
            called = getattr(getattr(value, "func", None), "id", getattr(getattr(value, "func", None), "attr", ""))
            if isinstance(to, ast.Name) and called in AS_LARGE and any(map(is_it, getattr(value, "args", ()))):
                yield to.id


def _is_quick(node: ast.AST, around: ast.AST) -> bool:
    """Return whether what is done with a variable takes no longer for more elements."""
    if isinstance(around, ast.Attribute):
        return around.attr in QUICK
    if isinstance(around, ast.Subscript) and around.value is node:
        part = around.slice
        return not isinstance(part, ast.Slice) or isinstance(part.lower, ast.UnaryOp)  # the last few
    if not isinstance(around, ast.Call):
        return False  # a method of this name, as of dict.values(), is another thing
    return around.func is node or getattr(around.func, "id", "") in ("len", "id", "isinstance", "type")


def _lines_of(statement: ast.AST, node: ast.AST) -> tuple[int, int]:
    """Return the lines of a statement, of a loop over a variable, or of the part of another statement with a body."""
    whole: ast.AST = node
    if not hasattr(statement, "body"):
        whole = statement
    elif isinstance(statement, (ast.For, ast.AsyncFor)) and any(each is node for each in ast.walk(statement.iter)):
        trains = any(getattr(each, "attr", "") == BACKWARD for each in ast.walk(statement))
        whole = node if trains else statement
    first = getattr(whole, "lineno", 0)
    return first, getattr(whole, "end_lineno", None) or first
