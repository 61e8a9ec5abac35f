"""What the program has set and what it runs on, as far as advice depends on it."""

from typing import Final, NamedTuple

LOADER: Final = "loader"
OPTIMIZER: Final = "optimizer"
DDP: Final = "ddp"
COMPILE: Final = "compile"
THREADS: Final = "threads"
ANOMALY: Final = "anomaly"  # where its detection is switched on
ZERO_GRAD: Final = "zero_grad"  # only where zeros are asked for


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
    numbers: int = 0  # in all its parameters; 0 is unknown
    has_momentum: bool = False  # its argument is not 0


class EmbeddingFacts(NamedTuple):
    """The largest table of embeddings that gets a dense gradient."""

    kind: str  # its class
    rows: int
    used: float  # part of the rows with a gradient in an early step, of a sample of them
    part: float  # of the optimizer's parameters, 0 to 1
    gradient_s: float = 0.0  # that zeros for a whole gradient take, with the pages that they need; 0 is unknown


# Why code is compiled again; that dynamo runs it uncompiled from there on; that a graph ends within it.
SHAPE, VALUE, LENGTH, STATE, OTHER_GUARD, LIMIT, BREAK = "shape", "value", "length", "state", "other", "limit", "break"


class CompileReason(NamedTuple):
    """Why torch.compile made another graph of a function, by dynamo's own metrics."""

    kind: str  # SHAPE, ...
    what: str  # changed: "x, 0" for the first dimension of x, "self.n"; of a break, dynamo's reason or ""
    place: str  # of the guard, or of the function: "model.py:8 forward"
    times: int = 0
    seconds: float = 0.0


class CompileFacts(NamedTuple):
    """What torch.compile did so far."""

    graphs: int = 0
    seconds: float = 0.0
    recompiled: int = 0  # graphs made again for code that had been compiled before
    recompiled_s: float = 0.0
    place: str = ""  # the line of the user's code with the most recompilations
    reasons: tuple[CompileReason, ...] = ()  # the costliest first; none where torch does not record them
    cache_hits: int = 0  # graphs that inductor's cache on the disk had
    cache_misses: int = 0


class CallSite(NamedTuple):
    """A line of the user's code that makes a call, itself or through a library."""

    file: str  # as reports name it
    line: int
    path: str = ""  # of the file; "" for code that was typed in
    column: int = -1  # at which the call begins, in bytes of UTF-8; -1 if unknown
    inside: str = ""  # the library's line that makes the call: "transformers/trainer.py:812 get_train_dataloader"

    @property
    def place(self) -> str:
        """The line as reports name it."""
        return f"{self.file}:{self.line}"


class CallFacts(NamedTuple):
    """A call of torch whose arguments decide how fast the training is, with those that it has now."""

    kind: str  # LOADER, OPTIMIZER, ...
    function: str  # "DataLoader", "AdamW", "torch.compile"
    site: CallSite
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The place and the arguments: "train.py:41: num_workers=0"."""
        arguments = ", ".join(f"{name}={value}" for name, value in self.arguments)
        made = f"; made in {self.site.inside}" if self.site.inside else ""
        return f"{self.site.place}: {arguments or self.function}{made}"


class CpuSpeed(NamedTuple):
    """What this CPU did in a short measurement after the training, with the training's number of threads."""

    dtype: str
    gflops: float  # of a matrix product, in 1e9 per second
    operator_s: float  # the shortest operation, with its share of the backward pass
    float32_gflops: float = 0.0  # the same product in float32, beside a dtype of half precision; 0 is unknown


class ForwardFacts(NamedTuple):
    """The forward passes of the one step whose operators were counted."""

    operators: int  # of torch
    operators_s: float  # in them, without Python between them
    calls_s: float  # of all; counting makes it longer by some microseconds an operator
    place: str = ""  # the user's line that starts half of them or more; "" where they are few
    layer: str = ""  # torch's recurrent layer that starts half of them, at that line or at several: "GRU"


