"""Lets the profiler into a program that nobody edited: ``site`` runs this before the program, in every process.

Its folder stands first on ``PYTHONPATH``. Any Python may come here, also one that is too old for the profiler,
so this file keeps to syntax that all of them read; the rest is in the file beside it. The program finds
everything as it would be without: ``sys.path``, and the ``sitecustomize`` that this one hides.
"""

import os
import sys

SWITCH = "RECTIFIED_FLOW_PROFILE"
ROOT = "RECTIFIED_FLOW_PROFILE_ROOT"
OFF_WORDS = ("0", "false", "no", "off", "")

if __name__ == "sitecustomize":
    try:
        if os.environ.get(SWITCH, "").strip().lower() not in OFF_WORDS:
            import time

            pid = str(os.getpid())
            was_asked_for = os.environ.get(ROOT, "").startswith(
                pid + ":"
            )  # `training-profiler run` became this process
            is_first = was_asked_for or not os.environ.get(ROOT)
            if not os.environ.get(ROOT):
                os.environ[ROOT] = pid + ":" + pid + "-" + format(int(time.time() * 1e9), "x")
            if sys.hexversion >= 0x030B0000:
                import training_profiler_bootstrap  # type: ignore[import-not-found]

                training_profiler_bootstrap.begin(is_first, was_asked_for)
            elif is_first:
                version = ".".join(map(str, sys.version_info[:2]))
                sys.stderr.write(
                    "training_profiler: nothing is measured: it needs Python 3.11, this is " + version + "\n"
                )
    except Exception as error:
        sys.stderr.write("training_profiler: nothing is measured: " + " ".join(str(error).split()) + "\n")

    # PYTHONPATH stays, for the children.
    folder = os.path.dirname(__file__)
    while folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    # Where there is no other, this import fails as it would without us, and `site` goes on as it would.
    this = sys.modules.pop(__name__)  # held, for Python 2 empties a module that nobody holds
    __import__(__name__)
