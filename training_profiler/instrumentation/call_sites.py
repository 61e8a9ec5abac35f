"""Calls whose arguments decide how fast a training is, the user's lines that make them, and settings of optimizers."""

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple

from training_profiler.base.text import printable
from training_profiler.base.units import BYTES_PER_MIB
from training_profiler.instrumentation.loader_names import SourceCall, calls_under_way, held_as, keys_of
from training_profiler.model.program import DDP, LOADER, OPTIMIZER, ZERO_GRAD, CallFacts, CallSite, OptimizerFacts
from training_profiler.recording.data_loader import MAP_STYLE, behind_subsets
from training_profiler.recording.object_identity import ObjectIdentity

MOST_CALLS: Final = 32  # places; a program with more makes them in a loop over generated code
MOST_READ: Final = 500  # of one kind; a program that makes an optimizer in each step made the first ones there too
MOST_LOADERS: Final = 64  # the newest ones, whose iterators can be recognized
MOST_NAMED: Final = 32  # loaders whose source is read for their names: some 5 ms each
MOST_TEXT: Final = 60  # characters of an argument
MOST_KINDS: Final = 4  # data types and devices that are listed
MOST_OPTIMIZERS: Final = 64  # optimizers made in the training: some programs make one a step
ReadSite = Callable[[FrameType | None], CallSite | None]


class _MadeLoader(NamedTuple):
    """How a loader was made: the call of ``DataLoader``, the program's calls around it, and how many they made before.

    ``loader`` returns it, or None if it is gone.
    """

    sampler: ObjectIdentity
    loader: Callable[[], Any]
    call: CallFacts
    calls: tuple[SourceCall, ...]
    number: int
    key: str | None = None  # of the dictionary that holds it, once searched for


class CallSites:
    """The calls of one process. ``read_site`` finds the user's line of a stack."""

    def __init__(self, read_site: ReadSite) -> None:
        self._read_site = read_site
        self._calls: dict[tuple[str, str, CallSite], CallFacts] = {}
        self._read: Counter[str] = Counter()
        self._loaders: dict[int, _MadeLoader] = {}  # by the id of the sampler
        self._made: Counter[tuple[SourceCall, ...]] = Counter()  # loaders
        self._named = 0  # loaders whose source was read

    def add(self, kind: str, function: str, arguments: dict[str, Any]) -> CallFacts | None:
        """Remember a call that has just been made; None without a line of the user's. Does not raise."""
        with contextlib.suppress(Exception):
            self._read[kind] += 1
            site = self._read_site(sys._getframe(1)) if self._read[kind] <= MOST_READ else None
            if site is None or (len(self._calls) >= MOST_CALLS and (kind, function, site) not in self._calls):
                return None
            values = tuple((name, repr(value)[:MOST_TEXT]) for name, value in arguments.items())
            call = self._calls[kind, function, site] = CallFacts(kind, function, site, values)
            return call
        return None

    def site(self, frame: FrameType | None) -> CallSite | None:
        """Return the user's line of a stack; None if there is none, or if it cannot be read."""
        with contextlib.suppress(Exception):
            return self._read_site(frame)
        return None

    def place(self, frame: FrameType | None) -> str:
        """Return the user's line of a stack as reports name it; "" if it is unknown."""
        return "" if (site := self.site(frame)) is None else site.place

    def add_loader(self, loader: Any) -> None:
        """Remember the call that made a loader, which its iterators are recognized by. Does not raise."""
        with contextlib.suppress(Exception):
            names = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")
            arguments = {name: value for name in names if (value := getattr(loader, name, None)) is not None}
            sampler, call = loader._index_sampler, self.add(LOADER, "DataLoader", arguments)
            before = self._made_by(sampler)
            # A library that makes a loader again from the user's takes its arguments from there.
            if call is None or (before is not None and call.site.inside and not before.call.site.inside):
                return
            is_own = not call.site.inside or call.site.inside.endswith(" __init__")
            made_by = calls_under_way(sys._getframe(1), call.site) if is_own else ()
            self._made[made_by] += 1
            while len(self._loaders) >= MOST_LOADERS:
                del self._loaders[next(iter(self._loaders))]
            identities = ObjectIdentity(sampler), weakref.ref(loader)
            self._loaders[id(sampler)] = _MadeLoader(*identities, call, made_by, self._made[made_by] - 1)

    def add_optimizer(self, optimizer: Any) -> None:
        """Remember the call that made an optimizer. Does not raise."""
        with contextlib.suppress(Exception):
            named = {name: value for name, value in optimizer.defaults.items() if name in ("foreach", "fused")}
            self.add(OPTIMIZER, type(optimizer).__name__, named)

    def add_ddp(self, module: Any) -> None:
        """Remember the call that made a DistributedDataParallel module. Does not raise."""
        with contextlib.suppress(Exception):
            arguments = {name: getattr(module, name) for name in ("gradient_as_bucket_view", "static_graph")}
            arguments["bucket_cap_mb"] = module.bucket_bytes_cap / BYTES_PER_MIB
            self.add(DDP, type(module).__name__, arguments)

    def add_zero_grad(self, set_to_none: Any = True, **rest: Any) -> None:
        """Remember a call that asks for zeros instead of no gradients. Does not raise."""
        if set_to_none is False:
            self.add(ZERO_GRAD, "zero_grad", {"set_to_none": False})

    def site_of_loader(self, sampler: Any) -> CallSite | None:
        """Return the user's line that made the loader with this sampler; None if unknown."""
        return None if (made := self._made_by(sampler)) is None else made.call.site

    def names_of_loader(self, iterator: Any) -> tuple[str, ...]:
        """Return the names of an iterator's loader: what holds it, its data set, and where it was made. Does not raise.

        The first one is the best.
        """
        names: list[str] = []
        made = self._made_by(iterator._index_sampler)
        with contextlib.suppress(Exception):
            if made is not None and self._named < MOST_NAMED:
                self._named += 1
                held = held_as(made.calls, made.number)
                names.append(self._key_of(made) if held.has_computed_key else held.name)
        with contextlib.suppress(Exception):
            name = type(behind_subsets(iterator._dataset)).__name__
            names.append(f"{name}({len(iterator._dataset)})" if iterator._dataset_kind == MAP_STYLE else name)
        names.append("" if made is None else made.call.site.place)
        return tuple(printable(name)[:MOST_TEXT] for name in names if name)

    def _key_of(self, made: _MadeLoader) -> str:
        """Return the key of a dictionary that holds a loader; a search over all objects finds all loaders in it."""
        loader = made.loader()
        if made.key is None and loader is not None:
            keys = keys_of(loader)
            for sampler, other in self._loaders.items():
                if (key := keys.get(id(other.loader()))) is not None:
                    self._loaders[sampler] = other._replace(key=key)
            return keys.get(id(loader), "")
        return made.key or ""

    def _made_by(self, sampler: Any) -> "_MadeLoader | None":
        made = self._loaders.get(id(sampler))
        return made if made is not None and made.sampler.matches(sampler) else None

    def facts(self) -> tuple[CallFacts, ...]:
        """Return the calls so far."""
        return tuple(self._calls.values())


