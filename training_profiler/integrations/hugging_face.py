"""A callback for the ``Trainer`` of Hugging Face, and for those derived from it, such as TRL's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import CallbackHandler

from training_profiler.base.sections import CHECKPOINTING, LOGGING
from training_profiler.integrations.trainer_run import Phases, TrainerRun

if TYPE_CHECKING:
    from training_profiler.sinks.sink import MetricRow

REPORTERS: Final = "transformers.integrations."  # modules of the callbacks that ``report_to`` adds
CALL_EVENT: Final = CallbackHandler.call_event.__code__
LAST_LOG: Final = "train_runtime"  # in what the trainer logs after its last step, while the reporters still listen


class TrainingProfilerCallback(TrainerCallback):  # type: ignore[misc]
    """Profiles ``trainer.train()``, and sends the metrics to the trackers of ``report_to``.

    The trainer's phases are sections: ``callback on_step_end``, ``logging``, ``checkpointing``, ``progress bar``.

    Args:
        log_metrics: whether these trackers get the metrics.
        settings: arguments of ``start_training_profiling``.

    Raises:
        TypeError: there is no such setting.
        SettingsError, MissingExtraError: a setting cannot be used.
    """

    def __init__(self, log_metrics: bool = True, **settings: Any) -> None:
        self._run = TrainerRun("transformers", settings, log_metrics)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the run."""
        self._run.count_tokens(_tokens_seen(args, state))  # of a training that is resumed
        self._run.begin(_show_phases)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the metrics of a report since the last step."""
        self._run.count_tokens(_tokens_seen(args, state))
        self._log(args, state, control, kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Log the last metrics with the trainer's own."""
        if logs is not None and LAST_LOG in logs:
            self._log(args, state, control, kwargs, is_last=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run."""
        self._run.end()

    def _log(self, args: Any, state: Any, control: Any, kwargs: dict[str, Any], is_last: bool = False) -> None:
        def write(row: MetricRow) -> None:
            # Not by ``control.should_log``: the user's losses would be logged more often.
            for reporter in _reporters():
                reporter.on_log(args, state, control, logs=dict(row.metrics), **kwargs)

        self._run.log(write, is_last)


def _show_phases(phases: Phases) -> None:
    phases.show_hooks(
        CallbackHandler, "call_event", lambda handler, event, *_: (handler.callbacks, (event,)), {"on_train_end"}
    )
    phases.show_calls(Trainer, "log", LOGGING)
    phases.show_calls(Trainer, "_save_checkpoint", CHECKPOINTING)


def _tokens_seen(args: Any, state: Any) -> int:
    # 0 without ``include_num_input_tokens_seen``. The trainer adds up all ranks; our figures are of one.
    return int(state.num_input_tokens_seen) // int(args.world_size)


def _reporters() -> Iterator[Any]:
    """Return the callbacks of ``report_to``, known to the trainer's handler, which calls us."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not CALL_EVENT:
        frame = frame.f_back  # type: ignore[assignment]
    handler = None if frame is None else frame.f_locals["self"]
    callbacks = [] if handler is None else handler.callbacks
    return (callback for callback in callbacks if type(callback).__module__.startswith(REPORTERS))
