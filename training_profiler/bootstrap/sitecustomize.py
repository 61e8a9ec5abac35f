"""Starts the profiler in an unmodified program: ``site`` runs this file before the program, in every process.

Its folder is first on ``PYTHONPATH``. Any Python version may run it, including those too old for the profiler, so its
syntax is valid in all of them; the rest is in the file beside it. It leaves ``sys.path`` as it would be without us, and
runs the ``sitecustomize`` that this one hides.
"""

import os
import sys

SWITCH = "RECTIFIED_FLOW_PROFILE"
SHORT_SWITCH = "TRAINING_PROFILER"
ROOT = "RECTIFIED_FLOW_PROFILE_ROOT"
TRIAL_PLAN = "RECTIFIED_FLOW_PROFILE_TRIAL_PLAN"
OFF_WORDS = ("0", "false", "no", "off", "")

if __name__ == "sitecustomize":
    try:
        given = os.environ.get(SWITCH, "").strip() or os.environ.get(SHORT_SWITCH, "").strip()
        if given.lower() not in OFF_WORDS or os.environ.get(TRIAL_PLAN):
            pid = str(os.getpid()) + ":"
            if sys.hexversion >= 0x030B0000:
                import training_profiler_hook  # type: ignore[import-not-found]

                training_profiler_hook.arm(speaks=True)
            elif os.environ.setdefault(ROOT, pid + pid[:-1]).startswith(pid):  # not a child of another one
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
    # Without another sitecustomize this import fails as it would without us, and `site` handles that.
    this = sys.modules.pop(__name__)  # kept, because Python 2 clears a module without references
    __import__(__name__)
