"""The trackers, one row each. Nothing here is imported before a tracker is chosen."""

from typing import Final, NamedTuple


class Tracker(NamedTuple):
    """Where a tracker's sink is, and the package that it needs."""

    name: str
    """How users choose it: ``sinks="jsonl,csv"``."""
    module: str
    """The sink's module, in ``training_profiler.sinks``."""
    sink: str
    """The sink's class."""
    needs: str | None = None
    """The module that has to be installed; None if the standard library suffices."""
    package: str | None = None
    """The package that has it."""
    extra: str | None = None
    """The extra in ``pyproject.toml`` that installs it."""


WANDB: Final = Tracker("wandb", "wandb_run", "WandbRun", "wandb", "wandb", "wandb")
TENSORBOARD: Final = Tracker(
    "tensorboard", "tensorboard_events", "TensorboardEvents", "tensorboard", "tensorboard", "tensorboard"
)
JSONL: Final = Tracker("jsonl", "jsonl_file", "JsonlFile")
PROMETHEUS: Final = Tracker(
    "prometheus", "prometheus_text", "PrometheusText", "prometheus_client", "prometheus-client", "prometheus"
)
MLFLOW: Final = Tracker("mlflow", "mlflow_run", "MlflowRun", "mlflow", "mlflow", "mlflow")
CSV: Final = Tracker("csv", "csv_file", "CsvFile")

TRACKERS: Final = {tracker.name: tracker for tracker in (WANDB, TENSORBOARD, JSONL, PROMETHEUS, MLFLOW, CSV)}
