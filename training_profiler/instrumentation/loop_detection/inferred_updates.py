"""Updates of a program that has no optimizer of torch: its parameters changed between two backward passes."""

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

MOST_LEAVES: Final = 4  # watched; an update changes all of them
MOST_NODES: Final = 512  # of the graph that are looked at to find them
MOST_READ: Final = 2  # leaves whose values are read: ``p.data`` has a version of its own
MOST_ELEMENTS: Final = 65_536
FAR_MORE: Final = 2  # times the backward passes of the last update


class _Leaf(NamedTuple):
    """A parameter as it was at the end of a backward pass."""

    tensor: Callable[[], Any]  # None once it is gone
    shape: tuple[int, ...]
    version: int
    norm: float | None


class InferredUpdates:
    """Watches a few parameters of each backward pass, and reports once that they have changed.

    Args:
        unwrap: returns the tensor behind the wrapper of an outermost ``torch.func.grad``; None for any other.
    """

    def __init__(self, unwrap: Callable[[Any], Any]) -> None:
        self._unwrap = unwrap
        self._watched: list[_Leaf] = []
        self._latest: list[Any] = []  # during a backward pass
        self._is_functional = False  # parameters were replaced by new ones before the last backward pass
        self._replaces = False  # updates do so: what has a norm of its own need not be read
        self._is_by_backward = False  # the program calls ``backward``, so ``grad`` is for something else
        self._has_versions = False  # an update changed the version of a parameter, so values need not be read
        self._unchanged = 0  # calls of ``backward`` since the watched parameters changed
        self._passes = self._passes_before = 0  # backward passes of this step, and of the one before

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> bool:
        """Handle a call of ``backward`` (``trains``) or of ``grad``; return whether parameters changed before."""
        has_changed = self._looks_changed(args, kwargs, trains)
        if has_changed:
            self._passes_before, self._passes = self._passes, 0
        self._passes += bool(self._latest)
        return has_changed

    def _looks_changed(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> bool:
        self._latest = []
        self._is_by_backward |= trains
        if not trains and self._is_by_backward:
            return False
        given = kwargs.get("inputs", args[1] if len(args) > 1 and not trains else None)
        if given is not None:
            leaves = list(_flat(given))[:MOST_LEAVES]
            behind = [self._unwrap(leaf) for leaf in leaves]
            if kwargs.get("create_graph") and any(map(operator.is_, leaves, behind)):  # a part of a loss
                return False
            self._latest = [leaf for leaf in behind if leaf is not None]
        else:
            has_changed = self._have_changed()
            self._unchanged = 0 if has_changed else self._unchanged + 1
            self._latest = self._watched_again(has_changed)
            if not self._latest:
                self._latest = list(_leaves(kwargs.get("tensors", args[0] if args else ())))
            if has_changed:
                self._is_functional = False
                return True
        self._is_functional = self._were_replaced()
        if not self._is_functional and self._have_changed():
            self._replaces = False
            return True
        self._replaces |= self._is_functional
        return self._is_functional

    def _watched_again(self, has_changed: bool) -> list[Any]:
        """Return the parameters watched so far, or none if the graph should be searched for others.

        A search takes longer than all else here. It is made where a parameter is gone, and ever more seldom while
        nothing changes.
        """
        if not has_changed and self._unchanged & (self._unchanged - 1) == 0:
            return []
        tensors = [leaf.tensor() for leaf in self._watched]
        return [] if any(tensor is None for tensor in tensors) else tensors

    def backward_ends(self) -> None:
        """Watch the parameters that now have gradients."""
        if self._latest:
            # Reading takes longer than all else here; it begins again where updates no longer replace parameters.
            self._replaces &= not self._is_by_backward and self._passes <= FAR_MORE * self._passes_before
            read = 0 if self._has_versions or self._replaces else MOST_READ
            self._watched = [_seen(leaf, at < read) for at, leaf in enumerate(self._latest)]
            self._latest = []

    def ends_with_update(self) -> bool:
        """Return whether parameters changed after the last backward pass of the run.

        Functional code drops the old parameters; the new ones are not known yet. Those of a function that has returned
        are gone; then the last step is taken to have as many backward passes as the one before.
        """
        are_gone = all(leaf.tensor() is None for leaf in self._watched)
        is_whole = self._is_functional or 0 < self._passes == self._passes_before
        return self._have_changed() or (are_gone and is_whole)

    def _have_changed(self) -> bool:
        """Return whether a parameter has changed since the last backward pass."""
        alive = [(leaf, tensor) for leaf in self._watched if (tensor := leaf.tensor()) is not None]
        if any(tensor._version != leaf.version for leaf, tensor in alive):
            self._has_versions = True
            return True
        return any(leaf.norm is not None and _norm(tensor) != leaf.norm for leaf, tensor in alive)

    def _were_replaced(self) -> bool:
        """Return whether all parameters are new objects, as in functional code."""
        before = [leaf.tensor() for leaf in self._watched]
        if not before or not self._latest:
            return False
        if all(tensor is None for tensor in before):
            return True
        known = {id(tensor) for tensor in before}
        is_new = not any(id(leaf) in known for leaf in self._latest)
        return is_new and [leaf.shape for leaf in self._watched] == [tuple(leaf.shape) for leaf in self._latest]


def _seen(tensor: Any, is_read: bool) -> _Leaf:
    norm = _norm(tensor) if is_read else None
    return _Leaf(weakref.ref(tensor), tuple(tensor.shape), tensor._version, norm)


def _norm(tensor: Any) -> float | None:
    """Return a figure that changes with the values; None where it is not known, or takes long."""
    if tensor.device.type != "cpu" or tensor.numel() > MOST_ELEMENTS:
        return None
    norm = float(tensor.detach().norm())  # a sum of the gradients of softmax is 0
    return norm if norm == norm else None  # not a number: equal to nothing


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, dict):
        values = list(values.values())
    for value in values if isinstance(values, (list, tuple)) else (values,):
        if hasattr(value, "_version"):
            yield value


def _leaves(roots: Any) -> Iterable[Any]:
    """Return the parameters nearest to the roots of a graph."""
    waiting = [node for root in _flat(roots) if (node := root.grad_fn) is not None]
    visited, found = set(waiting), list[Any]()
    for node in waiting:  # grows
        if len(visited) > MOST_NODES or len(found) >= MOST_LEAVES:
            break
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                waiting.append(following)
    return found
