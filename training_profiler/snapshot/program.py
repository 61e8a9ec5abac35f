"""What the program has set and what it runs on, as far as advice depends on it."""

from typing import Final, NamedTuple


class OptimizerFacts(NamedTuple):
    """The optimizer with the most parameters in the first steps."""

    name: str  # of its class
    tensors: int
    dtypes: tuple[str, ...]  # of the parameters
    devices: tuple[str, ...]  # their types
    foreach: bool | None = None  # as set; None where it is not
    fused: bool | None = None
    has_foreach: bool = False  # whether its class has the argument
    has_fused: bool = False


class CompileFacts(NamedTuple):
    """What torch.compile did so far."""

    graphs: int = 0
    seconds: float = 0.0
    recompiled: int = 0  # graphs made again for code that had been compiled before
    recompiled_s: float = 0.0
    place: str = ""  # the line of the user's code with the most recompilations


class CpuSpeed(NamedTuple):
    """What this CPU did in a short measurement after the training, with the training's number of threads."""

    dtype: str
    gflops: float  # of a matrix product, in 1e9 per second
    operator_s: float  # the shortest operation, with its share of the backward pass


class ProgramFacts(NamedTuple):
    """The facts of one process so far; None or 0 is unknown."""

    optimizer: OptimizerFacts | None = None
    compiled: CompileFacts | None = None  # None: torch.compile was not used
    autocast: str = ""  # the data type of torch.autocast in a forward pass
    kept_graphs: int = 0  # backward passes that kept the graph for another one
    cpu: CpuSpeed | None = None
    operators: int = 0  # of torch, in modules and backward passes of one step


NOTHING_KNOWN: Final = ProgramFacts()
