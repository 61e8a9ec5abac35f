"""How many steps the training has: by a trainer's own count, or by the source of ``for`` loops that nothing ends early.

Two backward passes, each the first after an update, show how many iterations of the loops a step takes.
"""

import ast
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, NamedTuple

from training_profiler.inspections.inspection import (
    LIBRARIES,
    MOST_FRAMES,
    NO_TRAINERS,
    locals_of,
    owner_of,
    package_of,
)
from training_profiler.inspections.kept_graphs import beside_the_training, tree_of

MOST_READS: Final = 3  # of source, where backward passes begin at several lines
PATIENCE_S: Final = 1.0
APART: Final = 8  # updates between the two backward passes: as many as gradients are often accumulated
# Packages whose functions call the program, once and not in a loop.
LAUNCHERS: Final = (*NO_TRAINERS, "__main__", "absl", "accelerate", "click", "fire", "hydra", "_pytest", "pluggy")
PASSES_ON: Final = ("enumerate", "tqdm", "track", "trange", "iter")  # functions that yield what they are given
Counted = tuple[float, float]  # iterations that are done, and all of them


class Loop(NamedTuple):
    """A ``for`` loop: its variable, "" for several, and what it goes over."""

    variable: str
    over: ast.expr


class LoopLength:
    """Counts the steps of the loop under way; ``passed`` returns the latest pass over a data loader."""

    def __init__(self, passed: Callable[[], Any]) -> None:
        self._passed = passed
        self._sites: list[tuple[str, str, int]] = []  # of the program's functions under way: file, name, line
        self._loops: list[list[Loop]] | None = None  # of each; None while they are not known
        self._first: tuple[float, int, int] | None = None  # iterations done, updates, steps
        self._updates = -1
        self._reads = MOST_READS
        self._reading: Any = None  # a thread
        self.expected_steps = 0  # in the whole loop, 0 while unknown

    def backward_begins(self, frame: FrameType | None, updates: int, steps: int) -> None:
        """Look at the loops, if this is the first backward pass after an update; ``steps`` are the primary's updates.

        Raises:
            Exception: something of the program has other attributes; then nothing is known.
        """
        if self.expected_steps or updates == self._updates or (self._first and updates < self._first[1] + APART):
            return
        self._updates = updates
        counted = self._counted(frame)
        if counted is None or not all(map(math.isfinite, counted)):
            return
        done, whole = counted
        if self._first is None:
            self._first = done, updates, steps
        elif done > (before := self._first[0]) and steps > self._first[2]:
            a_step = (steps - self._first[2]) / (done - before)
            so_far = updates * (steps - self._first[2]) / (updates - self._first[1])
            self.expected_steps = round(so_far + (whole - done) * a_step)

    def stop(self) -> None:
        """Wait a moment for the thread that reads source, if there is one."""
        if self._reading is not None:
            self._reading.join(PATIENCE_S)

    def _counted(self, frame: FrameType | None) -> Counted | None:
        frames, is_within = [], False
        for _ in range(MOST_FRAMES):
            if frame is None:
                break
            path, package = frame.f_code.co_filename, package_of(frame.f_globals.get("__name__"))
            if trainer := TRAINERS.get(package):
                counted = trainer(frame)
                if counted is not None:
                    return counted
            elif path.endswith(".py") and LIBRARIES not in path and package not in NO_TRAINERS:
                frames.append(frame)
                is_within = True
            elif is_within and package not in LAUNCHERS:
                return None  # a library's loop calls the program
            frame = frame.f_back
        return self._of_loops(frames[::-1])

    def _of_loops(self, frames: list[FrameType]) -> Counted | None:
        sites = [(each.f_code.co_filename, each.f_code.co_name, each.f_lineno) for each in frames]
        if sites != self._sites and self._reads:
            self._reads -= 1
            self._sites, self._loops, self._first = sites, None, None

            def read() -> None:
                with contextlib.suppress(Exception):  # no source, or one that Python cannot read
                    found = [loops_at(tree_of(path), name, line) for path, name, line in sites]
                    if self._sites is sites and None not in found:
                        self._loops = [loops for loops in found if loops is not None]

            self._reading = beside_the_training("loops", read)
        done, whole = 0.0, 1.0
        for frame, loops in zip(frames, self._loops or () if sites == self._sites else (), strict=False):
            for loop in loops:
                counted = self._of_loop(loop, frame)
                if counted is None:
                    return None
                done, whole = done * counted[1] + counted[0], whole * counted[1]
        return (done, whole) if whole > 1 else None

    def _of_loop(self, loop: Loop, frame: FrameType) -> Counted | None:
        over, names = loop.over, _names_of(frame)
        while isinstance(over, ast.Call) and _called(over) in PASSES_ON and over.args:
            over = ast.Call(ast.Name("range"), over.args[:1], []) if _called(over) == "trange" else over.args[0]
        if isinstance(over, ast.Call) and _called(over) == "range" and not over.keywords:
            numbers = [value_of(each, names) for each in over.args]
            at = names.get(loop.variable)
            if type(at) is not int or not all(type(each) is int for each in numbers) or not 1 <= len(numbers) <= 3:
                return None
            values = range(*numbers)
            return (values.index(at), len(values)) if at in values else None
        loader, latest = value_of(over, names), self._passed()
        if latest is None or getattr(loader, "_dataset_kind", None) != 0 or not hasattr(loader, "batch_sampler"):
            return None  # 0: the data set has a length
        length = len(loader)
        return (latest.fetches - 1, length) if len(latest.iterator()) == length >= latest.fetches else None


