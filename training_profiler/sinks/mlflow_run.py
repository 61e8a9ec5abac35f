"""MLflow: metrics go to the run that the program has active, from the tracker's own thread."""

import posixpath
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from training_profiler.sinks.sink import Held, MetricRow, Sink
from training_profiler.units import MS_PER_S

MOST_A_CALL: Final = 1000  # metrics; what a server takes at once
LONGEST_KEY: Final = 250
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_\-. :/]")


class _Target(NamedTuple):
    uri: str
    run_id: str


def mlflow_key(name: str) -> str:
    """Return a metric's name with ``_`` for what MLflow does not allow in it."""
    key = _FORBIDDEN.sub("_", name)[:LONGEST_KEY]
    if posixpath.normpath(key) != key:  # an empty part, or one of dots
        key = "/".join(part if part.strip(".") else "_" for part in key.split("/"))
    return key


class MlflowRun(Sink):
    """Never imports MLflow first: without a run of the program's own there is nothing to log to."""

    name = "mlflow"

    def __init__(self) -> None:
        self._target: _Target | None = None
        self._client_of: tuple[str, Any] | None = None
        self._held = Held()

    def look(self) -> bool:
        """Look for the run that is active on the calling thread."""
        mlflow = sys.modules.get("mlflow")
        active_run = getattr(mlflow, "active_run", None)  # still missing while another thread imports it
        run = None if active_run is None else active_run()
        if run is None or (self._target is not None and run.info.run_id == self._target.run_id):
            return False
        self._target = _Target(str(mlflow.get_tracking_uri()), str(run.info.run_id))  # type: ignore[union-attr]
        return True

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Log the rows to the run seen last; keep them until there is one."""
        target = self._target
        self._held.add(rows)
        if target is None:
            return
        client, metric = self._client(target.uri), sys.modules["mlflow"].entities.Metric
        metrics = [
            metric(mlflow_key(name), float(value), int(row.time_s * MS_PER_S), row.step)
            for row in self._held.take()
            for name, value in row.metrics.items()
        ]
        for at in range(0, len(metrics), MOST_A_CALL):
            client.log_batch(target.run_id, metrics[at : at + MOST_A_CALL])

    def notes(self) -> list[str]:
        """Return whether there was no run to log to."""
        if len(self._held) and self._target is None:
            return ["mlflow sink: no active run was seen (mlflow.start_run()), so no metrics went to MLflow"]
        return []

    def _client(self, uri: str) -> Any:
        if self._client_of is None or self._client_of[0] != uri:
            self._client_of = uri, sys.modules["mlflow"].MlflowClient(tracking_uri=uri)
        return self._client_of[1]
