"""The one variable that switches the profiler on; all that an import runs while it is off.

Kept apart from ``settings`` so that an import with profiling off loads nothing but this file and ``off``.
"""

import os

from training_profiler.errors import SettingsError

SWITCH = "RECTIFIED_FLOW_PROFILE"
ON_WORDS = ("1", "true", "yes", "on")
OFF_WORDS = ("0", "false", "no", "off", "")


def is_switched_on() -> bool:
    """Return whether ``RECTIFIED_FLOW_PROFILE`` asks for profiling; unset or empty means off.

    Raises:
        SettingsError: the variable holds a word that is neither on nor off.
    """
    given = os.environ.get(SWITCH, "")
    word = given.strip().lower()
    if word in ON_WORDS:
        return True
    if word in OFF_WORDS:
        return False
    raise SettingsError(
        f"{SWITCH}={given!r} is neither on (1, true, yes, on) nor off (0, false, no, off); example: {SWITCH}=1"
    )
