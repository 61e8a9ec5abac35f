"""What sections are called on the screen. Data, metrics and lines to grep keep their names."""

from typing import Final

from training_profiler.snapshot.snapshot import OTHER, OUTSIDE_STEPS, PROFILER

# In tables: rows that are not sections of the program.
_IN_TABLES: Final = {
    OTHER: "unattributed (in step)",
    OUTSIDE_STEPS: "startup & between steps",
    PROFILER: "profiler overhead",
    "first_fetch": "first batch of an epoch",
    "forward_without_grad": "no-grad forward",
}
# In bars, which are read and not searched.
_IN_BARS: Final = {
    **_IN_TABLES,
    OTHER: "unattributed",
    "data_loading": "data loading",
    "data_generation": "data generation",
    "data_transfer": "data transfer",
    "forward_pass": "forward",
    "backward_pass": "backward",
    "optimizer_step": "optimizer",
    "metrics_computation": "metrics, grad norms",
    "ema_update": "EMA update",
    "validation_epoch": "validation",
    "visualization_generation": "visualization",
    "worker_start": "worker start",
}


def table_label(name: str) -> str:
    """Return the name of a section's row in a table."""
    return _IN_TABLES.get(name, name)


def bar_label(name: str) -> str:
    """Return the name of a section's bar."""
    return _IN_BARS.get(name, name)
