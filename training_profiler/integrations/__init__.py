"""What the trainers of Lightning, Hugging Face, Ignite and Keras say of their phases, and their loggers. Never:
import a framework but its own, be imported by a training that does not ask for it.
"""

import importlib
from types import ModuleType
from typing import Final

FRAMEWORKS: Final = ("hugging_face", "ignite", "keras", "lightning")


def __getattr__(name: str) -> ModuleType:
    """Return the module of a framework, which is imported when it is asked for."""
    if name in FRAMEWORKS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(FRAMEWORKS)}")