class LaterOptimizers:
    """The optimizer that was made last after the first update, and whether it makes most of all updates."""

    def __init__(self) -> None:
        self._read = 0
        self._latest: tuple[int, int, OptimizerFacts] | None = None  # its id, updates before it, what it is set to
        self.main: OptimizerFacts | None = None  # None: another one made most updates, or it is not known

    def made(self, optimizer: Any, updates: int) -> None:
        """Read an optimizer that has just been made, after so many updates. Does not raise."""
        if not updates or self._read >= MOST_OPTIMIZERS:
            return
        self._read += 1
        with contextlib.suppress(Exception):  # one that has other attributes is not described
            self._latest = id(optimizer), updates, optimizer_facts(optimizer)

    def find_main(self, primary: int, updates: int) -> None:
        """Decide whether the latest makes most of all ``updates``: those since then, where its id is the primary's."""
        if self._latest is not None:
            latest, before, facts = self._latest
            self.main = facts if latest == primary and updates > 2 * before else None


def optimizer_facts(optimizer: Any) -> OptimizerFacts:
    """Return what an optimizer of torch is set to."""
    defaults = optimizer.defaults
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def of_groups(name: str) -> bool | None:
        values = {group.get(name) for group in optimizer.param_groups}
        return True if values == {True} else False if values == {False} else None

    return OptimizerFacts(
        type(optimizer).__name__,
        len(parameters),
        tuple(sorted({dtype_name(parameter.dtype) for parameter in parameters})[:MOST_KINDS]),
        tuple(sorted({str(parameter.device.type) for parameter in parameters})[:MOST_KINDS]),
        of_groups("foreach"),
        of_groups("fused"),
        "foreach" in defaults,
        "fused" in defaults,
        sum(parameter.numel() for parameter in parameters),
        any(group.get("momentum", 0) != 0 for group in optimizer.param_groups),
    )


def dtype_name(dtype: Any) -> str:
    """Return the name of a data type of torch, such as "float32"."""
    return str(dtype).removeprefix("torch.")
