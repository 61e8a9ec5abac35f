"""The public functions while profiling is on."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import training_profiler.safety.numpy_threads  # noqa: F401, before anything imports numpy

# isort: split
from training_profiler.base.errors import ProfilerWarning
from training_profiler.base.sections import VALIDATION_EPOCH
from training_profiler.base.text import PREFIX
from training_profiler.model.snapshot import Snapshot
from training_profiler.recording.data_loader import FetchTimer, profiled
from training_profiler.runtime.process import Process, usable_settings
from training_profiler.runtime.shutdown import is_being_spawned, is_worker
from training_profiler.settings.settings import unknown_variables

if TYPE_CHECKING:
    from training_profiler.sampling.line_sampler import ImportOfTorch
    from training_profiler.sinks.sink import MetricRow

T = TypeVar("T")
MOST_NOTES: Final = 20


def _process_of_this_interpreter() -> Process:
    """Return the one ``Process``, also where the program removed modules of ours and imports them again."""
    kept: Process | None = getattr(sys, "_training_profiler_process", None)
    if kept is not None:
        return kept
    process = Process()
    setattr(sys, "_training_profiler_process", process)  # noqa: B010 - a module has no such attribute to a type checker
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=process.before_fork,
            after_in_parent=process.after_fork_in_parent,
            after_in_child=process.after_fork_in_child,
        )
    if not is_worker():
        process.await_torch()
    return process


_process = _process_of_this_interpreter()
profile_section = _process.recorder.section
for _sentence in unknown_variables():
    warnings.warn_explicit(_sentence, ProfilerWarning, "environment", 0)  # no line of ours is its place


def start_training_profiling(
    log_every: int | None = None,
    *,
    format: str | None = None,
    dir: str | None = None,
    stream: str | None = None,
    warmup: int | str | None = None,
    flush_s: float | None = None,
    max_names: int | None = None,
    sample_hz: int | None = None,
    timing: str | None = None,
    monitor_s: float | None = None,
    flops: bool | None = None,
    sinks: str | Sequence[str] | None = None,
    sinks_optional: bool | None = None,
    log_scalars_every_n_steps: int | None = None,
    thresholds: Mapping[str, float] | None = None,
    checklist: bool | None = None,
    html: bool | None = None,
    history: bool | None = None,
    rank_wait_s: float | None = None,
    capture: str | None = None,
    prometheus_port: int | str | None = None,
    name: str | None = None,
    gpu_hour_price: str | float | None = None,
    for_: str | None = None,
    stop_when_sure: bool | None = None,
) -> None:
    """Start a run, or change the settings of the running one; a missing argument is read from its variable.

    Args:
        log_every: steps between periodic reports; 50 by default, 0 for the final summary alone.
        format: ``"table"`` (default) or ``"lines"``, one greppable line a section.
        dir: folder in which the run makes a folder of its own; ``"runs"`` by default.
        stream: ``"stdout"`` (default) or ``"stderr"``.
        warmup: first steps to leave out of averages; ``"auto"`` (default) detects them by their duration.
        flush_s: longest time in s between two writes to the journal; 10 by default.
        max_names: section names that get a row of their own; 500 by default.
        sample_hz: samples a second of the running line of code; 50 by default, 0 for none.
        timing: clock of sections on an accelerator: ``"auto"`` (default), ``"host"``, ``"events"`` or ``"sync"``.
        monitor_s: time in s between two samples of the machine; 1 by default, 0 for none.
        flops: whether the FLOPs of the model are counted, once, in an early step; True by default.
        sinks: trackers that get the metrics, such as ``"tensorboard,jsonl"``; none by default.
        sinks_optional: whether a tracker whose package is missing is left out; it is an error by default.
        log_scalars_every_n_steps: steps between two rows of a loader's metrics; as often as trackers can by default.
        thresholds: thresholds of rules by their code, where they should differ, such as ``{"data-transfer": 0.2}``.
        checklist: whether the final summary ends with the quick checklist; False by default.
        html: whether the run folder gets its page at the end; False by default.
        history: whether the run is compared with earlier ones of its program at its end; True by default.
        rank_wait_s: longest time in s that a rank waits for the others at the end; 2 by default, 0 for none.
        capture: when deep capture records, such as ``"steps=100-103"``; on request only by default.
        prometheus_port: port, or ``"address:port"``, at which Prometheus finds the metrics; none by default.
        name: the run's name, at the end of its folder's name; none by default.
        gpu_hour_price: price of one GPU for an hour, such as ``"2.50 EUR"``, for costs; none by default.
        for_: when the training is ended, such as ``"200steps"`` or ``"10min"``; never by default.
        stop_when_sure: whether it is ended once its first finding is sure; False by default.

    Raises SettingsError or MissingExtraError: a value cannot be used, or a tracker's package is not installed.
    """
    _start(locals())


def _start(arguments: Mapping[str, Any]) -> None:
    settings = usable_settings(arguments)  # which leaves out None
    if _may_start():
        _process.start(settings)


def _may_start() -> bool:
    if is_being_spawned() or (is_worker() and multiprocessing.current_process().daemon):
        return False  # a daemonic child serves a DataLoader or a pool; a child that trains is not daemonic
    # Forked by os.fork: the run belongs to the parent.
    return not (_process.is_silent and multiprocessing.parent_process() is None)


def stop_training_profiling() -> None:
    """End the run: print the final summary and write it to the run folder. Does nothing without a run."""
    _process.stop()


def profile_step() -> None:
    """End a training step. Call it once an optimizer update, at the end of the loop's body."""
    session = _process.running()
    if session is not None and _process.phase == "train":
        session.instrumentation.use_manual_steps()
        session.step()


