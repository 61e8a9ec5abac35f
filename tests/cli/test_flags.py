import pytest

from training_profiler.base.errors import SettingsError
from training_profiler.base.trackers import TRACKERS
from training_profiler.cli.flags import read_flags
from training_profiler.settings.settings import describe, read_settings

PREFIX = "RECTIFIED_FLOW_PROFILE_"


@pytest.mark.parametrize("row", describe(), ids=lambda row: row.argument)
def test_flag_gives_what_the_variable_gives(row) -> None:
    variables, rest = read_flags(
        [f"--{row.argument.rstrip('_').replace('_', '-')}={row.example}", "train.py", "--lr", "1"]
    )
    assert variables == {row.variable: row.example}
    assert rest == ["train.py", "--lr", "1"]
    assert read_settings(environ=variables) != read_settings(environ={}) or row.example == row.default


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--log-every", "100", "--quiet"], {"LOG_EVERY": "0"}),
        (["--quiet"], {"LOG_EVERY": "0"}),
        (["--log_every", "3"], {"LOG_EVERY": "3"}),
        (["--for", "60s", "--stop-when-sure"], {"FOR": "60s", "STOP_WHEN_SURE": "yes"}),
        (["--no-flops", "--checklist"], {"FLOPS": "no", "CHECKLIST": "yes"}),
        (["--sinks", "jsonl,csv", "--name", "a"], {"SINKS": "jsonl,csv", "NAME": "a"}),
    ],
)
def test_flags_become_variables(words, variables) -> None:
    expected = {PREFIX + name: value for name, value in variables.items()}
    assert read_flags([*words, "train.py", "--quiet"]) == (expected, ["train.py", "--quiet"])


@pytest.mark.parametrize(
    "words", [["--", "--quiet"], ["-u", "--quiet"], ["--version"], ["--check-hash-based-pycs", "never", "x"]]
)
def test_options_of_python_are_left_alone(words) -> None:
    assert read_flags(words) == ({}, words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--log-evry", "3"], "--log-evry is not a flag of run; did you mean --log-every?"),
        (["--zzz"], "--zzz is not a flag of run; training-profiler run --help lists all"),
        (["--log-every"], "--log-every needs a value (steps between periodic reports, 0 for the final summary alone); "
         "example: --log-every 50"),
        (["--log-every", "train.py"], "--log-every train.py is not an integer >= 0 (steps between periodic reports, "
         "0 for the final summary alone); example: 50"),
        (["--for", "ten"], "--for ten is neither a time nor a number of steps (time since the start, or number of "
         "steps, after which the training is ended); example: 200steps"),
        (["--quiet=3"], "--quiet=3: --quiet takes no value"),
        (["--sinks=tensorbord"], f"--sinks=tensorbord names 'tensorbord', which is not one of "
         f"{', '.join(TRACKERS)}; did you mean tensorboard? (trackers that receive metrics); "
         "example: jsonl,csv"),
    ],
)  # fmt: skip
def test_wrong_flag_is_one_sentence(words, message) -> None:
    with pytest.raises(SettingsError) as error:
        read_flags([*words])
    assert str(error.value) == message
