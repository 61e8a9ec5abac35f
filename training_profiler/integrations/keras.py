"""A callback for Keras on the torch backend."""

import time
from typing import Any, Final

import keras
from keras.callbacks import Callback, CallbackList

from training_profiler.base.errors import SettingsError
from training_profiler.base.sections import CHECKPOINTING
from training_profiler.base.switch import is_switched_off
from training_profiler.integrations.trainer_run import Phases, TrainerRun

# Those of the whole step: the progress bar prints all logs of an epoch in one line.
LOGGED: Final = tuple(
    f"profiling/{name}" for name in ("batch_time_avg", "batches_per_second", "steps_per_second", "samples_per_second")
)
ROW_EVERY_S: Final = 1.0
HOOKS: Final = (
    *(f"on_{kind}_{moment}" for kind in ("epoch", "train", "test", "predict") for moment in ("begin", "end")),
    *(f"on_{kind}_batch_{moment}" for kind in ("train", "test", "predict") for moment in ("begin", "end")),
)
RUN_ENDS_IN: Final = ("on_train_end", "on_test_end", "on_predict_end")
# Keras calls a hook of the older name in the newer one, which the callback then does not have.
OLDER_HOOKS: Final = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}


class TrainingProfilerCallback(Callback):  # type: ignore[misc]
    """Profiles ``model.fit()``, and ``evaluate`` and ``predict`` where it is given to them.

    Callbacks are sections by their hook: ``callback on_epoch_end``; Keras' own are ``logging`` or ``progress bar``, and
    ``checkpointing`` is where the model is saved.

    Args:
        log_metrics: whether the logs of an epoch get the rates and the time of a step; callbacks that log come after.
        settings: arguments of ``start_training_profiling``.

    Raises:
        TypeError: there is no such setting.
        SettingsError, MissingExtraError: a setting cannot be used, or Keras runs on another backend.
    """

    def __init__(self, log_metrics: bool = True, **settings: Any) -> None:
        super().__init__()
        if keras.config.backend() != "torch" and not is_switched_off():
            raise SettingsError(
                f"the profiler measures Keras on torch, and its backend is {keras.config.backend()!r}; set it before "
                f"keras is imported, e.g. in the shell: KERAS_BACKEND=torch python train.py"
            )
        self._run = TrainerRun("keras", settings, log_metrics)
        self._batches = 0  # of this ``fit``
        self._is_in_batch = False
        self._newest: dict[str, float] = {}
        self._next_row_s = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin the run of a ``fit``."""
        self._newest, self._batches, self._is_in_batch = {}, 0, False
        self._run.begin(_show_phases)

    # Not at its end: a callback with that method makes Keras call those of all others on the training thread.
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """End the step before this batch."""
        self._end_batch()
        self._is_in_batch = True

    def _end_batch(self) -> None:
        if self._is_in_batch:
            self._is_in_batch = False
            self._batches += 1
            # No optimizer of torch shows the update.
            if self._batches % (getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1) == 0:
                self._run.mark_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the newest metrics to the logs of the epoch."""
        self._end_batch()
        if logs is not None:
            now_s = time.monotonic()
            is_due = now_s >= self._next_row_s  # a row that no report has made costs a millisecond
            self._next_row_s = now_s + ROW_EVERY_S if is_due else self._next_row_s
            self._run.log(lambda row: self._newest.update(row.metrics), is_last=is_due)
            logs.update({name: self._newest[name] for name in LOGGED if name in self._newest})

    def on_train_end(self, logs: Any = None) -> None:
        """End the run of a ``fit``, an ``evaluate`` or a ``predict``."""
        self._run.end()

    on_test_end = on_predict_end = on_train_end

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin the run of an ``evaluate``, unless it is the validation of a ``fit``."""
        self._end_batch()
        self._run.begin(_show_phases)

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begin the run of a ``predict``, unless a callback of a ``fit`` predicts."""
        self._run.begin(_show_phases)


def _show_phases(phases: Phases) -> None:
    for hook in HOOKS:
        names = (hook, OLDER_HOOKS[hook]) if hook in OLDER_HOOKS else (hook,)
        phases.show_hooks(CallbackList, hook, lambda owner, *_, names=names: (owner.callbacks, names), RUN_ENDS_IN)
    for method in ("save", "save_weights"):
        phases.show_calls(keras.Model, method, CHECKPOINTING)
