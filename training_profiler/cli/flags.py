"""Settings as flags of ``training-profiler run``: ``--log-every 100``, ``--flops=no``, ``--no-flops``, ``--quiet``.

They are made from the table of settings; there is no second list.
"""

from collections.abc import Iterator
from typing import NamedTuple

from training_profiler.base.errors import SettingsError
from training_profiler.cli import nearest
from training_profiler.settings.settings import SettingDescription, check_setting, describe

# Options of Python with two dashes.
OF_PYTHON = ("--version", "--check-hash-based-pycs", "--help-env", "--help-xoptions", "--help-all")
HELP = ("-h", "--help")
LISTED = "; training-profiler run --help lists all"
QUIET = "--quiet"
QUIET_MEANS = ("log_every", "0")


class Flag(NamedTuple):
    """A flag, and the setting that it gives."""

    name: str
    setting: SettingDescription
    value: str | None = None  # what the flag alone means; None if a value has to follow


def flags() -> Iterator[Flag]:
    """Yield all flags, in the order of the settings."""
    for setting in describe():
        name = setting.argument.rstrip("_").replace("_", "-")
        if setting.is_yes_or_no:
            yield Flag(f"--{name}", setting, "yes")
            yield Flag(f"--no-{name}", setting, "no")
        else:
            yield Flag(f"--{name}", setting)
        if setting.argument == QUIET_MEANS[0]:
            yield Flag(QUIET, setting, QUIET_MEANS[1])


def read_flags(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that the flags at the begin of ``words`` set, and the words after them.

    Raises:
        SettingsError: a flag is unknown, lacks its value, or has one that cannot be used.
    """
    known = {flag.name: flag for flag in flags()}
    variables: dict[str, str] = {}
    while words and words[0].startswith("--") and words[0] not in ("--", *HELP, *OF_PYTHON):
        given, equals, value = words[0].partition("=")
        flag = known.get(given.replace("_", "-"))
        if flag is None:
            raise SettingsError(f"{given} is not a flag of run{nearest(given, known) or LISTED}")
        words = words[1:]
        if equals:
            source = f"{given}={value}"
            if flag.value not in (None, "yes"):
                raise SettingsError(f"{source}: {given} takes no value")
        elif flag.value is not None:
            source, value = given, flag.value
        elif words:
            source, value, words = f"{given} {words[0]}", words[0], words[1:]
        else:
            raise SettingsError(
                f"{given} needs a value ({flag.setting.meaning}); example: {flag.name} {flag.setting.example}"
            )
        check_setting(flag.setting.argument, source, value)
        variables[flag.setting.variable] = value
    return variables, words
