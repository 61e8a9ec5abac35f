"""The run in which a framework's trainer is profiled: who begins it, who ends it, and what the trainer gets of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from training_profiler.base.switch import is_switched_off
from training_profiler.integrations.phases import Phases
from training_profiler.safety.fault_guard import FaultGuard

if TYPE_CHECKING:
    from training_profiler.sinks.sink import MetricRow
import sys
import threading
from types import CodeType, FrameType
from typing import NamedTuple


class _Frame(NamedTuple):
    id: int
    code: CodeType
    instruction: int


class TrainerCall:
    """The call of a trainer of ``package`` that the calling thread is in.

    No frame is kept, because its variables would live longer: the model, a batch.
    """

    def __init__(self, package: str) -> None:
        self._thread = threading.get_ident()
        self._inside: list[_Frame] = []  # frames of the trainer and of what it calls, innermost first
        self._outside: list[_Frame] = []  # those that wait for the trainer, from its own
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self._outside.append(_Frame(id(frame), frame.f_code, frame.f_lasti))
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
                self._inside += self._outside
                self._outside = []
            frame = frame.f_back

    def is_running(self, now: TrainerCall) -> bool:
        """Return whether this call has not returned, seen from another one, which may be inside it."""
        if now._thread != self._thread:
            return True
        stack = now._inside + now._outside
        outside = stack[len(stack) - len(self._outside) :]
        inside = stack[: len(stack) - len(self._outside)]
        if outside != self._outside or not inside or not self._inside or inside[-1].id != self._inside[-1].id:
            return False
        # The same stack again is another call from the same line: its frames may have the ids of the old ones.
        return [frame[1:] for frame in inside] != [frame[1:] for frame in self._inside]


_owner: TrainerRun | None = None  # began the run under way


class TrainerRun:
    """One integration's side of a run.

    A trainer's training is a run of its own, unless the process is profiled already: under ``training-profiler run``,
    after ``start_training_profiling`` or in another trainer's training. Where the variable says off, nothing happens.
    A copy, or one from a pickle, knows no run.

    Args:
        package: of the framework.
        settings: arguments of ``start_training_profiling``.
        logs_metrics: whether ``log`` does anything.

    Raises:
        TypeError: there is no such setting.
        SettingsError, MissingExtraError: a value cannot be used, or a tracker's package is not installed.
    """

    def __init__(self, package: str, settings: Mapping[str, Any], logs_metrics: bool = True) -> None:
        self._package, self._settings, self._logs_metrics = package, dict(settings), logs_metrics
        self._guard = FaultGuard()
        self._api: ModuleType | None = None
        self._calls: list[TrainerCall] = []  # of this integration's trainers, in each other
        self._is_on = self._takes_part = False
        self._tokens = 0  # of the trainer, when they were counted last
        self._text = ""
        self._phases = Phases(package, self.section, lambda work: self.guarded("phases", work))
        if not is_switched_off():
            self._api = _imported_api()
            self._api.check_settings(self._settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainerRun, (self._package, self._settings, self._logs_metrics)

    @property
    def is_on(self) -> bool:
        """Whether a training of this integration is under way and profiled."""
        return self._is_on

    def begin(self) -> None:
        """Begin the run of a training, or take part in the run under way."""
        self._with_api(self._begin)

    def _begin(self, api: ModuleType) -> None:
        global _owner
        call = TrainerCall(self._package)
        if _owner is not None and not _owner._is_inside(call):  # it raised, and the program went on
            _owner._end_run(api)
        self._is_inside(call)
        self._calls.append(call)
        if len(self._calls) > 1:
            return
        if api.start_for_trainer(self._settings):
            _owner = self
        self._is_on, self._takes_part = api.is_trainer_profiled(), _owner is not self
        if self._logs_metrics:
            api.pop_metrics()  # those of another training

    def _is_inside(self, now: TrainerCall) -> bool:
        """Return whether a training of this integration is under way, after dropping those that have raised."""
        self._calls = [call for call in self._calls if call.is_running(now)]
        return bool(self._calls)

    def end(self) -> None:
        """End the training; with the outermost one ends the run that it began, whose final summary is printed."""
        self._with_api(self._end)

    def _end(self, api: ModuleType) -> None:
        self._is_inside(TrainerCall(self._package))
        del self._calls[-1:]
        if not self._calls:
            self._end_run(api)

    def _end_run(self, api: ModuleType) -> None:
        global _owner
        self._calls, self._is_on = [], False
        self._phases.undo()
        if _owner is self:
            _owner = None
            api.stop_for_trainer()
            self._text = api.report_text()

    def show_phases(self, show: Callable[[Phases], None]) -> None:
        """Call ``show``, which names the phases of the framework, if a training is under way and profiled."""
        if self._is_on:
            self.guarded("phases", lambda: show(self._phases))

    def mark_step(self) -> None:
        """End a step. From the first call on, nothing else ends one."""
        if self._is_on:
            self._with_api(lambda api: api.profile_step())

    def loss_begins(self) -> None:
        """Note that the trainer begins to compute the loss, perhaps in the closure of an update."""
        if self._is_on:
            self._with_api(lambda api: api.loss_begins())

    def count_tokens(self, seen: int) -> None:
        """Count the tokens that the trainer has read on this rank: ``seen`` since its own begin."""
        tokens, self._tokens = seen - self._tokens, seen
        if self._is_on and tokens > 0:
            self._with_api(lambda api: api.count_tokens(tokens))

    def log(self, write: Callable[[MetricRow], object], is_last: bool = False) -> None:
        """Call ``write`` with each row of metrics since the last call; the last one adds what has no row yet."""

        def work(api: ModuleType) -> None:
            for row in api.pop_metrics(is_last):
                write(row)

        if self._is_on and self._logs_metrics:
            self._with_api(work, "metrics")  # a logger that fails ends nothing else

    def section(self, name: str) -> Any:
        """Return the section ``name``, as ``profile_section`` does while profiling is on."""
        return self._api.profile_section(name)  # type: ignore[union-attr] # only where a run has begun

    def report(self) -> str:
        """Return the report of the run so far, or of the last run; "" before the first."""
        if self._is_on or self._takes_part:  # a run of another goes on after the training
            self._with_api(self._read_report)
        return self._text

    def _read_report(self, api: ModuleType) -> None:
        self._text = api.report_text()

    def guarded(self, part: str, work: Callable[[], None]) -> None:
        """Do ``work``, unless this part failed before; its errors do not reach the training."""
        self._guard.run(f"{self._package}: {part}", work)

    def _with_api(self, work: Callable[[ModuleType], None], part: str = "run") -> None:
        api = self._api
        if api is not None:
            self.guarded(part, lambda: work(api))


def _imported_api() -> ModuleType:
    # Not at the top: with profiling off nothing of it is loaded.
    from training_profiler import api

    return api
