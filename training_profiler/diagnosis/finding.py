"""What a rule and a finding are, and what each change that advice names does to the losses; for runs and for traces."""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

Evidence = Mapping[str, float | int | str]

SHORTEST_CLAIM: Final = 24  # characters; a colon before them introduces the claim, as in "GPU 0: ..."
PASS: Final = "PASS"
FAIL: Final = "FAIL"
UNKNOWN: Final = "not measured"
UNLIMITED: Final = 1000  # characters
MIN_WIDTH: Final = 20  # of the column that is wrapped


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
KEPT: Final = "if the training draws no random numbers"
EXACT, EXACT_IF, CLOSE, CHANGES = Losses
# A graph, of a forward pass; measured on the CPU for MLPs, convolutions, LSTMs and attention: 3 to 35 %.
RECORDING_COSTS: Final = 0.15


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
    SKIPPED_BY_INDEX = "batches skipped by index", EXACT_IF, NO_RANDOM
    OTHER_ORDER = "another order of batches", CHANGES
    ACCUMULATION = "accumulated gradients", CHANGES
    NO_SYNC = "no_sync", CLOSE
    NO_SEARCH = "find_unused_parameters=False", CLOSE
    SHORTER_HISTORY = "shorter history", CHANGES
    OTHER_MODEL = "another model", CHANGES
    SINGLE_FOR_DOUBLE = "float32 instead of float64", CLOSE
    SINGLE_FOR_HALF = "float32 instead of half", CHANGES, "as they are rounded less"
    ONE_FORWARD = "one forward pass", EXACT_IF, "if the model draws no random numbers"
    KEPT_FEATURES = "features computed once", CLOSE, "if inputs are the same in each epoch"
    ONE_BACKWARD = "one backward pass", CLOSE
    WHOLE_TENSORS = "whole batches instead of loops", CLOSE
    ONE_NORM = "one norm for all gradients", CHANGES
    ROWS_BY_INDEX = "rows taken by index", CLOSE
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
    LESS_PADDING = "less padding", CLOSE, DROPOUT
    CACHED_WEIGHTS = "parametrize.cached", CLOSE, "if the parametrization keeps no state"
    COMPUTED_ONCE = "constants computed once", EXACT
    DETACHED_STATE = "a detached state", EXACT_IF, "if the optimizer trains nothing that the state is computed from"
    NAN_FILTER = "logging_nan_inf_filter", EXACT
    OTHER_PROCESS = "work in another process", EXACT
    CHEAPER_LINES = "cheaper lines", EXACT_IF, "if the cheaper code returns the same values"
    WEIGHT_DECAY = "weight decay", CLOSE, "and the loss has no penalty in it"
    NO_CREATE_GRAPH = "no graph of gradients", EXACT
    SMALLER_QUEUE = "less in a queue", EXACT
    BOUNDED = "less kept", EXACT_IF, "if no loss uses what is left out"
    IN_PLACE = "updates in place", EXACT
    ROOM_FOR_ALL = "memory made once", EXACT
    FLUSHED = "set_flush_denormal", CLOSE
    PARAMETERS_ONCE = "each parameter once", CHANGES
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


UP_TO: Final = frozenset((Change.LESS_PREPROCESSING, Change.CHEAPER_LINES, Change.SHORTER_LOCK, Change.CHEAPER_HOOKS))
ADVISED: Final = tuple(Change)[tuple(Change).index(Change.ONE_LOADER) :]


def worst_losses(changes: Sequence[Change]) -> str:
    """Return what the change of these that does most to the losses does to them; "" of none."""
    order = list(Losses)  # kept workers change the order of batches, unless the program does something about it
    worst = max(changes, key=lambda change: (order.index(change.losses), change.condition == KEPT), default=None)
    return "" if worst is None else worst.text


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


class Action(NamedTuple):
    """What to type, the changes of the training that it names, and its own part of the finding's saving, 0 to 1.

    A command that only finds out more has no part of it.
    """

    text: str
    changes: tuple[Change, ...] = ()
    part: float = 1.0

    @property
    def up_to(self) -> str:
        """What stands before its saving: "up to " where a part of the time of these lines may stay."""
        return "up to " if self.changes and UP_TO.issuperset(self.changes) else ""

    def of_loader(self, name: str) -> "Action":
        """Return the action with the name of one of several loaders, which it is for."""
        return self._replace(text=f"{self.text} for loader {name}")


def action_of(fix: str, changes: tuple[Change, ...], part: float = 1.0) -> Action:
    """Return the first clause of a fix."""
    text = brief(fix)
    return Action(text, tuple(change for change in changes if change.label in text) or changes, part)


PROGRAM: Final = "PROGRAM"  # in a command, where the program is not known
RECORD_SLOW_STEPS: Final = Action(f"training-profiler run --capture outlier {PROGRAM}", part=0.0)


