"""One change that can be tried from outside, on an unedited program; what decides where it applies; its edit."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from training_profiler.findings.losses import Losses
from training_profiler.instrumentation.patching import Patches
from training_profiler.snapshot.program import LOADER, OPTIMIZER, CallFacts, OptimizerFacts
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot

TRAIN: Final = "train"


@dataclass(frozen=True)
class TrialFacts:
    """The facts of one program on one machine; None is unknown."""

    sections: frozenset[str] = frozenset()  # names of the sections that ran
    loaders: tuple[LoaderStats, ...] = ()  # torch's, of the training
    validates_by_loader: bool = False
    calls: tuple[CallFacts, ...] = ()  # of loaders: those of the training
    optimizer: OptimizerFacts | None = None
    accelerator: str = ""  # its kind; "" without one
    cores: float | None = None  # that this process may use
    threads: int = 0  # of torch; 0 is unknown
    world_size: int = 1
    passes: int = 0  # over the data, complete or not
    is_compiled: bool = False
    autocast: str = ""  # its data type

    @property
    def loader(self) -> LoaderStats | None:
        """The loader that the training waited for most."""
        return max(self.loaders, key=lambda loader: loader.wait_s, default=None)


def facts_of(snapshot: Snapshot) -> TrialFacts:
    """Return the facts of the program that was measured."""
    loaders = tuple(each for each in snapshot.loaders if each.num_workers is not None and each.phase == TRAIN)
    program, machine = snapshot.program, snapshot.machine
    return TrialFacts(
        sections=frozenset(name for name, section in snapshot.sections.items() if section.count),
        loaders=loaders,
        validates_by_loader=any(each.num_workers is not None and each.phase != TRAIN for each in snapshot.loaders),
        calls=tuple(call for call in program.calls if call.kind != LOADER or _is_of(call, loaders)),
        optimizer=program.optimizer,
        accelerator="" if snapshot.device is None else snapshot.device.kind,
        cores=None if machine is None else machine.cores,
        threads=program.threads,
        world_size=1 if snapshot.ranks is None else snapshot.ranks.world_size,
        passes=len(snapshot.epochs),
        is_compiled=program.compiled is not None,
        autocast=program.autocast,
    )


def _is_of(call: CallFacts, loaders: tuple[LoaderStats, ...]) -> bool:
    """Return whether a call made one of the loaders, as far as this is known."""
    places = {loader.made_at for loader in loaders if loader.made_at}
    return not places or call.site.place in places


class Edit(NamedTuple):
    """What to change at one call of the user's code."""

    call: CallFacts
    arguments: tuple[tuple[str, str], ...] = ()  # keyword, or number of a positional argument -> its value as source
    statement: str = ""  # to insert before the call's; {model} is what an optimizer's parameters are taken from
    module: str = ""  # that the statement needs: "gc"
    note: str = ""  # what cannot be edited here, for the reader

    def joined(self, other: "Edit") -> "Edit":
        """Return both edits of the same call as one."""
        arguments = dict(self.arguments) | dict(other.arguments)
        statements, modules = (
            dict.fromkeys(filter(None, pair))
            for pair in ((self.statement, other.statement), (self.module, other.module))
        )
        note = "; ".join(dict.fromkeys(filter(None, (self.note, other.note))))
        return Edit(self.call, tuple(arguments.items()), "\n".join(statements), " ".join(modules), note)

    @property
    def wanted(self) -> str:
        """What the edit does, for a reader who does it manually."""
        arguments = ", ".join(value if name.isdigit() else f"{name}={value}" for name, value in self.arguments)
        statement = self.statement.replace("{model}", "model").replace("\n", "; ")
        passed, before = f"pass {arguments}" if arguments else "", f"before it: {statement}" if statement else ""
        return ", and ".join(filter(None, (passed, before))) or self.note


class DoesNotApplyError(Exception):
    """A change has found nothing that it could change, which only the program itself shows; the message says why."""


@dataclass(frozen=True)
class Treatment:
    """A change to try: where it makes sense, how it is applied, and its edit.

    ``losses`` is what to expect of them. A ceiling cannot be had by an edit: it bounds what an edit can bring.
    """

    name: str  # unique: "num_workers=2"
    family: str  # what --only takes: "num_workers"
    label: str  # for the table: "DataLoader(num_workers=2)"
    losses: Losses
    ceiling: bool = field(default=False, kw_only=True)
    effect: str = field(default="", kw_only=True)  # on the losses, in words

    def reason_not(self, facts: TrialFacts) -> str | None:
        """Return in a few words why the change does not apply to this program here; None if it does."""
        return None

    @property
    def argument(self) -> tuple[str, str]:
        """The keyword and the value with which a call has the same effect, by the name of the change."""
        name, _, value = self.name.partition("=")
        return name, value or "True"

    @property
    def cycle(self) -> int:
        """The number of steps after which batches come in the same pattern: that of the workers that make them."""
        return 1

    def environment(self) -> Mapping[str, str]:
        """Return the variables that the trial's process needs. An LD_PRELOAD goes before one that is set."""
        return {}

    def apply(self) -> None:
        """Apply the change to this process, before the user's program runs. Imports torch."""
        import torch

        self.install(Patches(), torch)

    def install(self, patches: Patches, torch: Any) -> None:
        """Apply the change through ``patches``, which can undo it."""

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the edits of the user's code that have the same effect; none if no edit has it.

        ``calls`` are those of the first run.
        """
        return []


@dataclass(frozen=True)
class Statement(Treatment):
    """One statement, before the optimizer is made. It may name the ``{model}``."""

    statement: str
    module: str  # that it needs

    def edit(self, calls: Sequence[CallFacts]) -> list[Edit]:
        """Return the statement before the first optimizer."""
        return [Edit(call, statement=self.statement, module=self.module) for call in calls if call.kind == OPTIMIZER][
            :1
        ]


def with_arguments(original: Any, **changed: Any) -> Any:
    """Return a constructor that gets these arguments, as far as it has them, whatever the program passes."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update({name: value for name, value in changed.items() if name in signature.parameters})
        original(*bound.args, **bound.kwargs)

    return __init__
