"""Looks at the profiler's switch when Python starts, and arms the import hook where it is on.

``training_profiler.pth`` looks for itself, because an import costs more. Python 3.15 and newer call ``start`` instead,
as ``training_profiler.start`` asks them to.
"""

import os
import sys

_is_armed = False  # site reads the files of a virtual environment twice


def start() -> None:
    """Arm the hook if ``RECTIFIED_FLOW_PROFILE`` or ``TRAINING_PROFILER`` is set and does not mean off."""
    given = os.environ.get("RECTIFIED_FLOW_PROFILE", "").strip() or os.environ.get("TRAINING_PROFILER", "").strip()
    if given.lower() not in ("0", "false", "no", "off", ""):
        arm()


def arm() -> None:
    """Let the profiler start once the program has imported torch; an error is one line."""
    global _is_armed
    if _is_armed:
        return
    _is_armed = True
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "training_profiler", "bootstrap")
    sys.path.insert(0, folder)
    try:
        import training_profiler_hook  # type: ignore[import-not-found]

        training_profiler_hook.arm()
    except Exception as error:
        sys.stderr.write("training_profiler: nothing is measured: " + " ".join(str(error).split()) + "\n")
    finally:
        sys.path.remove(folder)
