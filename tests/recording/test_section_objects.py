"""Sections as objects, on and off: what ``contextlib``, ``copy``, ``pickle`` and comparisons do with them."""

import contextlib
import copy
import inspect
import pickle

import pytest

from training_profiler import api, api_disabled
from training_profiler.recording.recorder import Recorder

SECTIONS = {
    "off": lambda: api_disabled.profile_section("a"),
    "on": lambda: Recorder().section("a"),
    "before a run": lambda: waiting().section("a"),
}
API = ("profile_epoch", "profile_phase", "profile_step", "start_training_profiling", "profile_dataloader", "snapshot")


def waiting():
    recorder = Recorder()
    recorder.wait_for_first_section(lambda: None)
    return recorder


@pytest.fixture(params=SECTIONS)
def section(request):
    return SECTIONS[request.param]()


def test_with_and_exit_stack_enter_a_section_alike(section):
    with section as one, contextlib.ExitStack() as stack:
        assert (one, stack.enter_context(section)) == (None, None)
    assert type(section).__enter__(section) is None
    assert type(section).__exit__(section, None, None, None) is None
    assert section.__exit__() is None


def test_section_is_a_context_manager(section):
    assert isinstance(section, contextlib.AbstractContextManager)
    assert (type(section).__name__, type(section).__module__) == ("Section", "training_profiler")


def test_copies_of_a_section_are_itself(section):
    assert copy.copy(section) is section
    assert copy.deepcopy({"kept": [section]})["kept"][0] is section


def test_sections_are_equal_on_and_off(recorder):
    first, second = recorder.section("a"), recorder.section("b")
    assert (first == second, hash(first) == hash(second), first == 3) == (True, True, False)
    off = api_disabled.profile_section("a")
    assert (off == api_disabled.profile_section("b"), off == 3) == (True, False)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_disabled_section_survives_pickle(protocol):
    section = api_disabled.profile_section("a")
    assert pickle.loads(pickle.dumps(section, protocol)) is section


def test_section_that_outlives_its_run_records_on_the_thread_that_enters_it():
    recorder = waiting()
    section = recorder.section("a")
    recorder.listen(recorder.discard)
    with section, section:
        pass
    codes = list(recorder.buffer().events[1::2])
    assert codes == [1, 1, -1, -1]


@pytest.mark.parametrize("name", API)
def test_public_functions_take_the_same_arguments_on_and_off(name):
    on, off = (inspect.signature(getattr(module, name)) for module in (api, api_disabled))
    assert [(p.name, p.kind, p.default) for p in on.parameters.values()] == [
        (p.name, p.kind, p.default) for p in off.parameters.values()
    ]


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
@pytest.mark.parametrize("state", ["off", "on"])
def test_decorated_static_and_class_methods_stay_methods(state, kind):
    decorate = SECTIONS[state]()

    class Trainer:
        method = decorate(kind(lambda *arguments: len(arguments)))

    assert Trainer.method() == Trainer().method() == (kind is classmethod)


def test_decorated_class_stays_a_class(recorder):
    @recorder.section("a")
    class Model:
        pass

    assert isinstance(Model(), Model)
