"""Finds what grows from step to step: graphs, hooks, variables, and what an optimizer has; and the lines that do it.

A few backward passes are looked at, ever more seldom. Names, sizes and counts are kept, and nothing of the program.
"""

import contextlib
import os
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from time import perf_counter_ns, thread_time_ns
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

from training_profiler.inspections.inspection import (
    LIBRARIES,
    MOST_FRAMES,
    UserProgram,
    file_of,
    held_under_way,
    is_watched,
    locals_of,
)
from training_profiler.inspections.kept_graphs import (
    MOST_LINES,
    beside_the_training,
    lines_that_add,
    lines_that_put,
    lines_that_work_through,
    tree_of,
)
from training_profiler.instrumentation.loop_detection.modules import modules_within, plain_classes
from training_profiler.model.program import GRAPH, HOOKS, SIZE, SUBNORMAL, UPDATED, Grown

FIRST: Final = 4  # backward pass that is looked at
APART: Final = 1.4  # times as many backward passes until the next one
AT_ONCE: Final = 64  # backward passes from which on it sleeps in between, and most of those that an update may have
FREE_NS: Final = 20_000_000  # for looking, and as much again ...
PART: Final = 200  # ... as this part of the time since then
OF_PARAMETERS: Final = 2**63  # and above: nodes that add to gradients, which are made once
MOST_NAMES: Final = 1_000
MOST_MODULES: Final = 500
MOST_TENSORS: Final = 32  # of a group of an optimizer
SAMPLED: Final = 4, 1024  # tensors of one kind, and values of each
LEAST: Final = {SIZE: 100} | dict.fromkeys(SUBNORMAL, 5)  # from which on it may matter
GREW: Final = 1.5  # times
MOST_GROWN: Final = 8
LEAST_NORMAL: Final = {"torch.float32": 2.0**-126, "torch.bfloat16": 2.0**-126, "torch.float64": 2.0**-1022}
HELD: Final = (list, dict, set, deque, defaultdict, OrderedDict)
COUNTED: Final = (*HELD, str, bytearray)
FEW: Final = 16  # elements of a container whose own containers are counted, too, and whose objects are looked into
DEPTH: Final = 3  # of objects and containers within each other
SAMPLED_ELEMENTS: Final = 8  # the newest, of which each is weighed
TENSOR_BYTES, ARRAY_BYTES = 400, 112  # of a tensor and of an array, beside their numbers
NOTHING_KEPT: Final = 0.0, 0, False  # the last fields of ``Grown``
WORTH_NAMING: Final = 4 * 2**20  # bytes that a variable has grown by
NOT_OF_THE_PROGRAM: Final = ("torch", "builtins", "numpy", "collections", "training_profiler")  # classes
NOT_LOOKED_INTO: Final = (type, ModuleType, FunctionType)


