"""Facts from the first run that decide which treatments apply."""

from dataclasses import dataclass
from typing import Final

from training_profiler.snapshot.program import LOADER, CallFacts, OptimizerFacts
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