def _names_of(frame: FrameType) -> Mapping[str, Any]:
    if not frame.f_code.co_flags & 1:  # a module's own variables
        return frame.f_globals
    return {**frame.f_globals, **dict(locals_of(frame))}


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression of names, attributes, keys and sums; None of others. No code runs for it."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        try:
            return object.__getattribute__(value_of(node.value, names), "__dict__").get(node.attr)
        except AttributeError:
            return None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        held = value_of(node.value, names)
        return held.get(node.slice.value) if type(held) is dict else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = value_of(node.left, names), value_of(node.right, names)
        if type(left) is type(right) is int:
            return left + right if isinstance(node.op, ast.Add) else left - right
    return None


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def loops_at(tree: ast.AST, function: str, line: int) -> list[Loop] | None:
    """Return the loops of a function around a line, outermost first; None where one may end early, or counts nothing.

    ``function`` is the name of its code: "<module>" outside of functions.
    """
    place, loops = "<module>", list[Loop]()
    is_known, inner = True, next(_around(line, tree), None)
    while inner is not None:
        node: Any = inner
        inner = next(_around(line, node), None)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            place, loops, is_known = node.name, [], True
        elif isinstance(node, (ast.For, ast.While)) and inner in node.body:
            if isinstance(node, ast.While) or ends_early(node.body):
                is_known = False
                continue
            target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
            is_own = not (isinstance(node.iter, ast.Call) and _called(node.iter) == "enumerate")
            loops.append(Loop(getattr(target, "id", "") if is_own else "", node.iter))
    return loops if is_known and place == function else None


def _around(line: int, node: ast.AST) -> Iterator[Any]:
    return (each for each in _statements(node) if each.lineno <= line <= each.end_lineno)


def _statements(node: Any) -> Iterator[Any]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            yield each
        elif isinstance(each, (ast.ExceptHandler, ast.match_case)):
            yield from each.body


def ends_early(body: Iterable[ast.AST], is_inner: bool = False) -> bool:
    """Return whether a statement may leave the loop with this body: a ``return``, or a ``break`` of its own."""
    for node in body:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not is_inner):
            return True
        is_scope = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        is_loop = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        if not is_scope and ends_early(_statements(node), is_inner or is_loop):
            return True
    return False


def _transformers(frame: FrameType) -> Counted | None:
    state: Any = getattr(owner_of(frame), "state", None)
    return (state.global_step, state.max_steps) if getattr(state, "max_steps", 0) > 0 else None


def _lightning(frame: FrameType) -> Counted | None:
    trainer = owner_of(frame)
    if type(trainer).__name__ != "Trainer":
        return None
    by_steps, ends = trainer.max_steps, []
    if by_steps > 0:
        ends.append((trainer.global_step, by_steps))
    if (trainer.max_epochs or -1) > 0 and type(trainer.num_training_batches) is int:
        done = trainer.current_epoch * trainer.num_training_batches + trainer.fit_loop.batch_idx
        ends.append((done, trainer.max_epochs * trainer.num_training_batches))
    return max(ends, key=lambda each: each[0] / each[1], default=None)


def _ignite(frame: FrameType) -> Counted | None:
    state: Any = getattr(owner_of(frame), "state", None)
    epochs, length = getattr(state, "max_epochs", None), getattr(state, "epoch_length", None)
    return (state.iteration - 1, epochs * length) if epochs and length else None


def _keras(frame: FrameType) -> Counted | None:
    names = dict(locals_of(frame)) if frame.f_code.co_name == "fit" else {}
    length = getattr(names.get("epoch_iterator"), "num_batches", None)
    if not length or not {"epoch", "epochs", "begin_step"} <= names.keys():
        return None
    return names["epoch"] * length + names["begin_step"], names["epochs"] * length


# How many iterations are done, and of how many, by the package of a trainer whose method is under way.
TRAINERS: Final[Mapping[str, Callable[[FrameType], Counted | None]]] = {
    "transformers": _transformers,
    "lightning": _lightning,
    "pytorch_lightning": _lightning,
    "ignite": _ignite,
    "keras": _keras,
}