class GrowthWatch:
    """Looks at the training from a few backward passes of its whole run, as a ``BackwardWatch``.

    Args:
        detector: returns the loop detector, which counts backward passes and updates.
        sleep: called when backward passes need not come here until ``is_due``.
    """

    def __init__(self, program: UserProgram, detector: Callable[[], Any], sleep: Callable[[], None]) -> None:
        self._program, self._detector, self._sleep = program, detector, sleep
        self._began_ns = perf_counter_ns()
        self._spent_ns = 0
        self._next = FIRST  # backward pass
        self._calls = 0  # backward passes, where it was awake
        self._counted: Any = None  # by which detector, also once the training has ended
        self._updates = self._newest = self._before = 0
        self._changes = 1  # of the number of updates, while awake: the first one after a sleep comes too late
        self._walks = False  # through the graph of the next loss
        self._makers: dict[int, str] = {}  # of the nodes of variables: by their numbers, the variables' names
        self._kept_at = "", ""  # the variable that leads there; the line of the backward pass
        self._own = 0  # nodes of the last graph that were made in its step
        self._points: dict[tuple[str, str], list[tuple[int, float]]] = {}  # by kind and name: backward pass and amount
        self._holds_few: dict[str, bool] = {}  # containers, whose elements count
        self._paths: dict[str, str] = {}
        self._hook_at: dict[str, str] = {}
        self._lines: dict[str, tuple[tuple[int, int], ...]] = {}  # that work through a variable, once they are found
        self._kept: dict[str, tuple[float, int, bool]] = {}  # the last fields of ``Grown``

    def is_due(self) -> bool:
        """Whether backward passes are to come here again."""
        detector = self._detector()
        return detector is not None and detector.backwards >= self._next and not self._has_spent()

    def _has_spent(self) -> bool:
        return self._spent_ns > FREE_NS + (perf_counter_ns() - self._began_ns) / PART

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any, trains: bool) -> None:
        """Take the number of the loss's node, and look at the program where it is time."""
        if trains:
            with contextlib.suppress(Exception):  # tensors and modules may have methods of their own
                self._backward_begins(kwargs.get("tensors", args[0] if args else ()), frame)

    def _backward_begins(self, loss: Any, frame: Any) -> None:
        torch, detector = sys.modules["torch"], self._detector()
        loss = loss[0] if isinstance(loss, (list, tuple)) else loss
        if type(loss) not in plain_classes(torch) or detector is None:
            return
        node, self._calls, self._counted = loss.grad_fn, detector.backwards + 1, detector
        if (updates := detector.updates + detector.inferred_updates) != self._updates:
            self._updates, self._before = updates, self._newest
            self._changes += 1
        self._newest = node._sequence_nr()  # nodes are numbered in the order in which a thread makes them
        begin_ns = thread_time_ns()  # waiting for a CPU is left out
        if self._walks:
            self._walks = False
            self._follow(node, frame)
            if self._calls > AT_ONCE:
                self._changes = 0
                self._sleep()
        elif self._calls < self._next + (AT_ONCE if self._changes < 2 else 0) or self._has_spent() or is_watched():
            return
        else:
            self._walks, self._next = True, max(self._calls + 2, int(self._calls * APART))
            self._look(frame, torch)
        self._spent_ns += thread_time_ns() - begin_ns

    def _follow(self, node: Any, frame: Any) -> None:
        """Count the nodes of a graph, and those of them that were made in earlier steps."""
        self._own, old, name = reach(node, self._before, self._makers)
        if old:
            self._kept_at = (name, self._program.place_of(frame))
        self._add(GRAPH, "", old)

    def _look(self, frame: Any, torch: Any) -> None:
        """Count hooks, and the elements of variables."""
        plain, self._makers = plain_classes(torch), {}
        groups = [group["params"] for optimizer in self._program.optimizers for group in optimizer.param_groups]
        parameters = [each for group in groups for each in group[:MOST_TENSORS] if type(each) in plain]
        hooks = [self._hooks_of(each, "a parameter") for each in parameters[:MOST_MODULES]]
        self._add(HOOKS, "a parameter", max(hooks, default=0))
        file = ""  # of the innermost function of the program
        for name, value, path in variables(frame, torch.nn.Module):
            file = file or path
            for tensor in value if type(value) in (tuple, list) and len(value) <= 8 else (value,):
                if type(tensor) in plain and not (tensor._is_view() and tensor._version) and tensor.grad_fn is not None:
                    self._makers[tensor.grad_fn._sequence_nr()] = name
            if issubclass(type(value), torch.nn.Module):
                what, modules = f"a module of {name}", islice(modules_within(value), MOST_MODULES)
                self._add(HOOKS, what, max(self._hooks_of(each, what) for each in modules))
            elif (size := size_of(value, plain)) is not None:
                holds_few = type(value) in HELD and len(value) <= FEW < size
                if self._holds_few.get(name) and not holds_few:  # the containers in it counted, and do no longer
                    self._points.pop((SIZE, name))
                self._holds_few[name] = holds_few
                self._add(SIZE, name, size)
                self._paths[name] = path
                if has_grown(SIZE, self._points.get((SIZE, name), ())):
                    newest: Any = value
                    while type(newest) in HELD and newest:
                        newest = next(_newest(newest))
                    are_tensors = newest is not value and type(newest) in plain and newest.is_cpu
                    self._kept[name] = bytes_of(value, plain) / size, getattr(value, "maxlen", None) or 0, are_tensors
        self._look_for_lines()
        ordered = sorted(self._program.optimizers, key=lambda each: sum(len(g["params"]) for g in each.param_groups))
        for name, optimizer in {type(each).__name__: each for each in ordered}.items():  # the largest of each class
            self._look_at_state(name, optimizer, plain)
            self._paths[name] = file

    def _look_at_state(self, name: str, optimizer: Any, plain: Any) -> None:
        """Count what an optimizer updates, and the numbers there that are too small to be computed with quickly."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._add(UPDATED, name, len(parameters))
        plain_ones = [each for each in parameters[:MOST_MODULES] if type(each) in plain and each.is_cpu]
        largest = sorted(plain_ones, key=lambda each: -each.numel())[: SAMPLED[0]]
        kept: dict[str, list[Any]] = {}
        for each in largest:
            for key, value in optimizer.state.get(each, {}).items():
                if type(value) in plain:
                    kept.setdefault(key, []).append(value)
        self._add(SUBNORMAL[1], f"the parameters of {name}", subnormal_part(largest))
        for key, values in kept.items():
            self._add(SUBNORMAL[0], f"{key} of {name}", subnormal_part(values))

    def _hooks_of(self, hooked: Any, name: str) -> int:
        """Return how many hooks of one kind a module or a parameter has, and note where the newest one is written."""
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_post_accumulate_grad_hooks")
        hooks: dict[int, Any] = max((getattr(hooked, kind, None) or {} for kind in kinds), key=len)
        code = getattr(next(reversed(hooks.values()), None), "__code__", None)
        if code is not None:
            self._hook_at[name] = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        return len(hooks)

    def _add(self, kind: str, name: str, amount: float) -> None:
        if (kind, name) in self._points or len(self._points) < MOST_NAMES:
            points = self._points.setdefault((kind, name), [])
            if points and points[-1][0] == self._calls:  # of several objects with one name, the largest
                amount = max(amount, points.pop()[1])
            points.append((self._calls, amount))

    def _look_for_lines(self) -> None:
        """Find the lines that work through variables that have grown, of each once."""
        grown = [(kind, name) for (kind, name), points in self._points.items() if has_grown(kind, points)]
        new = [name for kind, name in grown if kind in (SIZE, UPDATED) and name not in self._lines][:MOST_GROWN]
        self._lines |= dict.fromkeys(new, ())

        def find_lines() -> None:
            for name in new:
                with contextlib.suppress(Exception):
                    tree = tree_of(self._paths[name])
                    if (UPDATED, name) in self._points:
                        self._hook_at[name] = lines_that_add(tree, os.path.basename(self._paths[name]))
                    else:
                        self._lines[name] = tuple(sorted(set(lines_that_work_through(tree, name))))
                        file, numbers = os.path.basename(self._paths[name]), sorted(set(lines_that_put(tree, name)))
                        self._hook_at[name] = f"{file}:{', '.join(map(str, numbers[:MOST_LINES]))}" if numbers else ""

        if new:
            beside_the_training("growth", find_lines)

    def facts(self) -> tuple[Grown, ...]:
        """Return what has grown so far, by how many times, the most first."""
        grown, passes = [], max(self._calls, getattr(self._counted, "backwards", 0))  # those that it slept through
        for (kind, name), points in self._points.items():
            path, lines = self._paths.get(name, ""), self._lines.get(name, ())
            place, own = self._hook_at.get(name, ""), 0
            kept = self._kept.get(name, NOTHING_KEPT) if kind == SIZE else NOTHING_KEPT
            is_large = place and (kept[2] or kept[0] * (points[-1][1] - points[0][1]) >= WORTH_NAMING)
            if not has_grown(kind, points) or (kind == SIZE and not lines and not is_large):
                continue
            if kind == GRAPH:
                name, place, own = *self._kept_at, self._own
            grown.append(Grown(kind, name, tuple(points), passes, path, lines, place, own, *kept))
        grown.sort(key=lambda each: each.points[0][1] / each.points[-1][1])
        return tuple(grown[:MOST_GROWN])


def has_grown(kind: str, points: Any) -> bool:
    """Return whether so much of a kind grows, by its first, middle and last amounts."""
    if kind == GRAPH:  # of several losses some may not lead there; a generator's is from before the other's step
        points = [point for point in points if point[1]]
    if len(points) < 3:
        return False
    first, middle, last = points[0][1], points[len(points) // 2][1], points[-1][1]
    if kind == UPDATED and any(later[1] <= one[1] for one, later in pairwise(points)):
        return False  # layers may join in the course of a training, but not in each step
    return bool(last >= LEAST.get(kind, 1) and last >= middle >= first and last > GREW * first)


def subnormal_part(tensors: Iterable[Any]) -> float:
    """Return how many percent of some values are subnormal, by a sample; 0 where this CPU is as quick with these.

    Nothing is subnormal where ``torch.set_flush_denormal`` is on.
    """
    total = found = 0.0
    for tensor in tensors:
        if tensor.is_cpu and tensor.is_contiguous() and str(tensor.dtype) in LEAST_NORMAL and tensor.numel():
            values = tensor.detach().view(-1)[:: tensor.numel() // SAMPLED[1] | 1]  # odd: of all columns
            low = values[values.abs() < LEAST_NORMAL[str(tensor.dtype)]]
            small = low[low != 0]
            total += tensor.numel()
            if len(small) > len(values) / 50 and _is_slow(small, is_squared=bool(values.min() >= 0)):
                found += tensor.numel() * len(small) / len(values)
    return 100 * found / total if total else 0.0


def _is_slow(small: Any, is_squared: bool) -> bool:
    """Return whether an optimizer takes longer with these values; it takes the root of averages of squares."""

    def ns(values: Any) -> int:
        times = []
        for _ in range(3):
            begin_ns = perf_counter_ns()
            values.sqrt() if is_squared else values * 0.9
            times.append(perf_counter_ns() - begin_ns)
        return min(times)

    many = small.repeat(SAMPLED[1] // len(small) + 1)
    return ns(many) > 2 * ns(many * 0 + 1)


def reach(node: Any, before: int, makers: Mapping[int, str]) -> tuple[int, int, str]:
    """Return how many nodes of a graph are newer than number ``before``, and how many are not; what led to these.

    Args:
        makers: names of variables, by the numbers of the nodes that made them.
    """
    seen, waiting, new, old, name = {id(node): node}, deque([node]), 1, 0, ""
    while waiting and len(seen) < 20_000:  # 20 ms
        for each, _ in waiting.popleft().next_functions:
            if each is None or id(each) in seen:
                continue
            seen[id(each)] = each
            waiting.append(each)
            number = each._sequence_nr()
            if number <= before:
                old += 1
                name = name or makers.get(number, "")
            elif number < OF_PARAMETERS:
                new += 1
    return new, old, name


def variables(frame: FrameType | None, module_class: type) -> Iterator[tuple[str, Any, str]]:
    """Yield names, values and files of variables of functions under way, and of attributes of what these hold.

    Then comes what a trainer of a framework holds, by the names of classes: no variable of the program may have it.
    """
    seen: set[int] = set()
    first = frame
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        code, namespace = frame.f_code, frame.f_globals
        path = os.path.abspath(code.co_filename)
        is_library = LIBRARIES in path or str(namespace.get("__name__")).startswith("training_profiler")
        if path.endswith(".py") and not is_library:
            if code.co_flags & 1:  # a function's, not those of a module
                yield from _with_attributes(locals_of(frame), path, module_class, seen)
            if id(namespace) not in seen:
                seen.add(id(namespace))
                yield from _with_attributes(list(namespace.items()), path, module_class, seen)
        frame = frame.f_back
    for value in held_under_way(first):
        yield from _with_attributes([(type(value).__name__, value)], file_of(type(value)), module_class, seen)


def _with_attributes(
    found: list[tuple[str, Any]], path: str, module_class: type, seen: set[int]
) -> Iterator[tuple[str, Any, str]]:
    for name, value in found:
        if name.startswith("__") or issubclass(type(value), NOT_LOOKED_INTO):
            continue
        yield name, value, path
        yield from _attributes_of(name, value, path, module_class, seen)


def _attributes_of(
    name: str, value: Any, path: str, module_class: type, seen: set[int], depth: int = DEPTH
) -> Iterator[tuple[str, Any, str]]:
    """Yield what an object of the program holds, and what a few objects in it hold, such as meters in a dict."""
    is_module = issubclass(type(value), module_class)
    if depth and type(value) in (*HELD, tuple) and len(value) <= FEW:
        for each in list(value.values() if isinstance(value, dict) else value):
            yield from _attributes_of(name, each, path, module_class, seen, depth - 1)
    for inner in islice(modules_within(value), MOST_MODULES) if is_module else (value,):
        kind = type(inner)
        if id(inner) in seen or kind.__module__.partition(".")[0] in NOT_OF_THE_PROGRAM:
            continue
        if depth < DEPTH and (LIBRARIES in (file_of(kind) or LIBRARIES) or len(seen) > MOST_NAMES):
            continue  # what a library's object holds has no name in the program
        seen.add(id(inner))
        try:
            attributes = dict(object.__getattribute__(inner, "__dict__"))
        except (AttributeError, TypeError):
            continue
        for attribute, each in (attributes | (attributes.get("_buffers", {}) if is_module else {})).items():
            if not attribute.startswith("__"):
                within = f"{name}.{attribute}", each, file_of(kind) or path
                yield within
                if depth and not is_module:
                    yield from _attributes_of(*within, module_class, seen, depth - 1)


def size_of(value: Any, plain: Any) -> int | None:
    """Return how many elements a container or a tensor has; None of other objects."""
    kind = type(value)
    if kind.__module__.partition(".")[0] in ("numpy", "pandas") and kind.__name__ in ("ndarray", "DataFrame", "Series"):
        return int(value.size)
    if kind in HELD and len(value) <= FEW:
        inner = value.values() if isinstance(value, dict) else value
        return sum(len(each) if type(each) in HELD else 1 for each in inner)
    return len(value) if kind in COUNTED else int(value.numel()) if kind in plain else None


def bytes_of(value: Any, plain: Any, depth: int = 3) -> float:
    """Return about how much memory a variable keeps: that of the newest elements of a container counts for all.

    What several of these share counts once, such as the memory of two views.
    """
    return _bytes_of(value, plain, depth, set())


def _bytes_of(value: Any, plain: Any, depth: int, seen: set[int]) -> float:
    kind, owner, owned, own_bytes = type(value), id(value), 0, 0
    if kind in plain:
        storage = value.untyped_storage()
        owner, owned, own_bytes = storage.data_ptr(), storage.nbytes(), TENSOR_BYTES
    elif kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "nbytes"):
        array = value.base if isinstance(getattr(value, "base", None), kind) else value
        owner, owned, own_bytes = id(array), array.nbytes, ARRAY_BYTES
    is_new = owner not in seen
    seen.add(owner)
    if own_bytes or not is_new or not depth:
        return float(own_bytes + is_new * owned)
    if kind not in (*HELD, tuple):
        return float(sys.getsizeof(value, 0))
    of_key = sys.getsizeof(next(iter(value)), 0) if isinstance(value, dict) and value else 0
    sampled = list(islice(_newest(value), SAMPLED_ELEMENTS if len(value) > FEW else FEW))
    inner = sum(_bytes_of(each, plain, depth - 1, seen) for each in sampled)
    return sys.getsizeof(value) + (inner / len(sampled) + of_key) * len(value) if sampled else sys.getsizeof(value)


def _newest(value: Any) -> Iterator[Any]:
    """Return the elements of a container, the newest first; of a set, in any order."""
    return iter(value) if isinstance(value, set) else reversed(value.values() if isinstance(value, dict) else value)
