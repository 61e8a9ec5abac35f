"""Methods of a framework become sections, and everything else about them stays the same."""

import traceback
from contextlib import contextmanager
from typing import Any

import pytest

from training_profiler.integrations.trainer_run import Phases, section_of_hook
from training_profiler.safety.fault_guard import FaultGuard

FRAMEWORK = "framework"
LOGGER = """
class TensorBoard:
    def on_log(self):
        pass
    def on_step_end(self):
        pass
"""


class Trainer:
    """Calls its callbacks as the trainer of a framework does."""

    def __init__(self, *callbacks: Any) -> None:
        self.callbacks = list(callbacks)

    def call_event(self, hook: str) -> list[Any]:
        return [getattr(callback, hook)() for callback in self.callbacks]


class Users:
    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def on_step_end(self) -> str:
        if self.fails:
            raise ValueError("as planned")
        return "called"


def frameworks(path: str = f"/{FRAMEWORK}/callbacks.py") -> Any:
    """Return a callback of the framework's own, from this file."""
    module: dict[str, Any] = {"__name__": f"{FRAMEWORK}.callbacks"}
    exec(compile(LOGGER, path, "exec"), module)
    return module["TensorBoard"]()


def hook_of(trainer: Trainer, hook: str) -> tuple[list[Any], tuple[str]]:
    return trainer.callbacks, (hook,)


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def guard() -> FaultGuard:
    return FaultGuard()


@pytest.fixture
def phases(seen: list[str], guard: FaultGuard) -> Any:
    @contextmanager
    def section(name: str) -> Any:
        seen.append(name)
        yield

    phases = Phases(FRAMEWORK, section, lambda work: guard.run("phases", work))
    yield phases
    phases.undo()


def test_hook_of_the_users_is_a_section_and_its_results_are_returned(phases: Phases, seen: list[str]) -> None:
    phases.show_hooks(Trainer, "call_event", hook_of)
    assert Trainer(Users()).call_event("on_step_end") == ["called"]
    assert seen == ["callback on_step_end"]


def test_callback_that_comes_or_goes_later_is_noticed(phases: Phases, seen: list[str]) -> None:
    phases.show_hooks(Trainer, "call_event", hook_of)
    trainer = Trainer(frameworks())
    trainer.call_event("on_step_end")
    trainer.callbacks[:] = [Users()]
    trainer.call_event("on_step_end")
    trainer.callbacks.clear()
    trainer.call_event("on_step_end")
    assert seen == ["callback on_step_end"]


def test_hooks_of_the_frameworks_own_are_named_by_the_tables() -> None:
    logger = frameworks("/keras/src/callbacks/tensorboard.py")
    assert section_of_hook([logger], ("on_log",), FRAMEWORK) == "logging"
    assert section_of_hook([frameworks()], ("on_log",), FRAMEWORK) == ""
    assert section_of_hook([logger, Users()], ("on_step_end",), FRAMEWORK) == "callback on_step_end"


def test_function_is_a_handler_of_its_event() -> None:
    assert section_of_hook([lambda: None], ("EPOCH_COMPLETED",), FRAMEWORK) == "handlers EPOCH_COMPLETED"


def test_hook_in_which_the_run_ends_has_no_section(phases: Phases, seen: list[str]) -> None:
    class Ours(Users):
        def on_train_end(self) -> None:
            pass

        on_train_end.__module__ = "training_profiler.integrations.framework"

    phases.show_hooks(Trainer, "call_event", hook_of, {"on_train_end"})
    Trainer(Ours()).call_event("on_train_end")
    assert seen == []


def test_trainer_around_another_has_each_section_once(phases: Phases, seen: list[str], guard: FaultGuard) -> None:
    outer = Phases(FRAMEWORK, lambda name: pytest.fail("twice"), lambda work: guard.run("phases", work))
    phases.show_hooks(Trainer, "call_event", hook_of)
    outer.show_hooks(Trainer, "call_event", hook_of)
    Trainer(Users()).call_event("on_step_end")
    assert seen == ["callback on_step_end"]


def test_undone_methods_are_the_original_ones(phases: Phases) -> None:
    before = vars(Trainer)["call_event"]
    phases.show_hooks(Trainer, "call_event", hook_of)
    phases.show_calls(Trainer, "not_in_this_version", "logging")
    assert vars(Trainer)["call_event"] is not before
    phases.undo()
    assert vars(Trainer)["call_event"] is before
    assert not hasattr(Trainer, "not_in_this_version")


def test_exception_of_a_callback_is_raised_without_frames_of_ours(phases: Phases) -> None:
    phases.show_calls(Trainer, "call_event", "callback")
    with pytest.raises(ValueError, match="as planned") as raised:
        Trainer(Users(fails=True)).call_event("on_step_end")
    assert not any(frame.filename.endswith("/integrations/trainer_run.py") for frame in traceback.extract_tb(raised.tb))


def test_error_of_ours_ends_the_sections_alone(phases: Phases, seen: list[str], guard: FaultGuard) -> None:
    phases.show_hooks(Trainer, "call_event", lambda trainer, hook: 1 / 0)
    trainer = Trainer(Users())
    assert [trainer.call_event("on_step_end") for _ in range(2)] == 2 * [["called"]]
    assert (seen, list(guard.disabled)) == ([], ["phases"])
