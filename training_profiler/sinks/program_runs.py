"""W&B and MLflow: metrics go to the run that the program has open. Neither package is imported first.

W&B: metrics join the rows of the program's own run, and no row of the program is lost or doubled. A committed row of
ours would move the run's step, and W&B refuses rows of a program whose explicit step is behind it. So ours stay
uncommitted: the program's next row takes the newest value of each metric along. If the program logs nothing itself,
ours wait until its run ends and are then committed one by one. W&B groups its panels by the first part of a name, so
all names of ours begin with the same.
"""

import atexit
import os
import posixpath
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from training_profiler.base.trackers import MLFLOW, WANDB
from training_profiler.base.units import MS_PER_S
from training_profiler.sinks.metrics import STEP, PlainNames
from training_profiler.sinks.sink import HeldRows, MetricRow, Sink, SinkContext

MAX_METRICS_PER_CALL: Final = 1000  # the limit of an MLflow server
MAX_KEY_LENGTH: Final = 250
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_\-. /]" if os.name == "nt" else r"[^A-Za-z0-9_\-. :/]")


def mlflow_key(name: str) -> str:
    """Return a metric's name with ``_`` for each character that MLflow forbids, cut to the length that it takes."""
    key = _FORBIDDEN.sub("_", name)
    if posixpath.normpath(key) != key:  # an empty part, or one of dots only
        key = "/".join(part if part.strip(".") else "_" for part in key.split("/"))
    return key[:MAX_KEY_LENGTH].rstrip("/.")


