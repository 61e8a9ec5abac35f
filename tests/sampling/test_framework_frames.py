"""The frames of libraries below a line of the user's code, and the phases of trainers, from fabricated stacks."""

import sys
import threading

import pytest
import torch

from tests.support.golden import assert_answers
from tests.support.worker_stacks import (
    LIBRARY,
    PLACES,
    SITE,
    TRAIN,
    Row,
    rows_of,
    shown,
    stack,
)
from training_profiler.base.framework_frames import ANY, FRAMES, FrameTable, LibraryFrame
from training_profiler.base.startup_frames import STARTUP
from training_profiler.integrations.trainer_run import OWN_CALLBACKS
from training_profiler.model.location import Location
from training_profiler.sampling.batch_phases import FRAMES as FRAMES_OF_WORKERS
from training_profiler.sampling.stacks import StackReader
from training_profiler.sampling.user_code import UserCode, places_of_this_process

HF = f"{SITE}/transformers/trainer.py"
CALLBACKS = f"{SITE}/transformers/trainer_callback.py"


def read(*rows: Row) -> Location | None:
    """Return the location of a stack below the user's own line, the outermost first; calls are on line 2."""
    frame, _ = stack(TRAIN, *rows)
    reader = StackReader(UserCode(PLACES))
    place = reader.place(frame)
    return None if place is None else reader.location(place)


def test_each_stack_is_read_as_before() -> None:
    """Phases of trainers, backward passes and start-up, names of libraries, and what is waited for."""
    assert_answers("libraries", lambda text: shown(read(*rows_of(text))))


class Watched(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reach()
        return x


PHASES: list[str] = []


def reach(*_: object) -> None:
    """Keep the phase of the frame that calls this: a finished frame has lost the one around it."""
    reader = StackReader(UserCode(places_of_this_process()))
    place = reader.place(sys._getframe())
    location = None if place is None else reader.location(place)
    assert location is not None
    PHASES.append(location.phase)


def phase_within(module: torch.nn.Module) -> str:
    PHASES.clear()
    module(torch.zeros(1))
    return PHASES[-1]


@pytest.mark.parametrize("has_names", [False, True])
@pytest.mark.parametrize("adds_hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_of_a_module_has_a_phase(adds_hook: str, has_names: bool) -> None:
    module = torch.nn.Identity()
    getattr(module, adds_hook)(reach, with_kwargs=has_names)
    assert phase_within(module) == phase_within(torch.nn.Sequential(module)) == "forward hook"


def test_the_forward_of_a_module_is_not_a_hook() -> None:
    assert phase_within(Watched()) == ""
    watched = Watched()
    watched.register_forward_hook(lambda *_: None)
    assert phase_within(torch.nn.Sequential(watched)) == ""


def test_a_thread_of_a_library_has_the_function_that_it_was_started_for() -> None:
    queues, reduction = (f"{LIBRARY}/multiprocessing/{name}.py" for name in ("queues", "reduction"))
    frame, _ = stack((threading.__file__, "run", "call()"), (queues, "_feed", "call()"), (reduction, "dumps", "call()"))
    reader = StackReader(UserCode(PLACES))
    holder = reader.function_of_thread(frame)
    assert holder is not None
    assert reader._users_text(holder) == "multiprocessing/queues.py:2 _feed"
    assert reader.function_of_thread(None) is None


@pytest.mark.parametrize("rows", [FRAMES, STARTUP, OWN_CALLBACKS + FRAMES, FRAMES_OF_WORKERS])
def test_a_table_finds_the_rows_that_a_search_through_all_of_them_finds(rows: tuple[LibraryFrame, ...]) -> None:
    table = FrameTable(rows)
    paths = [f"{SITE}{row.path}{end}" for row in FRAMES + STARTUP + rows for end in ("", "x.py", "/sub/trainer.py")]
    paths += [path.replace("/", "\\") for path in paths] + ["<frozen importlib._bootstrap>", "", "/", HF, TRAIN[0]]
    for path in paths:
        slashes = path.replace("\\", "/")
        expected = [
            row for row in rows if slashes.endswith(row.path) or (row.path[-3:] != ".py" and row.path in slashes)
        ]
        assert table.of_file(path) == expected, path


def test_of_two_rows_that_match_the_first_of_the_table_holds() -> None:
    folder, file = LibraryFrame("/lib/", (ANY,), "folder"), LibraryFrame("/lib/a.py", (ANY,), "file")
    assert FrameTable((folder, file)).of_file("/x/lib/a.py") == [folder, file]
    assert FrameTable((file, folder)).of_file("/x/lib/a.py") == [file, folder]
