"""The environment variable that switches the profiler on, here and in an unmodified program.

It is separate from ``settings`` so that an import with profiling off loads almost nothing else, and
``training-profiler run`` little more.
"""

import os
import sys
import time
from collections.abc import Mapping, MutableMapping

from training_profiler.base.errors import SettingsError

SWITCH = "RECTIFIED_FLOW_PROFILE"
PREFIX = SWITCH + "_"
SHORT_SWITCH = "TRAINING_PROFILER"  # accepted as well as the documented names
SHORT_PREFIX = SHORT_SWITCH + "_"
ROOT = PREFIX + "ROOT"  # pid:launch of the first Python process of a launch; set by us, not a setting
TRIAL_PLAN = PREFIX + "TRIAL_PLAN"  # path of a trial's plan; set by `training-profiler try`, not a setting
START_UP_FILE = "training_profiler.pth"  # beside the package; it arms the profiler in every program of its Python
ON_WORDS = ("1", "true", "yes", "on")
OFF_WORDS = ("0", "false", "no", "off", "")


def short_name(variable: str) -> str:
    """Return the other name of a variable: ``TRAINING_PROFILER_DIR`` of ``RECTIFIED_FLOW_PROFILE_DIR``."""
    return SHORT_SWITCH + variable.removeprefix(SWITCH)


def given_name(variable: str, environ: Mapping[str, str]) -> str | None:
    """Return the name by which a variable is set, the documented or the short one; None if it is not set.

    Raises:
        SettingsError: both are set, and differ.
    """
    names = variable, short_name(variable)
    words = [environ.get(name, "").strip().lower() for name in names]
    if all(words) and words[0] != words[1] and not any(set(words) <= set(same) for same in (ON_WORDS, OFF_WORDS)):
        both = " and ".join(f"{name}={environ[name]!r}" for name in names)
        raise SettingsError(f"{both} are two names of one variable; set one; example: {variable}={words[0]}")
    return next((name for name, word in zip(names, words, strict=True) if word), None)


def set_variable(environ: MutableMapping[str, str], variable: str, value: str) -> None:
    """Set a variable by its documented name, whatever name it had."""
    environ[variable] = value
    environ.pop(short_name(variable), None)


def is_switched_on() -> bool:
    """Return whether ``RECTIFIED_FLOW_PROFILE`` switches profiling on, and this process is not our own command.

    Raises:
        SettingsError: the value is neither on nor off.
    """
    return not _is_own_command() and means_on(os.environ)


def is_switched_off() -> bool:
    """Return whether the switch says off, which an empty or missing variable does not.

    Raises:
        SettingsError: the value is neither on nor off.
    """
    return given_name(SWITCH, os.environ) is not None and not means_on(os.environ)


def switch_on() -> None:
    """Switch profiling on in this process and the children that it starts."""
    set_variable(os.environ, SWITCH, "1")


def means_on(environ: Mapping[str, str]) -> bool:
    """Return whether the switch in ``environ`` means on; an empty value means off.

    Raises:
        SettingsError: it is neither on nor off, or has two names that differ.
    """
    name = given_name(SWITCH, environ) or SWITCH
    given = environ.get(name, "")
    word = given.strip().lower()
    if word in ON_WORDS:
        return True
    if word in OFF_WORDS:
        return False
    raise SettingsError(
        f"{name}={given!r} is neither on (1, true, yes, on) nor off (0, false, no, off); example: {name}=1"
    )


def _is_own_command() -> bool:
    # `training-profiler run` and `report` train nothing. In a shell that exports the variable they must not load the
    # profiler.
    words = getattr(sys, "argv", [""])
    if words[:1] == ["-m"]:  # while Python looks up the module, only orig_argv has its name
        return sys.orig_argv[-len(words) :][:1] in (["training_profiler"], ["-mtraining_profiler"])
    return bool(words) and os.path.basename(words[0]) in ("training-profiler", "training-profiler.exe")


def start_up_file(is_isolated: bool = False) -> str | None:
    """Return the start-up file of the installation that this Python finds; None without one.

    Args:
        is_isolated: whether Python leaves out the user's own packages, as with ``-I``.
    """
    import site

    has_own = bool(site.ENABLE_USER_SITE) and not is_isolated
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if has_own else [])]
    paths = (os.path.join(folder, START_UP_FILE) for folder in folders)
    return next(filter(os.path.isfile, paths), None)


def environment(is_on: bool) -> dict[str, str]:
    """Return the environment of a child in which everything is profiled, or nothing."""
    environ = dict(os.environ)
    set_variable(environ, SWITCH, "1" if is_on else "0")
    return environ


def launch_environment(bootstrap: str, is_python: bool, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which an unmodified program is profiled.

    Args:
        bootstrap: folder that holds our ``sitecustomize``.
        is_python: whether the program that replaces this process is a Python interpreter.
        environ: the program's environment without us.

    Raises:
        SettingsError: the value of the switch is neither on nor off.
    """
    composed = dict(environ)
    set_variable(composed, SWITCH, (means_on(environ) and environ.get(SWITCH, "").strip()) or "1")
    # An empty entry would mean the current folder, so an empty variable must not become one.
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry != bootstrap]
    composed["PYTHONPATH"] = os.pathsep.join([bootstrap, *(before if before != [""] else [])])
    pid = str(os.getpid())
    if environ.get(ROOT, "").partition(":")[0] in ("", pid):  # otherwise this process is part of a launch already
        composed.pop(ROOT, None)
        if is_python:  # it keeps this process's pid
            composed[ROOT] = f"{pid}:{pid}-{time.time_ns():x}"
    if sys.flags.utf8_mode and environ.get("PYTHONUTF8") != "1":
        composed.pop("LC_CTYPE", None)  # set by this interpreter in the C locale (PEP 538)
    return composed