class Context:
    """Marks an epoch or a phase: what ``function(argument)`` returns.

    ``end`` is called with what ``begin`` has returned, and with whether the end is without an exception.
    """

    __slots__ = ("__weakref__", "_begin", "_begun", "_end", "_made_by")
    __module__ = "training_profiler"

    def __init__(
        self,
        function: Callable[[Any], Context],
        argument: Any,
        begin: Callable[[], Any] = lambda: None,
        end: Callable[[Any, bool], None] = lambda begun, is_complete: None,
    ) -> None:
        self._made_by = function, (argument,)
        self._begin, self._end = begin, end
        self._begun: list[Any] = []  # it may be entered again inside of itself

    def __enter__(self) -> None:
        self._begun.append(self._begin())

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._begun:
            self._end(self._begun.pop(), kind is None)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_by


def profile_epoch(n: int) -> Any:
    """Return a context around one epoch; at its end the epoch's summary is printed.

    Args:
        n: number of the epoch, as the summary shows it.
    """
    try:
        number = int(n)
    except (TypeError, ValueError, OverflowError):
        _note(f"profile_epoch({n!r}) has no number, so this epoch has no summary; example: profile_epoch(1)")
        return Context(profile_epoch, n)
    return Context(profile_epoch, n, lambda: _begin_epoch(number), _end_epoch)


def _begin_epoch(number: int) -> None:
    session = _process.running()
    if session is not None:
        session.begin_epoch(number)


def _end_epoch(begun: None, is_complete: bool) -> None:
    session = _process.running()
    if session is not None:
        session.end_epoch(is_complete)


def profile_phase(phase: str) -> Any:
    """Return a context around one phase of the loop.

    ``"validation"`` is recorded as the section ``validation_epoch``. Its time belongs to no training step, and
    ``profile_step`` inside of it is ignored. ``"train"`` is the default phase.

    Args:
        phase: ``"train"`` or ``"validation"``.
    """
    if phase == "validation":
        return Context(profile_phase, phase, _begin_validation, _end_validation)
    if phase != "train":
        _note(f"profile_phase({phase!r}) is neither 'train' nor 'validation' and was ignored")
    return Context(profile_phase, phase)


def _begin_validation() -> str:
    phase_before = _process.enter_phase("validation")
    profile_section(VALIDATION_EPOCH).__enter__()
    return phase_before


def _end_validation(phase_before: str, is_complete: bool) -> None:
    _process.enter_phase(phase_before)
    profile_section(VALIDATION_EPOCH).__exit__(None, None, None)


def _note(sentence: str) -> None:
    session = _process.running()
    health = None if session is None else session.run.profiler_health
    if health is not None and sentence not in health.notes and len(health.notes) < MOST_NOTES:
        health.notes.append(sentence)


def profile_dataloader(loader: Iterable[T], name: str | None = None, proportion: float | None = None) -> Iterable[T]:
    """Return a loader that gives the same batches and records each wait for a batch as ``data_loading``.

    All other attributes are the loader's own.

    Args:
        loader: anything that can be iterated, such as a ``torch.utils.data.DataLoader``.
        name: its name in reports; ``"0"``, ``"1"``, ... by default.
        proportion: the share of the training's batches that are to come from it, such as 0.25; reports then say
            whether they do.
    """
    session = _process.running()
    if session is None:
        return loader
    counts = session.run.loaders.counts_of(loader, name)
    if proportion is not None:
        counts.requested_share = _share(proportion)
    again = (profile_dataloader, name, proportion)
    timer = FetchTimer(counts, _process.recorder, lambda: _process.phase == "train", again)
    return profiled(loader, timer)  # type: ignore[no-any-return]


