import pytest

from tests.support.golden import assert_answers
from training_profiler.base.errors import SettingsError
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


def said_of(line: str) -> str:
    try:
        variables, rest = read_flags(line.split())
    except SettingsError as error:
        return f"mistake: {error}"
    settings = (f"{name.removeprefix(PREFIX)}={value}" for name, value in variables.items())
    return " ".join([*settings, "|", *rest])


def test_flags_become_variables_and_a_mistake_is_one_sentence() -> None:
    """Options of Python, and what follows the program, are left alone."""
    assert_answers("flags", said_of)
