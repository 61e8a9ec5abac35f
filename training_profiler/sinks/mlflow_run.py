"""MLflow: metrics go to the run that the program has active, from the tracker's own thread."""

import os
import posixpath
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from training_profiler.base.units import MS_PER_S
from training_profiler.sinks.metrics import PlainNames
from training_profiler.sinks.sink import HeldRows, MetricRow, Sink
from training_profiler.tables.trackers import MLFLOW

MAX_METRICS_PER_CALL: Final = 1000  # the limit of an MLflow server
MAX_KEY_LENGTH: Final = 250
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_\-. /]" if os.name == "nt" else r"[^A-Za-z0-9_\-. :/]")


class _Target(NamedTuple):
    uri: str
    run_id: str


def mlflow_key(name: str) -> str:
    """Return a metric's name with ``_`` for each character that MLflow forbids, cut to the length that it takes."""
    key = _FORBIDDEN.sub("_", name)
    if posixpath.normpath(key) != key:  # an empty part, or one of dots only
        key = "/".join(part if part.strip(".") else "_" for part in key.split("/"))
    return key[:MAX_KEY_LENGTH].rstrip("/.")


class MlflowRun(Sink):
    """Logs to the program's run. Never imports MLflow first: without such a run there is nothing to log to."""

    name = MLFLOW.name

    def __init__(self) -> None:
        self._target: _Target | None = None
        self._client_of: tuple[str, Any] | None = None
        self._held = HeldRows()
        self._keys = PlainNames(mlflow_key)

    def poll(self) -> bool:
        """Check for a run that is active on the calling thread; return True if it is new."""
        mlflow = sys.modules.get(MLFLOW.name)
        active_run = getattr(mlflow, "active_run", None)  # missing while another thread imports it
        run = None if active_run is None else active_run()
        if run is None or (self._target is not None and run.info.run_id == self._target.run_id):
            return False
        self._target = _Target(str(mlflow.get_tracking_uri()), str(run.info.run_id))  # type: ignore[union-attr]
        return True

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Log the rows to the latest run; hold them until there is one."""
        target = self._target
        self._held.add(rows)
        if target is None:
            return
        client, metric = self._client(target.uri), sys.modules[MLFLOW.name].entities.Metric
        metrics = [
            metric(self._keys.of(name), float(value), int(row.time_s * MS_PER_S), row.step)
            for row in self._held.drain()
            for name, value in row.metrics.items()
        ]
        for at in range(0, len(metrics), MAX_METRICS_PER_CALL):
            client.log_batch(target.run_id, metrics[at : at + MAX_METRICS_PER_CALL])

    def notes(self) -> list[str]:
        """Return a sentence if there was no run to log to."""
        if len(self._held) and self._target is None:
            return ["mlflow sink: no active run was found (mlflow.start_run()), so no metrics went to MLflow"]
        return []

    def _client(self, uri: str) -> Any:
        if self._client_of is None or self._client_of[0] != uri:
            self._client_of = uri, sys.modules[MLFLOW.name].MlflowClient(tracking_uri=uri)
        return self._client_of[1]