def _share(proportion: object) -> float | None:
    """Return the given share; None with a note if it is invalid."""
    try:
        share = float(proportion)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        share = -1.0
    if 0 <= share <= 1:
        return share
    _note(
        f"profile_dataloader(proportion={proportion!r}) is not a share of the batches between 0 and 1 and was ignored; "
        f"example: proportion=0.25"
    )
    return None


def start_instrumentation(begin_ns: int, imported: ImportOfTorch | None = None, is_requested: bool = True) -> None:
    """Instrument the training of this process. Called once torch is imported.

    Args:
        begin_ns: when the process began, by the recorder's clock.
        imported: when the import of torch began, and the stack from which it was imported.
        is_requested: whether the user asked for this program; else nothing is written before it trains.
    """
    _process.instrument(sys.modules["torch"], begin_ns, imported, is_requested)


def check_settings(arguments: Mapping[str, Any]) -> None:
    """Check arguments of ``start_training_profiling`` without starting anything.

    Raises:
        TypeError: there is no such argument.
        SettingsError, MissingExtraError: a value cannot be used, or a tracker's package is not installed.
    """
    try:
        inspect.signature(start_training_profiling).bind(**arguments)
    except TypeError as error:
        raise TypeError(f"start_training_profiling() {error}") from None
    usable_settings(arguments)


def start_for_trainer(arguments: Mapping[str, Any]) -> bool:
    """Begin a run that instruments the training of a framework's trainer; return whether one was begun.

    Else the run belongs to another: it is under way, or begins by itself with the training. It then gets the settings
    among the ``arguments``.
    """
    if not _may_start():
        return False
    has_begun = _process.start_for_trainer(usable_settings(arguments), sys.modules["torch"])
    if arguments and not has_begun:
        start_training_profiling(**arguments)
    return has_begun


def stop_for_trainer() -> None:
    """End the run that ``start_for_trainer`` began, unless it has ended."""
    _process.stop_for_trainer()


def is_trainer_profiled() -> bool:
    """Return whether a run is under way, or begins by itself with the training."""
    return _process.is_profiled


def loss_begins() -> None:
    """Note that the trainer begins to compute the loss: inside an update, that time is not the optimizer's."""
    if _process.instrumentation is not None:
        _process.instrumentation.loss_begins()


def count_tokens(tokens: int) -> None:
    """Count tokens that the training on this rank has read since the last call."""
    session = _process.session
    if session is not None:
        session.run.progress.count_tokens(tokens)


def pop_metrics(is_last: bool = False) -> list[MetricRow]:
    """Return the rows of metrics since the last call, which a framework's loggers get; the first call returns none.

    The last one adds what was measured since the last report.
    """
    session = _process.session
    return session.pop_rows(is_last) if session is not None else []


def report_text() -> str:
    """Return the final summary as it would be now, or as it was at the end of the run; "" without a run."""
    session = _process.session
    return session.report_text() if session is not None else ""


def load_in_notebook() -> None:
    """Instrument the trainings of a notebook; each cell that trains is followed by the summary so far."""
    begin_ns = _process.recorder.clock()
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        print(f"{PREFIX}torch cannot be imported, so only your own sections are measured")  # noqa: T201
        return
    _process.instrument(torch, begin_ns)
    print(f"{PREFIX}on; the summary follows each cell that trains")  # noqa: T201


def why_nothing() -> str | None:
    """Return why this process has nothing to report although it imported torch; None if it has a report."""
    session = _process.session
    if session is not None and session.run.has_reported:
        return None
    if _process.instrumentation is None or _process.instrumentation.awaits_torch:
        return "torch was imported, but could not be instrumented"
    return _process.instrumentation.why_nothing()


def has_trained() -> bool:
    """Return whether the instrumented training of this process computed gradients or updated parameters."""
    return _process.instrumentation is not None and _process.instrumentation.has_trained


def is_profiling_enabled() -> bool:
    """Return whether this process records. False after a stop and in workers."""
    if _process.session is not None:
        return _process.session.is_running
    return not (_process.is_silent or _process.was_stopped or is_worker())


def snapshot() -> Snapshot:
    """Return the figures of the run so far, in seconds; of nothing where there is no run."""
    session = _process.session
    return session.snapshot() if session is not None else Snapshot()
