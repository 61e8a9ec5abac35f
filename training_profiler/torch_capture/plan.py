"""When windows of deep capture open, and what they may cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from training_profiler.base.errors import SettingsError

EXAMPLE: Final = "example: steps=100-103 or every=1000,outlier,length=4,windows=3"
FIRST_STEP: Final = 2  # a training is only known when its first step has ended


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """When windows open without a request, and the limits of each window."""

    steps: tuple[tuple[int, int], ...] = ()
    """First and last step of each window, counted from 1."""
    every: int | None = None
    """A window begins with each step that is a multiple of this."""
    outlier: bool = False
    """Whether a window opens right after a step that took far longer than others."""
    length: int = 4
    """Steps of a window that no range gives."""
    windows: int = 3
    """Most windows of a run."""
    seconds: float = 30.0
    """Longest time of a window, in s."""
    megabytes: float = 500.0
    """Largest file of a window, in 1e6 bytes."""
    memory_gib: float = 4.0
    """Most that the process may grow by in a window, in GiB."""

    @property
    def is_empty(self) -> bool:
        """Whether only requests open windows."""
        return not self.steps and self.every is None and not self.outlier


def read_plan(given: object) -> CapturePlan:
    """Return the plan that a text such as ``steps=100-103,windows=1`` stands for.

    Raises:
        SettingsError: the text is invalid. The message continues after the name and value of the setting.
    """
    if isinstance(given, CapturePlan):
        return given
    values: dict[str, Any] = {}
    for part in (part.strip() for part in str(given).split(",") if part.strip()):
        key, _, value = (word.strip() for word in part.partition("="))
        if key == "outlier":
            if value:
                raise SettingsError(f"has {part!r}, but outlier takes no value; {EXAMPLE}")
            values[key] = True
        elif key not in _READ:
            known = ", ".join(["outlier", *_READ])
            raise SettingsError(f"has {part!r}, which is none of {known}; {EXAMPLE}")
        else:
            read = _READ[key](part, value)
            values[key] = (*values.get(key, ()), read) if key == "steps" else read
    if not values:
        raise SettingsError(f"says nothing about when to record; {EXAMPLE}")
    return CapturePlan(**values)


def _range(part: str, value: str) -> tuple[int, int]:
    first, _, last = value.partition("-")
    try:
        steps = int(first), int(last or first)
    except ValueError:
        steps = (0, 0)
    if not FIRST_STEP <= steps[0] <= steps[1]:
        raise SettingsError(
            f"has {part!r}, which is not a first and last step from {FIRST_STEP} on (steps are counted from 1, and the "
            f"first is over before anything can begin); {EXAMPLE}"
        )
    return steps


def _count(part: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise SettingsError(f"has {part!r}, which is not a positive integer; {EXAMPLE}")
    return int(value)


def _amount(part: str, value: str) -> float:
    try:
        amount = float(value)
    except ValueError:
        amount = -1.0
    if not 0 < amount < float("inf"):
        raise SettingsError(f"has {part!r}, which is not a positive number; {EXAMPLE}")
    return amount


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "steps": _range,
    "every": _count,
    "length": _count,
    "windows": _count,
    "seconds": _amount,
    "megabytes": _amount,
    "memory_gib": _amount,
}