class LongOperators(NamedTuple):
    """Operators of the counted step that took many times as long as half of them did: they compute."""

    operators: int = 0
    seconds: float = 0.0
    all_s: float = 0.0  # in all operators of these passes; 0 is unknown


class OutsideModules(NamedTuple):
    """Operators of backward passes of the counted step that belong to what no module computed: a loss, a penalty."""

    operators: int = 0
    seconds: float = 0.0
    all_s: float = 0.0  # in all operators of backward passes; 0 is unknown
    of_parameters: int = 0  # of the program's operations outside of modules: powers, sums, ... of a single parameter


class NanChecks(NamedTuple):
    """Operators with which anomaly detection looks for NaN in gradients, in backward passes of the counted step."""

    operators: int = 0
    seconds: float = 0.0
    all_s: float = 0.0  # in all operators of backward passes; 0 is unknown


class RepeatFacts(NamedTuple):
    """Calls of a module with an input that it had before, in the steps that were looked at."""

    steps: int  # that were looked at
    calls: int  # of outermost modules that repeat an earlier one
    seconds: float  # of the shorter of each two, on the host
    without_grad: int  # pairs of which one recorded no gradients
    after_update: int  # pairs with an update between them
    random: int  # pairs of which the second drew random numbers
    place: str = ""  # the user's line of the last of them
    steps_with: int = 0  # steps with such a call


class ComputedWeights(NamedTuple):
    """Weights with parametrizations that are computed more than once for a backward pass, in early steps."""

    name: str  # of one of them: "turn.weight"
    weights: int
    calls: float  # of the parametrization of a weight, for a backward pass
    part: float  # of the time of forward passes: all calls but the first ones; 0 to 1
    part_of_backward: float  # the same of backward passes
    place: str = ""  # the user's line that uses a weight first


class ConstantLine(NamedTuple):
    """A line of which operations made the same in each forward pass that was looked at."""

    file: str  # as reports name it
    line: int
    function: str
    times: int  # in each pass
    is_whole: bool = False  # all operations of the function did
    part: float = 1.0  # of the time of the line's operations


class SliceFacts(NamedTuple):
    """Calls of a module with a part of the rows of a tensor, in the steps that were looked at."""

    steps: int  # that were looked at
    slices: int  # calls of outermost modules
    rows: float  # of a slice, on average
    of_rows: int  # of the tensor
    place: str = ""  # the user's line of the first of them


class UnusedGradients(NamedTuple):
    """Gradients of parameters that no optimizer of torch has, in the steps that were looked at."""

    numbers: int  # of these parameters
    of: int  # of all parameters that get a gradient
    part: float  # of the forward passes with gradients, in time: modules that have them, as far as they do; 0 to 1
    passed_on: float  # of these passes, those whose input needs a gradient, which goes through the parameters
    is_whole: bool  # the modules have no others, and their input needs no gradient
    module: str  # the class of the module with most of them
    place: str = ""  # the user's line of its first call
    after_trained: float = 0.0  # of backward passes, in time: what comes after the last gradient of a trained parameter


class UnusedGraphs(NamedTuple):
    """Calls of modules that record a graph which no backward pass goes through, in the steps that were looked at."""

    steps: int  # that were looked at
    calls: int  # of outermost modules, whose graph was freed unused
    of: int  # all calls that recorded a graph
    part: float  # of the time of all these calls; 0 to 1
    module: str  # the class of the module that took most of it
    place: str = ""  # the user's line that calls it


class FrozenFacts(NamedTuple):
    """Calls of modules that are not trained, which depend on a loader's batch alone, in the batches looked at."""

    batches: int  # that were looked at
    part: float  # of the time of all outermost modules in these; 0 to 1
    has_grad: bool  # gradients were recorded around the call with the most time, though it needs none
    module: str  # the longest one: "ResNet", "features of Classifier"
    place: str = ""  # the user's line of its first call
    seconds: float = 0.0  # of a batch, on the host
    modules: int = 1


