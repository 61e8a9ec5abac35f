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
    receives: str
    """What gets the metrics, for the table of the guide."""
    needs: str | None = None
    """The module that has to be installed; None if the standard library suffices."""
    package: str | None = None
    """The package that has it."""
    extra: str | None = None
    """The extra in ``pyproject.toml`` that installs it."""


TRACKERS: Final[dict[str, Tracker]] = {}


def _row(tracker: Tracker) -> Tracker:
    TRACKERS[tracker.name] = tracker
    return tracker


WANDB: Final = _row(
    Tracker(
        "wandb",
        "wandb_run",
        "WandbRun",
        "the run that your program has open (`wandb.init()`), whenever it begins",
        needs="wandb",
        package="wandb",
        extra="wandb",
    )
)
TENSORBOARD: Final = _row(
    Tracker(
        "tensorboard",
        "tensorboard_events",
        "TensorboardEvents",
        "event files in `tensorboard/`",
        needs="tensorboard",
        package="tensorboard",
        extra="tensorboard",
    )
)
JSONL: Final = _row(
    Tracker(
        "jsonl",
        "jsonl_file",
        "JsonlFile",
        "`metrics.jsonl`: one object per row with `step`, `time` (s since 1970) and the metrics",
    )
)
PROMETHEUS: Final = _row(
    Tracker(
        "prometheus",
        "prometheus_text",
        "PrometheusText",
        "`metrics.prom`: the newest values, for a textfile collector; or an endpoint",
        needs="prometheus_client",
        package="prometheus-client",
        extra="prometheus",
    )
)
MLFLOW: Final = _row(
    Tracker(
        "mlflow",
        "mlflow_run",
        "MlflowRun",
        "the active run of the training thread (`mlflow.start_run()`), by `log_batch`",
        needs="mlflow",
        package="mlflow",
        extra="mlflow",
    )
)
CSV: Final = _row(Tracker("csv", "csv_file", "CsvFile", "`metrics.csv`: `step,time,name,value`, one line per value"))
