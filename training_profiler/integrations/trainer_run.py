"""The run in which a framework's trainer is profiled: who begins it, who ends it, and what the trainer gets of it.

The sections of the trainer's phases come from methods of its framework that are replaced while a run lasts.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from training_profiler.base.framework_frames import (
    ANY,
    FRAMES,
    HANDLERS,
    PROGRESS,
    SAVING,
    FileRows,
    FrameTable,
    LibraryFrame,
    callback_named,
)
from training_profiler.base.sections import LOGGING
from training_profiler.base.switch import is_switched_off
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import PACKAGE, hide_our_frames
from training_profiler.safety.fault_guard import FaultGuard

if TYPE_CHECKING:
    from training_profiler.sinks.sink import MetricRow

NONE: Final = ""
# Callbacks that frameworks bring. In the samples of lines they are callbacks with the names of their classes.
OWN_CALLBACKS: Final = (
    LibraryFrame("/transformers/trainer_callback.py", ("ProgressCallback.*",), PROGRESS),
    LibraryFrame("/transformers/integrations/integration_utils.py", (ANY,), LOGGING),  # those of ``report_to``
    LibraryFrame("/keras/src/callbacks/progbar_logger.py", ("ProgbarLogger.*",), PROGRESS),
    LibraryFrame("/keras/src/callbacks/", ("CSVLogger.*", "RemoteMonitor.*", "TensorBoard.*"), LOGGING),
    LibraryFrame("/ignite/handlers/", ("OutputHandler.*", "OptimizerParamsHandler.*", "Weights*", "Grads*"), LOGGING),
)
_TABLE: Final = FrameTable(OWN_CALLBACKS + FRAMES)
# Takes the arguments of a method that calls callbacks. Returns the callbacks, and the names of the hook that it calls.
Hook = Callable[..., tuple[Sequence[Any], tuple[str, ...]]]


@dataclass(eq=False)
class Phases:
    """Records calls of a framework's methods as sections, until ``undo``."""

    framework: str  # its package
    section: Callable[[str], Any]  # returns the section of a name
    guarded: Callable[[Callable[[], None]], None]  # does work whose errors do not reach the training

    def __post_init__(self) -> None:
        self._patches = Patches()
        # What calls callbacks -> by hook, the ids of its callbacks and the section. Naming one takes 20 us.
        self._names: WeakKeyDictionary[Any, dict[str, tuple[list[int], str]]] = WeakKeyDictionary()

    def show_calls(self, owner: type, method: str, name: str) -> None:
        """Record each call of a method as a span of section ``name``."""
        self._replace(owner, method, lambda args: name)

    def show_hooks(self, owner: type, method: str, hook: Hook, run_ends_in: Collection[str] = ()) -> None:
        """Record each call of a method that calls a hook of all callbacks; see ``section_of_hook``.

        Hooks in which a callback of ours ends the run are left out, as the section would end after the run.
        """

        def name_of(args: tuple[Any, ...]) -> str:
            callbacks, hooks = hook(*args)
            names = self._names.get(args[0])
            if names is None:
                names = self._names[args[0]] = {}
            ids = list(map(id, callbacks))
            known = names.get(hooks[0])
            if known is None or known[0] != ids:
                may_have_ours = hooks[0] not in run_ends_in
                known = names[hooks[0]] = ids, section_of_hook(callbacks, hooks, self.framework, may_have_ours)
            return known[1]

        self._replace(owner, method, name_of)

    def _replace(self, owner: type, method: str, name_of: Callable[[tuple[Any, ...]], str]) -> None:
        original = getattr(owner, method, None)  # some are private, and may be gone
        if original is None or PACKAGE in vars(original):  # replaced for a trainer around this one
            return

        def find(args: tuple[Any, ...], found: list[Any]) -> None:
            name = name_of(args)
            if name:
                found.append(self.section(name))

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                sections: list[Any] = []
                self.guarded(lambda: find(args, sections))
                for section in sections:
                    with section:
                        return original(*args, **kwargs)
                return original(*args, **kwargs)
            except BaseException as error:
                hide_our_frames(error)
                raise

        vars(call)[PACKAGE] = True
        self._patches.replace(owner, method, lambda _: call)

    def undo(self) -> None:
        """Restore the methods of the framework."""
        self._patches.undo()
        self._names.clear()


