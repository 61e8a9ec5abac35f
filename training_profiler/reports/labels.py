"""What sections are called on the screen. Data, metrics and lines to grep keep their names."""

from collections.abc import Container, Mapping
from typing import Final

from training_profiler.recording.section_names import key_of, name_of
from training_profiler.snapshot.snapshot import OTHER, OUTSIDE_STEPS, PROFILER
from training_profiler.tables.sections import (
    BACKWARD_PASS,
    BATCH_NORM_UPDATE,
    DATA_GENERATION,
    DATA_LOADING,
    DATA_TRANSFER,
    EMA_UPDATE,
    FIRST_FETCH,
    FORWARD_PASS,
    FORWARD_WITHOUT_GRAD,
    GRAPH_REPLAY,
    METRICS_COMPUTATION,
    OPTIMIZER_STEP,
    VALIDATION_EPOCH,
    VISUALIZATION_GENERATION,
    WORKER_START,
)

# In tables: rows that are not sections of the program.
_IN_TABLES: Final = {
    OTHER: "unattributed (in step)",
    OUTSIDE_STEPS: "startup & between steps",
    PROFILER: "profiler overhead",
    FIRST_FETCH: "first batch of an epoch",
    FORWARD_WITHOUT_GRAD: "no-grad forward",
}
_WITHOUT_STEPS: Final = {**_IN_TABLES, OTHER: "unattributed"}
# In bars, which are read and not searched.
_IN_BARS: Final = {
    **_IN_TABLES,
    OTHER: "unattributed",
    DATA_LOADING: "data loading",
    DATA_GENERATION: "data generation",
    DATA_TRANSFER: "data transfer",
    FORWARD_PASS: "forward",
    BACKWARD_PASS: "backward",
    OPTIMIZER_STEP: "optimizer",
    GRAPH_REPLAY: "graph replay",
    METRICS_COMPUTATION: "metrics, grad norms",
    EMA_UPDATE: "EMA update",
    VALIDATION_EPOCH: "validation",
    VISUALIZATION_GENERATION: "visualization",
    BATCH_NORM_UPDATE: "batch norm update",
    WORKER_START: "worker start",
}
OURS: Final = "(built-in)"  # behind the label of a row of ours, where the user called a section by that label


def table_label(key: str, among: Container[str] = (), has_steps: bool = True) -> str:
    """Return the name of a section's row in a table ``among`` others, of a run with steps or without."""
    return _label(key, _IN_TABLES if has_steps else _WITHOUT_STEPS, among)


def epoch_label(key: str, among: Container[str] = ()) -> str:
    """Return the name of a section in the summary of an epoch, ``among`` others."""
    return _label(key, {OTHER: "other/overhead"}, among)


def bar_label(key: str, among: Container[str] = ()) -> str:
    """Return the name of a section's bar ``among`` others."""
    return _label(key, _IN_BARS, among)


def _label(key: str, labels: Mapping[str, str], among: Container[str]) -> str:
    label = labels.get(key) or name_of(key)
    users = key_of(label)
    return f"{label} {OURS}" if users != key and users in among else label
