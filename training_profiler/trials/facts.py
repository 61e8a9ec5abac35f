"""What a first profiled run found out about a program, as far as it decides which changes are worth trying."""

from dataclasses import dataclass

from training_profiler.snapshot.program import OptimizerFacts


@dataclass(frozen=True)
class LoaderFacts:
    """A data loader of torch; None is unknown."""

    num_workers: int
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    is_map_style: bool | None = None
    has_batched_fetch: bool | None = None  # whether the data set has __getitems__
    passes: int | None = None  # over the data, complete or not


@dataclass(frozen=True)
class ProgramFacts:
    """The facts of one program on one machine; None is unknown."""

    sections: frozenset[str] = frozenset()  # names of the sections that ran
    loaders: tuple[LoaderFacts, ...] = ()  # of the training
    optimizer: OptimizerFacts | None = None
    accelerator: str = ""  # its kind, such as "cuda"; "" without one
    cores: float | None = None  # that this process may use
    world_size: int = 1
    is_compiled: bool = False
    autocast: str = ""  # its data type
    step_s: float | None = None
    steps: int = 0
    fetch_s: float | None = None  # for one batch, in the training process itself
