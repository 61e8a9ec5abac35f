"""Which package a tracker needs; looked for at the start, imported when it is needed."""

import importlib.util
from collections.abc import Iterable
from typing import Final

from training_profiler.errors import MissingExtraError

_PACKAGES: Final = {  # tracker -> (module, extra)
    "wandb": ("wandb", "wandb"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "prometheus": ("prometheus_client", "prometheus"),
    "mlflow": ("mlflow", "mlflow"),
}


def require_packages(names: Iterable[str]) -> None:
    """Check that the packages of these trackers are there, without importing them.

    Raises:
        MissingExtraError: one is not.
    """
    for name in names:
        module, extra = _PACKAGES.get(name, (None, None))
        if module is not None and not _is_there(module):
            package = module.replace("_", "-")
            raise MissingExtraError(
                f"The {name} sink needs {package}: pip install 'training-profiler[{extra}]', or pip install {package}"
            )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # something odd under that name is there already
        return True
