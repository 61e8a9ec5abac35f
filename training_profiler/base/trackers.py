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

    @property
    def package(self) -> str | None:
        """The package that has it."""
        return self.needs and self.needs.replace("_", "-")

    @property
    def extra(self) -> str | None:
        """The extra in ``pyproject.toml`` that installs it."""
        return self.needs and self.name


WANDB: Final = Tracker(
    "wandb",
    "program_runs",
    "WandbRun",
    "the run that your program has open (`wandb.init()`), whenever it begins",
    needs="wandb",
)
TENSORBOARD: Final = Tracker(
    "tensorboard", "tensorboard_events", "TensorboardEvents", "event files in `tensorboard/`", needs="tensorboard"
)
JSONL: Final = Tracker(
    "jsonl",
    "line_files",
    "JsonlFile",
    "`metrics.jsonl`: one object per row with `step`, `time` (s since 1970) and the metrics",
)
PROMETHEUS: Final = Tracker(
    "prometheus",
    "prometheus_text",
    "PrometheusText",
    "`metrics.prom`: the newest values, for a textfile collector; or an endpoint",
    needs="prometheus_client",
)
MLFLOW: Final = Tracker(
    "mlflow",
    "program_runs",
    "MlflowRun",
    "the active run of the training thread (`mlflow.start_run()`), by `log_batch`",
    needs="mlflow",
)
CSV: Final = Tracker("csv", "line_files", "CsvFile", "`metrics.csv`: `step,time,name,value`, one line per value")
TRACKERS: Final = {row.name: row for row in (WANDB, TENSORBOARD, JSONL, PROMETHEUS, MLFLOW, CSV)}
