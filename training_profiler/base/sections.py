"""The section names that have a meaning, one row each; any other name is free for manual instrumentation."""

import itertools
import zlib
from typing import Final, NamedTuple

from training_profiler.base.text import MAX_NAME_LENGTH, printable

# A part of a training step. A manual section with this name hides the inferred sections inside it.
STEP_PART: Final = "part of a step"
# Work between training steps, wherever the loop calls it: it makes no step longer.
OUTSIDE_STEPS: Final = "outside steps"
# A part of another section, never a component of its own.
NESTED: Final = "nested"
# Recorded like any name of the user's; only rules know it.
FREE: Final = "free"
ANOMALIES: Final = "anomaly detection"  # a forward pass keeps its stack for each operation
BACKWARD_HOOK: Final = "backward hook"
FORWARD_HOOK: Final = "forward hook"
RECOMPUTATION: Final = "recomputation"  # a forward pass that activation checkpointing repeats in the backward pass
CUSTOM_BACKWARD: Final = "custom backward"  # written in Python
OF_PASSES: Final = (ANOMALIES, BACKWARD_HOOK, FORWARD_HOOK, RECOMPUTATION, CUSTOM_BACKWARD)


class KnownSection(NamedTuple):
    """What the profiler knows of a section, by its name."""

    name: str
    kind: str
    meaning: str
    """What the guide says about it."""
    starts_loop: bool = False
    """Whether its first span shows that the training loop has begun, where no step end does."""
    per_loader: bool = False
    """Whether its time is also added up for each data loader."""
    on_input: bool = False
    """Whether a slow rank should look at its data pipeline."""
    on_device: bool = False
    """Whether a slow rank should look at its device."""


OTHER: Final = "other"  # time within steps in no section
WITHIN: Final = "/"  # validation_epoch/forward_pass: the forward passes of validation
PROFILER: Final = "(profiler)"  # the profiler's own work: sums, reports, the journal
# What a capture adds to its trace: marks of the clock, and events of the category of sampled lines.
CLOCK_MARK: Final = "training_profiler.clock"
SAMPLED_LINE: Final = "training_profiler.line"
DATA_LOADING: Final = "data_loading"
DATA_GENERATION: Final = "data_generation"
DATA_TRANSFER: Final = "data_transfer"
FORWARD_PASS: Final = "forward_pass"
BACKWARD_PASS: Final = "backward_pass"
METRICS_COMPUTATION: Final = "metrics_computation"
OPTIMIZER_STEP: Final = "optimizer_step"
GRAPH_REPLAY: Final = "graph_replay"
EMA_UPDATE: Final = "ema_update"
SYNCHRONIZATION: Final = "synchronization"
VALIDATION_EPOCH: Final = "validation_epoch"
SAMPLING: Final = "sampling"
CHECKPOINTING: Final = "checkpointing"
VISUALIZATION_GENERATION: Final = "visualization_generation"
BATCH_NORM_UPDATE: Final = "batch_norm_update"
FIRST_FETCH: Final = "first_fetch"
WORKER_START: Final = "worker_start"
FORWARD_WITHOUT_GRAD: Final = "forward_without_grad"
ROLLOUT: Final = "rollout"
GRADIENT_CLIPPING: Final = "gradient_clipping"
LOGGING: Final = "logging"
LINES_IN_WORKERS: Final = f"{DATA_LOADING} (workers)"  # in report.json, among the lines of sections

KNOWN_SECTIONS: Final = (
    KnownSection(
        DATA_LOADING, STEP_PART, "waiting for the next batch", starts_loop=True, per_loader=True, on_input=True
    ),
    KnownSection(DATA_GENERATION, STEP_PART, "creating synthetic data in the loop", starts_loop=True, on_input=True),
    KnownSection(DATA_TRANSFER, STEP_PART, "moving a batch from host to device", starts_loop=True),
    KnownSection(FORWARD_PASS, STEP_PART, "computing the loss", starts_loop=True, per_loader=True, on_device=True),
    KnownSection(BACKWARD_PASS, STEP_PART, "computing gradients", starts_loop=True, per_loader=True, on_device=True),
    KnownSection(METRICS_COMPUTATION, STEP_PART, "norms of gradients, gradient clipping", on_device=True),
    KnownSection(OPTIMIZER_STEP, STEP_PART, "updating parameters, and `zero_grad`", per_loader=True, on_device=True),
    KnownSection(GRAPH_REPLAY, STEP_PART, "replaying the CUDA graph of a step", starts_loop=True, on_device=True),
    KnownSection(EMA_UPDATE, STEP_PART, "exponential moving average of the weights", on_device=True),
    KnownSection(SYNCHRONIZATION, STEP_PART, "waiting for other ranks, or exchanging data with them"),
    KnownSection(VALIDATION_EPOCH, OUTSIDE_STEPS, "a pass over validation data, or several in a row"),
    KnownSection(SAMPLING, OUTSIDE_STEPS, "generating sample images"),
    KnownSection(CHECKPOINTING, OUTSIDE_STEPS, "saving model and optimizer state"),
    KnownSection(VISUALIZATION_GENERATION, OUTSIDE_STEPS, "making plots or images for a log"),
    KnownSection(BATCH_NORM_UPDATE, OUTSIDE_STEPS, "a pass over the data for the statistics of batch norms"),
    KnownSection(FIRST_FETCH, NESTED, "the first batch of a pass, within `data_loading`", on_input=True),
    KnownSection(WORKER_START, NESTED, "starting the loader's workers, within `data_loading`", on_input=True),
    KnownSection(ROLLOUT, FREE, "the model acts in an environment inside a step"),
    KnownSection(
        FORWARD_WITHOUT_GRAD, FREE, "a teacher, a target network or a frozen encoder in a step", on_device=True
    ),
    KnownSection(GRADIENT_CLIPPING, FREE, "gradient clipping, if you name it so", on_device=True),
    KnownSection(LOGGING, FREE, "writing logs"),
)


