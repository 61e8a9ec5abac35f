"""What each change that the advice names does to the losses: one table for fixes, trials and the guide."""

from collections.abc import Iterable
from enum import Enum
from typing import Final


class Losses(Enum):
    """What to expect of the losses after a change."""

    EXACT = "same bit for bit"
    EXACT_IF = "same bit for bit, under a condition"
    CLOSE = "differ by rounding"
    CHANGES = "differ"


NO_RANDOM: Final = "if samples draw no random numbers"
NOT_DRAWING: Final = "if it draws no random numbers"
DROPOUT: Final = "and dropout draws other numbers"
UNUSED: Final = "if the training does not use its result"
KEPT: Final = "if you draw a number a pass, samples none"
EXACT, EXACT_IF, CLOSE, CHANGES = Losses


class Change(Enum):
    """A change of a training: its name in the advice, and what it does to the losses."""

    def __init__(self, label: str, losses: Losses, condition: str = "") -> None:
        self.label = label
        self.losses = losses
        self.condition = condition  # under which they stay the same, or how they differ

    # What a trial can apply.
    NUM_WORKERS = "num_workers", EXACT_IF, NO_RANDOM
    PERSISTENT_WORKERS = "persistent_workers", EXACT_IF, KEPT
    PREFETCH_FACTOR = "prefetch_factor", EXACT
    PIN_MEMORY = "pin_memory", EXACT
    NON_BLOCKING = "non_blocking", EXACT
    BATCHED = "BatchSampler", EXACT
    NUM_THREADS = "set_num_threads", CLOSE
    FOREACH = "foreach", EXACT_IF, "on the CPU"
    FUSED = "fused", CLOSE
    SET_TO_NONE = "set_to_none", EXACT_IF, "if the program does not read gradients that are zero"
    CHANNELS_LAST = "channels_last", CLOSE, DROPOUT
    COMPILE = "torch.compile", CLOSE, DROPOUT
    MATMUL_PRECISION = "set_float32_matmul_precision", CHANGES, "in the third digit of products"
    CUDNN_BENCHMARK = "cudnn.benchmark", CLOSE, "and from run to run"
    AUTOCAST = "autocast", CHANGES
    GC_FREEZE = "gc.freeze", EXACT
    ALLOCATOR = "LD_PRELOAD", EXACT
    GRADIENT_AS_BUCKET_VIEW = "gradient_as_bucket_view", EXACT
    STATIC_GRAPH = "static_graph", EXACT_IF, "if each step uses the same parameters"
    BUCKET_CAP_MB = "bucket_cap_mb", CLOSE
    # What only an edit can bring.
    ONE_LOADER = "one loader for all passes", EXACT_IF, NO_RANDOM
    FEWER_WORKERS = "fewer workers", EXACT_IF, NO_RANDOM
    LESS_PREPROCESSING = "less preprocessing", EXACT_IF, "if samples stay the same"
    AHEAD_OF_TIME = "data made ahead of time", EXACT_IF, "if the data stays the same"
    KEPT_RESULTS = "results kept in a file", EXACT_IF, NOT_DRAWING
    MAPPED_DATA = "data mapped into memory", EXACT
    OTHER_BATCHES = "other batches", CHANGES
    WHOLE_PASSES = "whole passes", CHANGES, "because batches come in another order"
    OTHER_ORDER = "another order of batches", CHANGES
    ACCUMULATION = "accumulated gradients", CHANGES
    SHORTER_HISTORY = "shorter history", CHANGES
    OTHER_MODEL = "another model", CHANGES
    SINGLE_FOR_DOUBLE = "float32 instead of float64", CLOSE
    SINGLE_FOR_HALF = "float32 instead of half", CHANGES, "as they are rounded less"
    ONE_FORWARD = "one forward pass", EXACT_IF, "if the model draws no random numbers"
    KEPT_FEATURES = "features computed once", CLOSE, "if inputs are the same in each epoch"
    ONE_BACKWARD = "one backward pass", CLOSE
    WHOLE_TENSORS = "whole batches instead of loops", CLOSE
    NO_ARGUMENT_CHECKS = "no checks of arguments", EXACT
    ONE_DISTRIBUTION = "one distribution for a batch", EXACT_IF, NOT_DRAWING
    ONE_OPTIMIZER = "one optimizer for all steps", CHANGES, "because its averages are kept"
    LARGER_EVALUATION = "larger evaluation batches", EXACT_IF, "but its own results differ by rounding"
    NO_ANOMALY_DETECTION = "no anomaly detection", EXACT
    SPARSE_GRADIENTS = "sparse gradients", CHANGES, "where the optimizer also moves rows that a batch does not use"
    CHECKPOINTING = "activation checkpointing", EXACT
    LESS_OFTEN = "less frequent work", EXACT_IF, UNUSED
    LESS_OUTPUT = "less frequent output", EXACT
    FOREACH_AVERAGE = "one operation for all averages", EXACT_IF, "if no loss uses the average"
    RARER_AVERAGE = "less frequent averaging", EXACT_IF, "if no loss uses the average"
    LESS_VALIDATION = "less validation or sampling", EXACT_IF, NOT_DRAWING
    ONE_BN_UPDATE = "statistics of batch norms once", EXACT_IF, NOT_DRAWING
    NO_GRAD = "no gradients where none are used", EXACT
    NO_REQUIRES_GRAD = "no unused gradients", EXACT
    DETACH = "no kept graphs", EXACT
    NAN_FILTER = "logging_nan_inf_filter", EXACT
    OTHER_PROCESS = "work in another process", EXACT
    CHEAPER_LINES = "cheaper lines", EXACT_IF, "if they compute the same"
    WEIGHT_DECAY = "weight decay", CLOSE, "and the loss has no penalty in it"
    NO_CREATE_GRAPH = "no graph of gradients", EXACT
    SMALLER_QUEUE = "less in a queue", EXACT
    IN_PLACE = "updates in place", EXACT
    ROOM_FOR_ALL = "memory made once", EXACT
    CHEAPER_HOOKS = "cheaper hooks", EXACT_IF, "if they change no value"
    SHORTER_LOCK = "a shorter lock", EXACT
    FEWER_COLLECTIONS = "fewer garbage collections", EXACT
    KEPT_CACHE = "memory kept by torch", EXACT
    REUSED_MEMORY = "memory used again", EXACT
    FEWER_RECORDED = "fewer recorded steps", EXACT
    SECTIONS = "sections", EXACT
    FEWER_CALLBACKS = "fewer callbacks", EXACT_IF, "if they change nothing"
    LARGER_COLLECTIVES = "larger collectives", CLOSE
    FEWER_COPIES = "fewer copies", EXACT
    OTHER_GPU = "another GPU", EXACT_IF, "on the same kind of GPU"
    OTHER_MACHINE = "another machine", EXACT_IF, "on the same kind of CPU"

    @property
    def text(self) -> str:
        """What happens to the losses, such as "same bit for bit, if samples draw no random numbers"."""
        known = EXACT if self.losses is EXACT_IF else self.losses
        return f"{known.value}, {self.condition}" if self.condition else known.value


ADVISED: Final = tuple(Change)[tuple(Change).index(Change.ONE_LOADER) :]


def losses_text(changes: Iterable[Change]) -> str:
    """Return what these changes do to the losses, such as "fused: differ by rounding; accumulated gradients: differ".

    The changes are named where they do not all do the same.
    """
    by_text: dict[str, list[str]] = {}
    made = frozenset(changes)
    for change in Change:
        if change in made:
            by_text.setdefault(change.text, []).append(change.label)
    if len(by_text) == 1:
        return next(iter(by_text))
    return "; ".join(f"{', '.join(labels)}: {text}" for text, labels in by_text.items())
