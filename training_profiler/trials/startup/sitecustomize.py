"""Keeps a trial apart in each of its Python processes: ``site`` runs this file before the program.

Its folder is first on ``PYTHONPATH``. It leaves ``sys.path`` as it would be without us, and runs the ``sitecustomize``
that this one hides.
"""

import os
import sys

TRIAL = "TRAINING_PROFILER_TRIAL"

if __name__ == "sitecustomize":
    if os.environ.get(TRIAL):
        import training_profiler_trial  # type: ignore[import-not-found]

        training_profiler_trial.enter(os.environ[TRIAL])

    # PYTHONPATH stays, for the children.
    folder = os.path.dirname(__file__)
    while folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    # Without another sitecustomize this import fails as it would without us, and `site` handles that.
    del sys.modules[__name__]
    __import__(__name__)