class RecurrentFacts(NamedTuple):
    """Recurrent layers and cells of torch that get one step of a sequence a call, in the steps that were looked at."""

    kind: str  # "GRU", "LSTMCell": of the one with the most time
    calls: float  # a step
    part: float  # of the time of forward passes: these calls; 0 to 1
    loop: float  # of the time of forward passes: from the first of these calls to the last; 0 to 1
    is_known: bool  # no input depends on an output of the layer: one call could have had the whole sequence
    work: int  # products of a step in one gate: rows x hidden x (inputs + hidden)
    place: str = ""  # the user's line of its first call


IMAGE_ENDS: Final = "rows and columns at the ends of images, by the larger of both"


class PaddingFacts(NamedTuple):
    """Positions of sequences that are padding in the batches that were looked at; shares are of 0 to 1."""

    batches: int
    padding: float  # of all positions
    worst: float  # of the positions of a batch
    to_longest: float  # of all positions: those behind the longest sequence of their batch
    grouped: float  # those that go if batches have sequences of similar length, too
    part: float  # of operations in forward passes: those at all positions
    what: str  # says that they are padding: "the mask", "padding_idx=0"
    place: str = ""  # the user's function that puts samples together
    package: str = ""  # else the package that has the function


class ActingFacts(NamedTuple):
    """The rows of inputs of calls without gradients that no loader feeds, and of the training's; each a mean."""

    rows: float
    training_rows: float


class RowFacts(NamedTuple):
    """The rows of inputs in the first forward passes of evaluations: of those with few rows, and of the training's."""

    calls: int  # forward passes of evaluations that were looked at
    few: int  # of these, with at most 4 rows: samples at once
    rows: float  # of one of the few, mean
    elements: float  # numbers in a row of theirs, mean
    batches: int  # fetched batches that a forward pass followed
    few_batches: int  # of these, followed by one with few rows
    most: int  # with few rows after one batch
    training_rows: float
    training_elements: float


class PassesBefore(NamedTuple):
    """Passes without gradients over data loaders before the training, of loaders that are not evaluated later."""

    passes: int
    seconds: float


class FetchedBefore(NamedTuple):
    """Batches of a pass before the first step that no module was called with, and that were not kept."""

    batches: int
    seconds: float  # from the first fetch to the end of the last one
    place: str = ""  # the user's line that takes them, or that calls the library that does
    is_skipped: bool = False  # the first step goes on with the pass; else it was over


class ConvolutionFacts(NamedTuple):
    """The order in which weights of dense 2d convolutions lie, where it is defined, and the inputs of the model."""

    channels_first: int  # convolutions with weights in NCHW
    channels_last: int
    inputs_last: bool = False  # the first inputs of the model are in NHWC


class KeptGraphs(NamedTuple):
    """Graphs of early steps, and how many of them some object still held some steps later."""

    steps: int  # whose graphs were followed
    kept: int  # of these
    after: int  # steps later
    place: str = ""  # the user's line that keeps the losses
    backward: str = ""  # the user's line of the backward pass


GRAPH: Final = "graph"  # nodes of the graph of the loss that were made in earlier steps
HOOKS: Final = "hooks"  # of one module or parameter
SIZE: Final = "size"  # elements of a container or a tensor
UPDATED: Final = "updated"  # parameters of an optimizer
PUT_TOGETHER: Final = frozenset(("cat", "concat", "concatenate", "stack", "vstack", "hstack"))  # functions
SUBNORMAL: Final = "subnormal state", "subnormal weights"  # percent of the values that an optimizer has, and trains