def section_of_hook(
    callbacks: Sequence[Any], hooks: tuple[str, ...], framework: str, may_have_ours: bool = True
) -> str:
    """Return the section of the time in which callbacks are called: "callback on_step_end" if one is of the user's.

    Otherwise it is the phase that the framework's own callbacks are, such as "logging"; "" for none.

    Args:
        callbacks: functions, or objects with a method of the hook's name.
        hooks: the names of the hook, the one for the section first.
        framework: the package whose callbacks are not the user's.
        may_have_ours: whether there is a section if a callback of the profiler is among them.
    """
    own, has_users = NONE, False
    for callback in callbacks:
        for hook in hooks:
            function = getattr(callback, hook, callback)
            module = str(getattr(function, "__module__", "")).partition(".")[0]
            if module == framework:
                own = own or _phase_of(function)
            elif module != PACKAGE:
                has_users = True
            elif not may_have_ours:
                return NONE
    return (callback_named(hooks[0]) or f"{HANDLERS} {hooks[0]}") if has_users else own


def _phase_of(function: Any) -> str:
    """Return the section of a framework's own function, by the tables of its callbacks and of library frames."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is None:
        return NONE
    phase = FileRows(code.co_filename, has_hooks=False, table=_TABLE).phase_of(code.co_qualname)
    return NONE if phase == SAVING else phase  # most calls save nothing, and the others have sections of their own


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
        self.is_on = self._takes_part = False  # whether a training is under way and profiled, in the run of another
        self._tokens = 0  # of the trainer, when they were counted last
        self._text = ""
        self._phases = Phases(package, self.section, lambda work: self.guarded("phases", work))
        if not is_switched_off():
            from training_profiler import api  # not at the top: with profiling off nothing of it is loaded

            self._api = api
            api.check_settings(self._settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainerRun, (self._package, self._settings, self._logs_metrics)

    def begin(self, show: Callable[[Phases], None] | None = None) -> None:
        """Begin the run of a training, or take part in the run under way; ``show`` names the framework's phases."""
        self._with_api(self._begin)
        if self.is_on and show is not None:
            self.guarded("phases", lambda: show(self._phases))

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
        self.is_on, self._takes_part = api.is_trainer_profiled(), _owner is not self
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
        self._calls, self.is_on = [], False
        self._phases.undo()
        if _owner is self:
            _owner = None
            api.stop_for_trainer()
            self._text = api.report_text()

    def mark_step(self) -> None:
        """End a step. From the first call on, nothing else ends one."""
        if self.is_on:
            self._with_api(lambda api: api.profile_step())

    def loss_begins(self) -> None:
        """Note that the trainer begins to compute the loss, perhaps in the closure of an update."""
        if self.is_on:
            self._with_api(lambda api: api.loss_begins())

    def count_tokens(self, seen: int) -> None:
        """Count the tokens that the trainer has read on this rank: ``seen`` since its own begin."""
        tokens, self._tokens = seen - self._tokens, seen
        if self.is_on and tokens > 0:
            self._with_api(lambda api: api.count_tokens(tokens))

    def log(self, write: Callable[[MetricRow], object], is_last: bool = False) -> None:
        """Call ``write`` with each row of metrics since the last call; the last one adds what has no row yet."""

        def work(api: ModuleType) -> None:
            for row in api.pop_metrics(is_last):
                write(row)

        if self.is_on and self._logs_metrics:
            self._with_api(work, "metrics")  # a logger that fails ends nothing else

    def section(self, name: str) -> Any:
        """Return the section ``name``, as ``profile_section`` does while profiling is on."""
        return self._api.profile_section(name)  # type: ignore[union-attr] # only where a run has begun

    def report(self) -> str:
        """Return the report of the run so far, or of the last run; "" before the first."""
        if self.is_on or self._takes_part:  # a run of another goes on after the training
            self._with_api(lambda api: vars(self).update(_text=api.report_text()))
        return self._text

    def guarded(self, part: str, work: Callable[[], None]) -> None:
        """Do ``work``, unless this part failed before; its errors do not reach the training."""
        self._guard.run(f"{self._package}: {part}", work)

    def _with_api(self, work: Callable[[ModuleType], None], part: str = "run") -> None:
        api = self._api
        if api is not None:
            self.guarded(part, lambda: work(api))
