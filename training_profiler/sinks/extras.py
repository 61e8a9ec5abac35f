"""Checks at start-up that the packages of the chosen trackers are installed."""

import importlib.util
from collections.abc import Iterable

from training_profiler.base.errors import MissingExtraError
from training_profiler.tables.trackers import TRACKERS


def require_packages(names: Iterable[str]) -> None:
    """Check that the packages of these trackers are installed, without importing them.

    Raises:
        MissingExtraError: a package is missing.
    """
    for name in names:
        tracker = TRACKERS.get(name)
        if tracker is not None and tracker.needs is not None and not _is_installed(tracker.needs):
            raise MissingExtraError(
                f"The {name} sink needs {tracker.package}: pip install 'training-profiler[{tracker.extra}]', "
                f"or pip install {tracker.package}"
            )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a module without a spec was imported under this name
        return True