class Grown(NamedTuple):
    """What grew from step to step."""

    kind: str  # GRAPH, HOOKS, ...
    name: str  # of the variable; "" if unknown
    points: tuple[tuple[int, float], ...]  # backward pass, counted from 1, and how much there was
    passes: int  # backward passes so far
    path: str = ""  # of the file with the lines that work through the variable
    lines: tuple[tuple[int, int], ...] = ()  # the first and the last of each
    place: str = ""  # of the hook's function, of the backward pass, or the lines that add to a variable
    own: int = 0  # nodes of the last graph that were made in its step
    element_bytes: float = 0.0  # memory of an element of a container or a tensor, mean of some; 0 is unknown
    most: int = 0  # elements that a deque may have; 0: as many as it gets
    are_tensors: bool = False  # the newest element of a container is one on the CPU


class ProgramFacts(NamedTuple):
    """The facts of one process so far; None or 0 is unknown."""

    optimizer: OptimizerFacts | None = None
    compiled: CompileFacts | None = None  # None: torch.compile was not used
    autocast: str = ""  # the data type of torch.autocast in a forward pass
    kept_graphs: int = 0  # backward passes that kept the graph for another one
    cpu: CpuSpeed | None = None
    operators: int = 0  # of torch, in modules and backward passes of one step
    calls: tuple[CallFacts, ...] = ()  # in the order in which they were first made
    threads: int = 0  # of torch's own operations
    forward: ForwardFacts | None = None  # None: not counted
    repeats: RepeatFacts | None = None  # None: no call of a module was repeated
    graphs: KeptGraphs | None = None  # None: not followed
    finds_anomalies: bool = False  # autograd's anomaly detection was on
    embedding: EmbeddingFacts | None = None  # None: no table is large
    slices: SliceFacts | None = None  # None: no call of a module had a part of a tensor
    long_forward: LongOperators = LongOperators()
    long_backward: LongOperators = LongOperators()
    epochs: int = 0  # so far, where some have no figures; else 0
    outside: OutsideModules = OutsideModules()
    created_graphs: int = 0  # gradients with a graph of their own, which nothing used before the next update
    unclear_after: int = 0  # epochs, after which passes over other loaders followed; 0 where none did
    unused_gradients: UnusedGradients | None = None  # None: there are none, or it is not known
    frozen: FrozenFacts | None = None  # None: no module is frozen, or it is not known
    recurrent: RecurrentFacts | None = None  # None: no layer gets single steps, or it is not known
    kept_past_updates: int = 0  # of kept_graphs: an update followed before another backward pass
    uncounted: int = 0  # operators of a step so far, when they were too many and too short to be counted
    rows: RowFacts | None = None  # None: no evaluation calls the model with few rows
    convolutions: ConvolutionFacts | None = None  # None: there are none
    unused_graphs: UnusedGraphs | None = None  # None: all graphs are used, or it is not known
    passes_before: PassesBefore | None = None  # None: there were none
    nan_checks: NanChecks = NanChecks()
    padding: PaddingFacts | None = None  # None: there is none, or it is not known
    weights: ComputedWeights | None = None  # None: no weight is computed again
    has_omp_threads: bool = False  # OMP_NUM_THREADS sets the number of threads, as a launcher may
    acting: ActingFacts | None = None  # None: no calls without gradients and a loader, or with different rows
    grown: tuple[Grown, ...] = ()  # the most times, first
    fetched_before: FetchedBefore | None = None  # of the longest pass; None: there were none
    shapes: tuple[tuple[int, tuple[int, ...]], ...] = ()  # of the largest inputs of some forward passes, by update
    constants: tuple[ConstantLine, ...] = ()  # none, or not known
    expected_steps: int = 0  # of the loop under way, at its end; 0: nothing says how many
    has_token_ids: bool = False  # the largest input of forward passes is integers that an embedding looks up
    same_fetches: int = 0  # of early batches, in which the training drew no random numbers; -1 if it did in one

    def places_of(self, kind: str) -> str:
        """Return the lines that make calls of a kind, as reports name them; "" without any."""
        return ", ".join(call.site.place for call in self.calls if call.kind == kind)


NOTHING_KNOWN: Final = ProgramFacts()
