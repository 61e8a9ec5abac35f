"""The sections of a trainer's phases, from methods of its framework that are replaced while a run lasts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import PACKAGE, hide_our_frames
from training_profiler.tables.framework_frames import (
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
from training_profiler.tables.sections import LOGGING

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


class Phases:
    """Records calls of a framework's methods as sections, until ``undo``.

    Args:
        framework: the package of the framework.
        section: returns the section of a name.
        guarded: does work whose errors do not reach the training.
    """

    def __init__(
        self, framework: str, section: Callable[[str], Any], guarded: Callable[[Callable[[], None]], None]
    ) -> None:
        self._framework, self._section, self._guarded = framework, section, guarded
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
                known = names[hooks[0]] = ids, section_of_hook(callbacks, hooks, self._framework, may_have_ours)
            return known[1]

        self._replace(owner, method, name_of)

    def _replace(self, owner: type, method: str, name_of: Callable[[tuple[Any, ...]], str]) -> None:
        original = getattr(owner, method, None)  # some are private, and may be gone
        if original is None or PACKAGE in vars(original):  # replaced for a trainer around this one
            return

        def find(args: tuple[Any, ...], found: list[Any]) -> None:
            name = name_of(args)
            if name:
                found.append(self._section(name))

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                sections: list[Any] = []
                self._guarded(lambda: find(args, sections))
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
