"""W&B: metrics join the rows of the program's own run, and no row of the program is lost or doubled.

A committed row of ours would move the run's step, and W&B refuses rows of a program whose explicit step is behind it.
So ours stay uncommitted: the program's next row takes the newest value of each metric along. If the program logs
nothing itself, ours wait until its run ends and are then committed one by one.

W&B groups its panels by the first part of a name, so all names of ours begin with the same.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from training_profiler.sinks.metrics import STEP, PlainNames
from training_profiler.sinks.sink import HeldRows, MetricRow, Sink, SinkContext
from training_profiler.tables.trackers import WANDB

ARTIFACT_TYPE: Final = "profiling-report"
GROUP: Final = STEP.partition("/")[0]
PATIENCE_S: Final = 2.0  # wait for a row that is being logged, which takes less than a millisecond


class WandbRun(Sink):
    """Logs to the program's run. Never imports wandb first: without such a run there is nothing to log to."""

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
        self._run = run
        self._logs_itself = False
        self._defined.clear()
        if not self._has_found_run:  # registered after W&B's own exit function, so it runs before that
            atexit.register(self._finish)
        self._has_found_run = True
        _call_before_end(run, self._finish)
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
            newest |= {**in_group(row), STEP: row.step}
        self._log(run, newest, commit=False)

    def _log(self, run: Any, metrics: dict[str, float], commit: bool) -> None:
        metrics = {self._names.of(name): value for name, value in metrics.items()}
        for name in metrics.keys() - self._defined:
            # By its exact name, so that no pattern of the program can give it another axis.
            axis = {} if name == STEP else {"step_metric": STEP, "step_sync": False}
            run.define_metric(name, **axis)
            self._defined.add(name)
        run.log(metrics, commit=commit)

    def _finish(self) -> None:
        """Log the held rows: the run is about to end, on the program's own thread."""
        if self._context is not None and self._run is not None and os.getpid() == self._pid:
            context, run = self._context, self._run
            context.guard(context.flush)
            context.guard(self._log_rest)
            context.guard(lambda: _log_report(run, context.report()))

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
                self._log(run, {**in_group(row), STEP: row.step}, commit=True)
        finally:
            self._busy.release()


def in_group(row: MetricRow) -> dict[str, float]:
    """Return the metrics of a row with names in one group: ``profile/train/...`` is ``profiling/train/...``."""
    return {f"{GROUP}/{name.partition('/')[2]}": value for name, value in row.metrics.items()}


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


def _call_before_end(run: Any, finish: Callable[[], None]) -> None:
    module = sys.modules.get("wandb.sdk.wandb_run")  # private names may be missing; then atexit alone has to do
    hooks = getattr(run, "_teardown_hooks", None)
    if isinstance(hooks, list) and hasattr(module, "TeardownHook") and hasattr(module, "TeardownStage"):
        hooks.append(module.TeardownHook(finish, module.TeardownStage.EARLY))  # type: ignore[union-attr]
