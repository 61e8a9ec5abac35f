"""A handler for Ignite's engines."""

from typing import Any

from ignite.engine import Engine, Events

from training_profiler.integrations.trainer_run import Phases, TrainerRun


class TrainingProfilerHandler:
    """Profiles the runs of an engine: ``TrainingProfilerHandler().attach(trainer)``.

    Handlers are sections by their event: ``handlers EPOCH_COMPLETED``; Ignite's own are ``logging`` or
    ``progress bar``.

    Args:
        log_metrics: whether ``engine.state.metrics`` gets the metrics, which loggers with ``metric_names="all"`` write.
        settings: arguments of ``start_training_profiling``.

    Raises:
        TypeError: there is no such setting.
        SettingsError, MissingExtraError: a setting cannot be used.
    """

    def __init__(self, log_metrics: bool = True, **settings: Any) -> None:
        self._run = TrainerRun("ignite", settings, log_metrics)

    def attach(self, engine: Engine) -> "TrainingProfilerHandler":
        """Profile each ``engine.run()`` from now on, and return the handler. Attach it before handlers that log."""
        # None for EXCEPTION_RAISED: with a handler the engine no longer raises the exception itself.
        engine.add_event_handler(Events.STARTED, self._begin)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.COMPLETED, self._end)
        engine.add_event_handler(Events.TERMINATE, self._terminated)
        return self

    def _begin(self, engine: Engine) -> None:
        self._run.begin(_show_phases)

    def _iteration_completed(self, engine: Engine) -> None:
        self._run.log(lambda row: engine.state.metrics.update(row.metrics))

    def _terminated(self, engine: Engine) -> None:
        if engine.should_terminate == "skip_completed":  # else COMPLETED follows
            self._end(engine)

    def _end(self, engine: Engine) -> None:
        self._run.log(lambda row: engine.state.metrics.update(row.metrics), is_last=True)
        self._run.end()


def _show_phases(phases: Phases) -> None:
    phases.show_hooks(Engine, "_fire_event", _handlers, {Events.COMPLETED.name, Events.TERMINATE.name})


def _handlers(engine: Engine, event: Any, *_: Any) -> tuple[list[Any], tuple[str]]:
    return [handler for handler, *_ in engine._event_handlers[event]], (getattr(event, "name", str(event)),)
