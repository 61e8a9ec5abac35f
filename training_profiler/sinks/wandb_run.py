"""W&B: metrics go along with the rows of the program's own run, such that none of those is lost or doubled.

A row of ours that were committed would move the run's step, and a program that logs with explicit steps would lose
the rows it is then behind with. So ours stay uncommitted: the program's next row takes the newest of each metric along.
Where the program logs nothing itself, ours wait until its run ends and are then committed one by one.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from training_profiler.sinks.metrics import STEP
from training_profiler.sinks.sink import Held, MetricRow, Sink

PATIENCE_S: Final = 2.0  # for a row that is just being logged, which takes it less than a millisecond


class WandbRun(Sink):
    """Never imports wandb first: without a run of the program's own there is nothing to log to.

    Args:
        guard: does work such that it cannot hurt the program.
        at_end: called where the program's run is about to end; returns when the last rows were written.
    """

    name = "wandb"

    def __init__(self, guard: Callable[[Callable[[], None]], None], at_end: Callable[[], None]) -> None:
        self._guard = guard
        self._at_end = at_end
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self._run: Any = None
        self._ended: Any = None  # W&B itself still shows it when the interpreter ends
        self._has_seen_one = False
        self._logs_itself = False
        self._defined: set[str] = set()
        self._held = Held()
        self._late = 0

    def look(self) -> bool:
        """Look for the run that the program has under way."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None or run is self._run or run is self._ended or getattr(run, "disabled", False):
            return False
        self._run = run
        self._logs_itself = False
        self._defined.clear()
        if not self._has_seen_one:  # after W&B registered its own end, so before that comes
            atexit.register(self._finish)
        self._has_seen_one = True
        _call_before_end(run, self._finish)
        return True

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Send the rows along with what the program logs next; keep them while there is no run, or it logs nothing."""
        with self._busy:
            run = self._run
            if run is None and self._has_seen_one:
                self._late += len(rows)
                return
            self._held.add(rows)
            if run is not None and len(self._held) and self._has_logged(run):
                self._log_newest(run)

    def abandon(self) -> None:
        """Forget the run: in a forked child it is the parent's."""
        self._run = None
        atexit.unregister(self._finish)

    def notes(self) -> list[str]:
        """Return what did not reach a run."""
        if len(self._held) and not self._has_seen_one:
            return ["wandb sink: no run was seen (wandb.init()), so no metrics went to W&B"]
        return [f"wandb sink: {self._held.thinned} rows thinned out while they waited"] if self._held.thinned else []

    def _has_logged(self, run: Any) -> bool:
        """Return whether the program logs rows of its own; asks W&B's process until it does."""
        self._logs_itself = self._logs_itself or run.step > run.starting_step
        return self._logs_itself

    def _log_newest(self, run: Any) -> None:
        newest: dict[str, float] = {}
        for row in self._held.take():
            newest |= {**row.metrics, STEP: row.step}
        self._log(run, newest, commit=False)

    def _log(self, run: Any, metrics: dict[str, float], commit: bool) -> None:
        for name in metrics.keys() - self._defined:
            # Exactly by name, and before a pattern of the program's could claim it for another axis.
            axis = {} if name == STEP else {"step_metric": STEP, "step_sync": False}
            run.define_metric(name, **axis)
            self._defined.add(name)
        run.log(metrics, commit=commit)

    def _finish(self) -> None:
        """Log what waits: the run is about to end, in the program's own thread."""
        if self._run is not None and os.getpid() == self._pid:
            self._guard(self._at_end)
            self._guard(self._log_rest)

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
            for row in self._held.take():
                self._log(run, {**row.metrics, STEP: row.step}, commit=True)
        finally:
            self._busy.release()


def _call_before_end(run: Any, finish: Callable[[], None]) -> None:
    module = sys.modules.get("wandb.sdk.wandb_run")  # private: any of this may be gone, then atexit has to do
    hooks = getattr(run, "_teardown_hooks", None)
    if isinstance(hooks, list) and hasattr(module, "TeardownHook") and hasattr(module, "TeardownStage"):
        hooks.append(module.TeardownHook(finish, module.TeardownStage.EARLY))  # type: ignore[union-attr]