def record_steps(of: int, *begins: int) -> Action:
    """Return the command that records four steps from each begin on: by default from 100, or the middle of so many."""
    windows = ",".join(f"steps={first}-{first + 3}" for first in begins or (min(100, of // 2),))
    return Action(f"training-profiler run --capture {windows} {PROGRAM}", part=0.0)


class Fix(str):
    """What to do, which changes of the training that names, and the actions where its first clause is not the one."""

    __slots__ = ("actions", "changes")

    def __new__(cls, text: str, _changes: tuple[Change, ...] = (), _actions: tuple[Action, ...] = ()) -> "Fix":
        """Return the text."""
        return super().__new__(cls, text)

    def __init__(self, _text: str, changes: tuple[Change, ...] = (), actions: tuple[Action, ...] = ()) -> None:
        self.changes = changes
        self.actions = actions

    @property
    def as_next(self) -> "Fix":
        """The fix as a part of a longer sentence."""
        return Fix(self[0].lower() + self[1:], self.changes)


def joined(fixes: Sequence[Fix], actions: tuple[Action, ...] = ()) -> Fix:
    """Return several fixes as one, with semicolons between them."""
    return Fix("; ".join(fixes), tuple(change for fix in fixes for change in fix.changes), actions)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, the measured numbers behind it, and what to change.

    ``potential_saving_s`` is how much shorter the measured run, or the recorded steps of a trace, would have been
    without the cost. It is 0 if that is not known or nothing needs to change. ``step_s`` is the mean step and
    ``step_if_fixed_s`` the same without the cost; both are None for a cost outside of steps, and in traces.
    ``saving_range_s`` is the least and the most that a change is likely to save; None if unknown. ``tried`` is what
    trials of the fix have shown; empty without any.
    """

    code: str
    message: str
    evidence: Evidence
    potential_saving_s: float = 0.0
    fix: str = ""
    step_s: float | None = None
    step_if_fixed_s: float | None = None
    saving_range_s: tuple[float, float] | None = None
    tried: str = ""

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the training that the fix names."""
        return self.fix.changes if isinstance(self.fix, Fix) else ()

    @property
    def actions(self) -> tuple[Action, ...]:
        """What can be done: the first clause of the fix, or the actions that it names, each with its own saving."""
        named = self.fix.actions if isinstance(self.fix, Fix) else ()
        if named or not self.fix:
            return named
        return (action_of(self.fix, self.changes),)

    @property
    def losses(self) -> str:
        """What the fix does to the losses of the training; "" where it names no change."""
        return losses_text(self.changes)

    @property
    def advice(self) -> str:
        """The fix, what it does to the losses, and what trials of it have shown."""
        losses = f". Losses: {self.losses}" if self.losses else ""
        return f"{self.fix}{losses}" + (f". Tried: {self.tried}" if self.tried else "")


def brief(message: str) -> str:
    """Return the claim of a finding's message, without the places and the figures in parentheses after it."""
    depth = 0
    for at, character in enumerate(message):
        depth += (character == "(") - (character == ")")
        is_end = message.startswith("; ", at) or (message.startswith(": ", at) and at >= SHORTEST_CLAIM)
        if is_end and not depth:
            message = message[:at]
            break
    return re.sub(r"\s+\([^()]*\)$", "", message)


class Check(NamedTuple):
    """A target in words, the measured value, and whether it meets the target."""

    what: str
    target: str
    verdict: str
    measured: str  # "" if not measured


def check(what: str, target: str, figure: float | None, is_met: Callable[[float], bool]) -> Check:
    """Return the check of a share of 0 to 1; None if it was not measured."""
    if figure is None:
        return Check(what, target, UNKNOWN, "")
    return Check(what, target, PASS if is_met(figure) else FAIL, f"{figure:.1%}")


def check_lines(checks: Sequence[Check], width: int = UNLIMITED) -> list[str]:
    """Return the checks as text; one that is longer than ``width`` takes several lines."""
    measured_width = max(len(check.measured) for check in checks)
    target_width = max(len(check.target) for check in checks)
    room = width - len(f"{UNKNOWN}      (target )") - measured_width - target_width
    what_width = min(max(len(check.what) for check in checks), max(MIN_WIDTH, room))
    lines = []
    for check in checks:
        what, *rest = textwrap.wrap(check.what, what_width)
        verdict, measured = f"{check.verdict:<{len(UNKNOWN)}}", f"{check.measured:>{measured_width}}"
        lines.append(f"{verdict}  {what:<{what_width}}  {measured}  (target {check.target})")
        lines += [f"{'':<{len(UNKNOWN)}}  {line}" for line in rest]
    return lines