def _names(kind: str) -> tuple[str, ...]:
    return tuple(section.name for section in KNOWN_SECTIONS if section.kind == kind)


STEP_PARTS: Final = _names(STEP_PART)
OUTSIDE_STEPS_SECTIONS: Final = _names(OUTSIDE_STEPS)
OUTSIDE_SECTIONS: Final = (*OUTSIDE_STEPS_SECTIONS, PROFILER)  # make no step longer, wherever they are called
NESTED_SECTIONS: Final = _names(NESTED)
LOOP_SECTIONS: Final = tuple(section.name for section in KNOWN_SECTIONS if section.starts_loop)
LOADER_SECTIONS: Final = tuple(section.name for section in KNOWN_SECTIONS if section.per_loader)
FORWARD_SECTIONS: Final = (FORWARD_PASS, FORWARD_WITHOUT_GRAD)
ACTING_SECTIONS: Final = (ROLLOUT, FORWARD_WITHOUT_GRAD)  # in some steps only, because of the program's order
INPUT_SECTIONS: Final = tuple(section.name for section in KNOWN_SECTIONS if section.on_input)
DEVICE_SECTIONS: Final = tuple(section.name for section in KNOWN_SECTIONS if section.on_device)

USERS: Final = "user:"  # in a key, before a name of the user's that a row of ours has, or could have
_OWN: Final = frozenset((OTHER, PROFILER.strip("()"), LINES_IN_WORKERS, *NESTED_SECTIONS))
_CHECKSUM_LENGTH: Final = 9  # "~" and eight digits


def key_of(name: str) -> str:
    """Return the key in JSON, journals and metrics of a section that the user named ``name``.

    No two printable names have the same key, and no name has a key of ours. It has at most ``MAX_NAME_LENGTH``
    characters: a longer one is cut, and ends with a checksum of the name.
    """
    key = USERS + name if _is_reserved(name) else name
    shown = printable(key)
    if printable(key, MAX_NAME_LENGTH + 1) == shown:
        return shown
    checksum = zlib.crc32(name.encode(errors="surrogatepass"))
    return f"{printable(key, MAX_NAME_LENGTH - _CHECKSUM_LENGTH)}~{checksum:08x}"


def name_of(key: str) -> str:
    """Return the name of a section's key as the user wrote it; the key of a section of ours as it is."""
    name = key.removeprefix(USERS)
    return name if _is_reserved(name) else key


def _is_reserved(name: str) -> bool:
    is_within = (
        WITHIN in name and name.partition(WITHIN)[0] in OUTSIDE_SECTIONS
    )  # a row inside one begins with its name
    return name in _OWN or is_within or name[:1] + name[-1:] == "()" or name.startswith(USERS)


OTHER_NAMES: Final = "(other names)"
INVALID_NAME: Final = "(invalid name)"
MAX_FURTHER_NAMES: Final = 10_000  # distinct names beyond the limit that are counted for the report


class SectionNames:
    """The bounded table of section names; ids count from 1, 0 stands for "no section"."""

    def __init__(self, limit: int = 500) -> None:
        self.limit = limit
        self.names: dict[int, str] = {0: ""}
        self.invalid_count = 0
        self.invalid_example = ""
        self.further_names: set[int] = set()  # hashes, since names may be of any length
        self._ids: dict[str, int] = {}
        self._next_id = itertools.count(1).__next__

    def use_limit(self, most: int) -> None:
        """Give at most ``most`` names a row of their own from now on."""
        self.limit = most

    def id_of_users(self, name: object) -> int:
        """Return the id of a section that the user named ``name``."""
        return self.id_of(key_of(name) if isinstance(name, str) and name.strip() else name)

    def id_of(self, name: object) -> int:
        """Return the id of a key; an unusable one gets the id of "(invalid name)" or "(other names)"."""
        if not isinstance(name, str) or not name.strip():
            self.invalid_count += 1
            self.invalid_example = self.invalid_example or printable(_show(name))
            return self._id_of_printable(INVALID_NAME)
        known = self._ids.get(name)
        if known is not None:
            return known
        shown = printable(name)
        if shown not in self._ids and shown != PROFILER and len(self.names) > self.limit:
            if len(self.further_names) < MAX_FURTHER_NAMES:
                self.further_names.add(hash(name))
            return self._id_of_printable(OTHER_NAMES)
        return self._id_of_printable(shown)

    def is_kept(self, id: int) -> bool:
        """Return whether this is the id of a single name, so its section can be cached."""
        return self.names[id] not in (OTHER_NAMES, INVALID_NAME)

    def _id_of_printable(self, name: str) -> int:
        known = self._ids.get(name)
        if known is None:
            # Two threads may add the same name: setdefault lets one win, and the other's id stays unused.
            fresh = self._next_id()
            self.names[fresh] = name
            known = self._ids.setdefault(name, fresh)
        return known


def _show(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
