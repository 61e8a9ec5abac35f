"""A profiler and a callback for Lightning's ``Trainer``, of ``lightning`` or of ``pytorch_lightning``."""

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

from training_profiler.base.framework_frames import PROGRESS, callback_named
from training_profiler.base.sections import CHECKPOINTING, OPTIMIZER_STEP
from training_profiler.integrations.trainer_run import TrainerRun

if TYPE_CHECKING:
    from training_profiler.sinks.sink import MetricRow

# The same classes twice, and a Trainer takes those of its own package, which the program has imported.
HAS_NEW_NAME: Final = "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules

if TYPE_CHECKING or (HAS_NEW_NAME and importlib.util.find_spec("lightning") is not None):
    from lightning.pytorch import Callback, LightningDataModule, LightningModule
    from lightning.pytorch.profilers import Profiler
else:
    from pytorch_lightning import Callback, LightningDataModule, LightningModule
    from pytorch_lightning.profilers import Profiler

PACKAGE: Final = Profiler.__module__.partition(".")[0]
STEP_END: Final = "on_train_batch_end"  # the first hook after a step
LAST_HOOK: Final = "on_train_end"  # the loggers are closed soon after it
MODULE: Final = "[LightningModule]"
STRATEGY, LOSS = "[Strategy]", ".training_step"
PROGRESS_BARS: Final = ("TQDMProgressBar", "RichProgressBar", "ProgressBar")
_BASES: Final = {base.__name__: base for base in (Callback, LightningModule, LightningDataModule)}
_PLAIN_ACTIONS: Final = {
    "save_checkpoint": CHECKPOINTING,
    "run_training_epoch": "",
    "run_training_batch": "",
    OPTIMIZER_STEP: "",  # of manual optimization
}


class TrainingProfiler(Profiler):  # type: ignore[misc]
    """Profiles what the ``Trainer`` does: ``Trainer(profiler=TrainingProfiler())``.

    Hooks become sections by the names of a trainer's phases: ``callback on_train_batch_end``, ``progress bar``,
    ``checkpointing``. So do the user's own actions, such as ``self.trainer.profiler.profile("augmentation")``.

    Args:
        dirpath: with ``filename``, where the report is written too; the logger's folder by default.
        filename: the begin of that file's name.
        log_metrics: whether the loggers of the ``Trainer`` get the metrics.
        settings: arguments of ``start_training_profiling``.

    Raises:
        TypeError: there is no such setting.
        SettingsError, MissingExtraError: a setting cannot be used.
    """

    def __init__(
        self, dirpath: Any = None, filename: str | None = None, log_metrics: bool = True, **settings: Any
    ) -> None:
        super().__init__(dirpath=dirpath, filename=filename)
        self._run = TrainerRun(PACKAGE, settings, log_metrics)
        self._names: dict[str, str] = {}  # action -> its section; "" for none
        self._losses: set[str] = set()  # actions that compute the loss, in the closure of an update
        self._after: set[str] = set()  # actions after which rows are logged

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begin the run of a ``fit``, ``validate``, ``test`` or ``predict``."""
        super().setup(stage, local_rank, log_dir)
        self._forget_names()  # another Trainer has other callbacks
        self._run.begin()

    def start(self, action_name: str) -> None:
        """Begin the section of an action, if it has one."""
        name = self._names.get(action_name)
        if name or (name is None and (name := self._named(action_name))):
            self._run.section(name).__enter__()
        if action_name in self._losses:
            self._run.loss_begins()

    def stop(self, action_name: str) -> None:
        """End the section of an action; after the last hook of a step, log."""
        name = self._names.get(action_name)
        if name:
            self._run.section(name).__exit__(None, None, None)
        if action_name in self._after:
            is_last = action_name.endswith(LAST_HOOK)
            self._run.guarded("metrics", lambda: _log(self._run, self._trainer(), is_last))

    def _named(self, action_name: str) -> str:
        """Return and keep the name of an action's section; "" without one."""
        if not self._run.is_on:
            return ""
        self._names[action_name] = ""
        self._run.guarded("phases", lambda: self._add_name(action_name))
        return self._names[action_name]

    def _add_name(self, action_name: str) -> None:
        self._names[action_name] = _section_name(action_name, self._trainer())
        # The module's own hook is called after those of the callbacks, also if it does nothing.
        if action_name.startswith(MODULE) and action_name.endswith((STEP_END, LAST_HOOK)):
            self._after.add(action_name)
        if action_name.startswith(STRATEGY) and action_name.endswith(LOSS):
            self._losses.add(action_name)

    def _forget_names(self) -> None:
        self._names.clear()
        self._losses.clear()
        self._after.clear()

    def _trainer(self) -> Any:
        module = getattr(self, "_lightning_module", None)  # a weak reference, which the Trainer sets
        return None if module is None else module.trainer

    def describe(self) -> None:
        """End the run, which prints its report, and write the report to a file if the profiler was given its name."""
        self._forget_names()
        self._run.end()
        if self.filename and self.dirpath:
            super().describe()

    def summary(self) -> str:
        """Return the report of the run so far, or of the last run."""
        return self._run.report()


class TrainingProfilerCallback(Callback):  # type: ignore[misc]
    """Profiles what the ``Trainer`` does, beside another profiler: ``Trainer(callbacks=[TrainingProfilerCallback()])``.

    Args:
        log_metrics: whether the loggers of the ``Trainer`` get the metrics.
        settings: arguments of ``start_training_profiling``.

    Raises:
        TypeError: there is no such setting.
        SettingsError, MissingExtraError: a setting cannot be used.
    """

    def __init__(self, log_metrics: bool = True, **settings: Any) -> None:
        self._run = TrainerRun(PACKAGE, settings, log_metrics)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the run of a ``fit``, ``validate``, ``test`` or ``predict``."""
        self._run.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Log the metrics of a report since the last step."""
        self._run.guarded("metrics", lambda: _log(self._run, trainer))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the last metrics."""
        self._run.guarded("metrics", lambda: _log(self._run, trainer, is_last=True))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run."""
        self._run.end()


def _log(run: TrainerRun, trainer: Any, is_last: bool = False) -> None:
    run.log(lambda row: _log_row(row, trainer), is_last)


def _log_row(row: "MetricRow", trainer: Any) -> None:
    step = trainer.fit_loop.epoch_loop._batches_that_stepped  # the axis of Lightning's own LearningRateMonitor
    for logger in trainer.loggers:
        logger.log_metrics(dict(row.metrics), step=step)


def _section_name(action_name: str, trainer: Any) -> str:
    """Return the section of an action; "" for one that does nothing, or that is covered by the sections inside it."""
    if not action_name.startswith("["):
        return _PLAIN_ACTIONS.get(action_name, action_name)  # a name of the user's: profiler.profile("augmentation")
    kind, _, rest = action_name[1:].partition("]")
    owner, _, hook = rest.rpartition(".")
    if kind not in _BASES or not any(_is_overridden(hook, one, _BASES[kind]) for one in _owners(kind, owner, trainer)):
        return ""
    return PROGRESS if owner.startswith(PROGRESS_BARS) else callback_named(hook)


def _owners(kind: str, owner: str, trainer: Any) -> list[Any]:
    if trainer is None:
        return []
    if kind == Callback.__name__:
        return [callback for callback in trainer.callbacks if callback.state_key == owner]
    return [trainer.lightning_module if kind == LightningModule.__name__ else trainer.datamodule]


def _is_overridden(hook: str, owner: Any, base: type) -> bool:
    function = getattr(owner, hook, None)
    return getattr(function, "__func__", function) is not getattr(base, hook, None)
