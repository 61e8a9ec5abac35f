import os

import pytest

from training_profiler.base.errors import SettingsError
from training_profiler.base.switch import ROOT, SWITCH, is_switched_on, launch_environment

SHORT = "TRAINING_PROFILER"
ON = ("1", "true", "yes", "on", "True", "YES", " on ", " ON ")
OFF = ("0", "false", "no", "off", "", " ", "OFF")


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        *(({SWITCH: word}, True) for word in ON),
        *(({SWITCH: word}, False) for word in OFF),
        ({SWITCH: "", SHORT: "1"}, True),  # it counts where the documented one is not set
        ({SWITCH: " ", SHORT: "on"}, True),
        ({SWITCH: "", SHORT: "0"}, False),
        ({SWITCH: "yes", SHORT: "1"}, True),
    ],
)
def test_a_word_switches_profiling_on(monkeypatch, variables, is_on):
    monkeypatch.delenv(SWITCH, raising=False)
    for name, word in variables.items():
        monkeypatch.setenv(name, word)
    assert is_switched_on() is is_on


def test_run_switches_on_against_a_short_switch_that_is_off():
    environment = composed({"TRAINING_PROFILER": "0"})
    assert (environment[SWITCH], "TRAINING_PROFILER" in environment) == ("1", False)


def test_any_other_word_is_an_error_that_lists_the_valid_words(monkeypatch):
    monkeypatch.setenv(SWITCH, "maybe")
    with pytest.raises(SettingsError) as error:
        is_switched_on()
    assert str(error.value) == (
        "RECTIFIED_FLOW_PROFILE='maybe' is neither on (1, true, yes, on) nor off (0, false, no, off); "
        "example: RECTIFIED_FLOW_PROFILE=1"
    )


@pytest.mark.parametrize(
    ("words", "orig"),
    [
        (["/usr/bin/training-profiler", "run", "x"], ["python", "/usr/bin/training-profiler", "run", "x"]),
        (["-m", "run", "x"], ["python", "-u", "-m", "training_profiler", "run", "x"]),
        (["-m"], ["python", "-mtraining_profiler"]),
    ],
)
def test_our_own_command_is_never_profiled(monkeypatch, words, orig):
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr("sys.orig_argv", orig)
    monkeypatch.setenv(SWITCH, "maybe")
    assert is_switched_on() is False


@pytest.mark.parametrize("words", [[], ["-m"], ["-m", "training_profiler"], ["train.py", "training-profiler"], [""]])
def test_other_programs_are_profiled(monkeypatch, words):
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr("sys.orig_argv", ["python", *words])
    monkeypatch.setenv(SWITCH, "1")
    assert is_switched_on() is True


def composed(environ, is_python=True):
    return launch_environment("/b", is_python, environ)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "/b"),
        ({"PYTHONPATH": ""}, "/b"),
        ({"PYTHONPATH": "/x"}, "/b:/x"),
        ({"PYTHONPATH": "/x:/b:/y"}, "/b:/x:/y"),
        ({"PYTHONPATH": "/b"}, "/b"),
        ({"PYTHONPATH": "/x::/y"}, "/b:/x::/y"),
    ],
)
def test_launch_puts_the_bootstrap_first_on_pythonpath_once(before, after):
    assert composed(before)["PYTHONPATH"] == after


@pytest.mark.parametrize(
    ("given", "on"), [(None, "1"), ("", "1"), ("0", "1"), ("off", "1"), ("1", "1"), ("Yes", "Yes")]
)
def test_launch_switches_profiling_on(given, on):
    assert composed({} if given is None else {"RECTIFIED_FLOW_PROFILE": given})["RECTIFIED_FLOW_PROFILE"] == on


def test_launch_with_an_invalid_switch_raises():
    with pytest.raises(SettingsError, match=f"^{SWITCH}='maybe' "):
        composed({"RECTIFIED_FLOW_PROFILE": "maybe"})


def test_launch_of_python_gets_an_identity_owned_by_its_first_process():
    root = composed({})[ROOT]
    assert root.startswith(f"{os.getpid()}:")
    assert ROOT not in composed({ROOT: f"{os.getpid()}:x"}, is_python=False)


def test_nested_launch_keeps_the_outer_identity():
    assert composed({ROOT: "1:x"})[ROOT] == composed({ROOT: "1:x"}, is_python=False)[ROOT] == "1:x"
