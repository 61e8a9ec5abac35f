"""One change that can be tried from outside, on an unedited program; what decides where it applies; its edit."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from training_profiler.diagnosis.finding import Change, Losses
from training_profiler.instrumentation.patching import Patches
from training_profiler.model.program import LOADER, OPTIMIZER, CallFacts, OptimizerFacts
from training_profiler.model.snapshot import LoaderStats, Snapshot

TRAIN: Final = "train"
IS_SET: Final = "is set already"


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
    passes: int = 0  # over the data, complete or not
    is_compiled: bool = False
    autocast: str = ""  # its data type

    @property
    def loader(self) -> LoaderStats | None:
        """The loader that the training waited for most."""
        return max(self.loaders, key=lambda loader: loader.wait_s, default=None)

    def too_few_cores(self, count: int) -> str | None:
        """Return why so many threads or workers are not tried; None where each may have a CPU."""
        return f"only {self.cores:g} CPUs" if self.cores is not None and count > max(1.0, self.cores) else None


def facts_of(snapshot: Snapshot) -> TrialFacts:
    """Return the facts of the program that was measured."""
    loaders = tuple(each for each in snapshot.loaders if each.num_workers is not None and each.phase == TRAIN)
    places = {loader.made_at for loader in loaders if loader.made_at}  # none: it is unknown which call made them
    program, machine = snapshot.program, snapshot.machine
    return TrialFacts(
        sections=frozenset(name for name, section in snapshot.sections.items() if section.count),
        loaders=loaders,
        validates_by_loader=any(each.num_workers is not None and each.phase != TRAIN for each in snapshot.loaders),
        calls=tuple(each for each in program.calls if each.kind != LOADER or not places or each.site.place in places),
        optimizer=program.optimizer,
        accelerator="" if snapshot.device is None else snapshot.device.kind,
        cores=None if machine is None else machine.cores,
        threads=program.threads,
        passes=len(snapshot.epochs),
        is_compiled=program.compiled is not None,
        autocast=program.autocast,
    )


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
        statements, modules, notes = (
            dict.fromkeys(filter(None, pair)) for pair in zip(self[2:], other[2:], strict=True)
        )
        return Edit(self.call, tuple(arguments.items()), "\n".join(statements), " ".join(modules), "; ".join(notes))

    @property
    def wanted(self) -> str:
        """What the edit does, for a reader who does it manually."""
        arguments = ", ".join(value if name.isdigit() else f"{name}={value}" for name, value in self.arguments)
        statement = self.statement.replace("{model}", "model").replace("\n", "; ")
        passed, before = f"pass {arguments}" if arguments else "", f"before it: {statement}" if statement else ""
        return ", and ".join(filter(None, (passed, before))) or self.note


class CannotEditError(Exception):
    """No edit of this code is sure to have the effect; the message is why."""


class DoesNotApplyError(Exception):
    """A change has found nothing that it could change, which only the program itself shows; the message says why."""


ReasonNot = Callable[[TrialFacts], str | None]
Install = Callable[[Patches, Any], None]
Edits = Callable[[Sequence[CallFacts]], list[Edit]]


@dataclass(frozen=True)
class Treatment:
    """A change to try: where it makes sense, how it is applied, and its edit."""

    name: str  # unique: "num_workers=2"
    label: str  # for the table: "DataLoader(num_workers=2)"
    losses: Losses  # what to expect of them
    effect: str  # on the losses, in words
    install: Install = lambda patches, torch: None  # applies it through ``patches``, before the user's program runs
    reason_not: ReasonNot = lambda facts: None  # says in a few words why it does not apply here; None if it does
    edit: Edits = lambda calls: []  # edits with the same effect of the calls of the first run; none if no edit has it
    environment: Callable[[], Mapping[str, str]] = dict  # variables that its process needs
    cycle: int = 1  # steps after which batches come in the same pattern: that of the workers that make them
    ceiling: bool = False  # no edit can bring it: it bounds what an edit can bring

    @property
    def changes_numerics(self) -> bool:
        """Whether losses differ by more than rounding."""
        return self.losses is Losses.CHANGES

    @property
    def family(self) -> str:
        """What ``--only`` takes: "num_workers"."""
        return self.name.partition("=")[0]


def change_of(name: str, label: str, install: Install, change: Change | None = None, **parts: Any) -> Treatment:
    """Return the treatment that makes a known change, which says what becomes of the losses."""
    change = change or Change[name.partition("=")[0].upper()]
    return Treatment(name, label, change.losses, change.text, install, **parts)


def argument_of(name: str) -> tuple[str, str]:
    """Return the keyword and the value with which a call has the effect of the change of that name."""
    keyword, _, value = name.partition("=")
    return keyword, value or "True"


def argument_edits(kind: str, name: str, note: str = "") -> Edits:
    """Return the edits that pass the argument which the change is named after to each call of a kind."""
    return lambda calls: [Edit(call, (argument_of(name),), note=note) for call in calls if call.kind == kind]


def statement_edits(statement: str) -> Edits:
    """Return the edit that inserts a statement before the first optimizer; it may name the ``{model}``."""
    module = "torch" if statement.startswith("{") else statement.partition(".")[0]

    def edits(calls: Sequence[CallFacts]) -> list[Edit]:
        first = [call for call in calls if call.kind == OPTIMIZER][:1]
        return [Edit(call, statement=statement, module=module) for call in first]

    return edits


def around(act: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return what replaces a function by one that calls ``act`` with the original and the arguments."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return act(original, *args, **kwargs)

        return call

    return make


def with_arguments(original: Any, **changed: Any) -> Any:
    """Return a constructor that gets these arguments, as far as it has them, whatever the program passes."""
    signature = inspect.signature(original)

    def construct(original: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update({name: value for name, value in changed.items() if name in signature.parameters})
        original(*bound.args, **bound.kwargs)

    return around(construct)(original)
