"""Every setting, its variable, its default, and what it may be; the one reader of the environment."""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from training_profiler.errors import SettingsError
from training_profiler.switch import PREFIX, ROOT, SWITCH

FORMATS: Final = ("table", "lines")
MOST_SAMPLE_HZ: Final = 1000  # a look takes 0.1 ms
MOST_NAMES: Final = 4000  # each name costs 15 kB of histogram, in four sums
STREAMS: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session works with."""

    log_every: int = 50
    """Steps between periodic reports."""
    format: str = "table"
    """Layout of the reports: table, or lines to grep."""
    dir: str = "runs"
    """Folder in which each run makes a folder of its own."""
    stream: str = "stdout"
    """Where reports are printed: stdout or stderr."""
    warmup: int | None = None
    """First steps left out of averages; None tells them apart by their length, in step averages alone."""
    flush_s: float = 10.0
    """Longest time between two writes to the journal, in s."""
    max_names: int = 500
    """Section names that get a row of their own; the rest share one."""
    sample_hz: int = 50
    """How often a second the line sampler looks at the training thread; 0 for never."""
    rank: int = 0
    """This process's number in a distributed training; only rank 0 reports."""


def _count(given: object, least: int, what: str, example: object, most: int | None = None) -> int:
    try:
        number = int(str(given).strip()) if not isinstance(given, bool) else None
    except ValueError:
        number = None
    if number is None or number < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise SettingsError(f"is not {kind} ({what}); example: {example}")
    if most is not None and number > most:
        raise SettingsError(f"is more than {most} ({what}); example: {example}")
    return number


def _seconds(given: object) -> float:
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise SettingsError("is not a positive number of seconds (between writes to the journal); example: 10")
    return seconds


def _word(given: object, words: tuple[str, ...]) -> str:
    word = str(given).strip().lower()
    if word not in words:
        raise SettingsError(f"is not one of {', '.join(words)}; example: {words[0]}")
    return word


def _folder(given: object) -> str:
    try:
        folder = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        folder = None
    if not isinstance(folder, str) or not folder.strip() or "\0" in folder:
        raise SettingsError("is not the path of a folder (where runs are kept); example: runs")
    return folder


def _warmup(given: object) -> int | None:
    if given is None or str(given).strip().lower() == "auto":
        return None
    return _count(given, 0, "first steps left out of averages, or auto", 3)


_CHECKS: Final[Mapping[str, Callable[[object], Any]]] = {
    "log_every": lambda given: _count(given, 1, "steps between reports", 50),
    "format": lambda given: _word(given, FORMATS),
    "dir": _folder,
    "stream": lambda given: _word(given, STREAMS),
    "warmup": _warmup,
    "flush_s": _seconds,
    "max_names": lambda given: _count(given, 1, "section names with a row of their own", 500, most=MOST_NAMES),
    "sample_hz": lambda given: _count(given, 0, "samples of the line that runs, a second", 50, most=MOST_SAMPLE_HZ),
}


def read_settings(arguments: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings: an argument wins over its variable, a variable over the default.

    Raises:
        SettingsError: a value cannot be used, or an argument has no such name.
    """
    arguments = {name: value for name, value in (arguments or {}).items() if value is not None}
    values: dict[str, Any] = {"rank": _rank(environ)}
    for name in arguments:
        if name not in _CHECKS:
            raise SettingsError(f"start_training_profiling({name}=...) is no setting{_nearest(name, list(_CHECKS))}")
    for name, check in _CHECKS.items():
        variable = PREFIX + name.upper()
        if name in arguments:
            values[name] = _checked(f"start_training_profiling({name}={arguments[name]!r})", check, arguments[name])
        elif environ.get(variable, "").strip():
            values[name] = _checked(f"{variable}={environ[variable]!r}", check, environ[variable])
    return Settings(**values)


def _checked(what: str, check: Callable[[object], Any], given: object) -> Any:
    try:
        return check(given)
    except SettingsError as error:
        raise SettingsError(f"{what} {error}") from None


def _rank(environ: Mapping[str, str]) -> int:
    rank = environ.get("RANK", "0")
    return int(rank) if rank.isdecimal() else 0


def variables() -> list[str]:
    """Return the names of all variables the profiler reads."""
    return [SWITCH, *(PREFIX + field.name.upper() for field in fields(Settings) if field.name in _CHECKS)]


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return one sentence for each variable with our prefix that no setting reads."""
    known = variables()
    return [
        f"{name} is no setting of the profiler and has no effect{_nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith(SWITCH) and name not in known and name != ROOT
    ]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; did you mean {close[0]}?" if close else ""


def launch_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what all processes of this launch have in common; None where the bootstrap is not at work."""
    return environ.get(ROOT, "").partition(":")[2] or None
