"""The one variable that switches the profiler on, here and in a program that nobody edited.

Kept apart from ``settings`` so that an import with profiling off loads nothing but this file and ``off``,
and ``training-profiler run`` little more.
"""

import os
import sys
import time
from collections.abc import Mapping

from training_profiler.errors import SettingsError

SWITCH = "RECTIFIED_FLOW_PROFILE"
PREFIX = SWITCH + "_"
ROOT = PREFIX + "ROOT"  # pid:launch of the first Python process of a launch; set by us, no setting
ON_WORDS = ("1", "true", "yes", "on")
OFF_WORDS = ("0", "false", "no", "off", "")


def is_switched_on() -> bool:
    """Return whether this process is to be profiled: ``RECTIFIED_FLOW_PROFILE`` asks for it, and it is not our command.

    Raises:
        SettingsError: the variable holds a word that is neither on nor off.
    """
    return not _is_own_command() and means_on(os.environ.get(SWITCH, ""))


def means_on(given: str) -> bool:
    """Return whether ``given`` is a word for on; nothing means off.

    Raises:
        SettingsError: it is neither on nor off.
    """
    word = given.strip().lower()
    if word in ON_WORDS:
        return True
    if word in OFF_WORDS:
        return False
    raise SettingsError(
        f"{SWITCH}={given!r} is neither on (1, true, yes, on) nor off (0, false, no, off); example: {SWITCH}=1"
    )


def _is_own_command() -> bool:
    # `training-profiler run` and `report` train nothing: in a shell where the variable is set for good they
    # shall not load what the program they start loads.
    words = getattr(sys, "argv", [""])
    if words[:1] == ["-m"]:  # while the module is looked up, its name stands in orig_argv alone
        return sys.orig_argv[-len(words) :][:1] in (["training_profiler"], ["-mtraining_profiler"])
    return bool(words) and os.path.basename(words[0]) in ("training-profiler", "training-profiler.exe")


def launch_environment(bootstrap: str, is_python: bool, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which a program that nobody edited is profiled.

    Args:
        bootstrap: folder that holds our ``sitecustomize``.
        is_python: whether the program that takes this process's place is a Python interpreter itself.
        environ: what the program would get without us.

    Raises:
        SettingsError: the switch holds a word that is neither on nor off.
    """
    composed = dict(environ)
    if not means_on(environ.get(SWITCH, "")):
        composed[SWITCH] = "1"
    # An empty entry would be the current folder, so none may come of an empty variable.
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry != bootstrap]
    composed["PYTHONPATH"] = os.pathsep.join([bootstrap, *(before if before != [""] else [])])
    pid = str(os.getpid())
    if environ.get(ROOT, "").partition(":")[0] in ("", pid):  # any other is of a launch that this one is part of
        composed.pop(ROOT, None)
        if is_python:  # it keeps this process's number
            composed[ROOT] = f"{pid}:{pid}-{time.time_ns():x}"
    if sys.flags.utf8_mode and environ.get("PYTHONUTF8") != "1":
        composed.pop("LC_CTYPE", None)  # put there by the interpreter at hand, in the C locale (PEP 538)
    return composed