class MlflowRun(Sink):
    """Logs to the active run by ``log_batch``, from the tracker's own thread."""

    name = MLFLOW.name

    def __init__(self) -> None:
        self._target: tuple[str, str] | None = None  # tracking URI, run
        self._client_of: tuple[str, Any] | None = None
        self._held = HeldRows()
        self._keys = PlainNames(mlflow_key)

    def poll(self) -> bool:
        """Check for a run that is active on the calling thread; return True if it is new."""
        mlflow = sys.modules.get(MLFLOW.name)
        active_run = getattr(mlflow, "active_run", None)  # missing while another thread imports it
        run = None if active_run is None else active_run()
        if run is None or (self._target is not None and run.info.run_id == self._target[1]):
            return False
        self._target = str(mlflow.get_tracking_uri()), str(run.info.run_id)  # type: ignore[union-attr]
        return True

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Log the rows to the latest run; hold them until there is one."""
        target = self._target
        self._held.add(rows)
        if target is None:
            return
        uri, run_id = target
        mlflow = sys.modules[MLFLOW.name]
        if self._client_of is None or self._client_of[0] != uri:
            self._client_of = uri, mlflow.MlflowClient(tracking_uri=uri)
        metrics = [
            mlflow.entities.Metric(self._keys.of(name), float(value), int(row.time_s * MS_PER_S), row.step)
            for row in self._held.drain()
            for name, value in row.metrics.items()
        ]
        for at in range(0, len(metrics), MAX_METRICS_PER_CALL):
            self._client_of[1].log_batch(run_id, metrics[at : at + MAX_METRICS_PER_CALL])

    def notes(self) -> list[str]:
        """Return a sentence if there was no run to log to."""
        if len(self._held) and self._target is None:
            return ["mlflow sink: no active run was found (mlflow.start_run()), so no metrics went to MLflow"]
        return []


ARTIFACT_TYPE: Final = "profiling-report"
GROUP: Final = STEP.partition("/")[0]
PATIENCE_S: Final = 2.0  # wait for a row that is being logged, which takes less than a millisecond


class WandbRun(Sink):
    """Logs to the run of ``wandb.init()``."""

    name = WANDB.name

    def __init__(self) -> None:
        self._context: SinkContext | None = None
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self._run: Any = None
        self._ended: Any = None  # W&B still shows it as its run when the interpreter exits
        self._has_found_run = False
        self._logs_itself = False
        self._defined: set[str] = set()
        self._held = HeldRows()
        self._names = PlainNames(lambda name: name.replace("*", "_"))  # "*" is for patterns of names

    def connect(self, context: SinkContext) -> None:
        """Get the run's services: the last rows are needed before the program's own run ends."""
        self._context = context

    def poll(self) -> bool:
        """Check for an active run of the program; return True if it is new."""
        run = getattr(sys.modules.get(WANDB.name), "run", None)
        if run is None or run is self._run or run is self._ended or getattr(run, "disabled", False):
            return False
        self._run, self._logs_itself = run, False
        self._defined.clear()
        if not self._has_found_run:  # registered after W&B's own exit function, so it runs before that
            atexit.register(self._finish)
        self._has_found_run = True
        module = sys.modules.get("wandb.sdk.wandb_run")  # private names may be missing; then atexit alone has to do
        hooks = getattr(run, "_teardown_hooks", None)
        if isinstance(hooks, list) and hasattr(module, "TeardownHook") and hasattr(module, "TeardownStage"):
            hooks.append(module.TeardownHook(self._finish, module.TeardownStage.EARLY))  # type: ignore[union-attr]
        return True

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Add the rows to the next row of the program; hold them while it has no run, or logs nothing."""
        with self._busy:
            run = self._run
            if run is None and self._has_found_run:
                return  # the program's run has ended
            self._held.add(rows)
            if run is not None and len(self._held) and self._has_logged(run):
                self._log_newest(run)

    def after_fork_in_child(self) -> None:
        """Drop the run, which belongs to the parent process."""
        self._run = None
        atexit.unregister(self._finish)

    def notes(self) -> list[str]:
        """Return which rows did not reach a run."""
        if len(self._held) and not self._has_found_run:
            return ["wandb sink: no run was found (wandb.init()), so no metrics went to W&B"]
        if self._held.thinned:
            return [f"wandb sink: {self._held.thinned} rows dropped while waiting for a run"]
        return []

    def _has_logged(self, run: Any) -> bool:
        """Return whether the program logs rows of its own. Reads the run's step until it does."""
        self._logs_itself = self._logs_itself or run.step > run.starting_step
        return self._logs_itself

    def _log_newest(self, run: Any) -> None:
        newest: dict[str, float] = {}
        for row in self._held.drain():
            newest |= in_group(row)
        self._log(run, newest, commit=False)

    def _log(self, run: Any, metrics: Mapping[str, float], commit: bool) -> None:
        metrics = {self._names.of(name): value for name, value in metrics.items()}
        for name in metrics.keys() - self._defined:
            # By its exact name, so that no pattern of the program can give it another axis.
            axis = {} if name == STEP else {"step_metric": STEP, "step_sync": False}
            run.define_metric(name, **axis)
            self._defined.add(name)
        run.log(metrics, commit=commit)

    def _finish(self) -> None:
        """Log the held rows and the report: the run is about to end, on the program's own thread."""
        if self._context is not None and self._run is not None and os.getpid() == self._pid:
            context, run = self._context, self._run
            for work in (context.flush, self._log_rest, lambda: _log_report(run, context.report())):
                context.guard(work)

    def _log_rest(self) -> None:
        if not self._busy.acquire(timeout=PATIENCE_S):
            return
        try:
            run, self._ended, self._run = self._run, self._run, None
            if run is None or not len(self._held):
                return
            if self._has_logged(run):
                self._log_newest(run)
                return
            for row in self._held.drain():
                self._log(run, in_group(row), commit=True)
        finally:
            self._busy.release()


def in_group(row: MetricRow) -> dict[str, float]:
    """Return step and metrics of a row with names in one group: ``profile/train/...`` is ``profiling/train/...``."""
    return {**{f"{GROUP}/{name.partition('/')[2]}": value for name, value in row.metrics.items()}, STEP: row.step}


def _log_report(run: Any, files: Mapping[str, str]) -> None:
    """Add the report to the run, as files of one artifact."""
    wandb = sys.modules.get(WANDB.name)
    if wandb is None or not files:
        return
    artifact = wandb.Artifact(f"{GROUP}-{run.id}", type=ARTIFACT_TYPE)
    for name, text in files.items():
        with artifact.new_file(name, "w", encoding="utf-8") as file:
            file.write(text)
    run.log_artifact(artifact)
