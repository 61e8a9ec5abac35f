"""What differs between two runs: facts such as settings and versions, and the lines of a section."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from training_profiler.base.text import printable
from training_profiler.model.snapshot import LineStats, Snapshot

_META: Final = ("command", "folder", "python", "platform", "cpus", "host", "versions", "git")
# They differ between any two runs, follow from others, or only say how long a run is.
_NOT_SETTINGS: Final = ("launch", "rank", "dir", "name", "for_", "stop_when_sure")
_MACHINE: Final = ("cores", "allowed_cores", "host_cores", "local_ranks", "ram_host_total_bytes", "ram_limit_bytes")
_THROUGHPUT: Final = ("flops_per_step", "dtype", "device", "attention")
_LOADER: Final = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "is_remade")
_PROGRAM: Final = ("optimizer", "autocast")
_UNKNOWN: Final[tuple[Any, ...]] = (None, "", [], {})
CLEARLY: Final = 3.0  # standard errors of the number of samples
OF_SECTION: Final = 0.3  # part of the section's difference that one function has to explain


class Differing(NamedTuple):
    """A fact that is not the same in both runs; None is unknown."""

    what: str
    before: str | None
    after: str | None


def differing(
    before: tuple[Mapping[str, Any], Mapping[str, Any]], after: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> list[Differing]:
    """Return the facts that differ; each run is its meta.json and the data of its report."""
    old, new = dict(_facts(*before)), dict(_facts(*after))
    keys = [*old, *(key for key in new if key not in old)]
    return [Differing(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _facts(meta: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _META:
        yield from _flat(key, meta.get(key))
    for key, value in _mapping(meta.get("settings")).items():
        if key not in _NOT_SETTINGS:
            yield from _flat(f"settings.{key}", value)
    attempts = meta.get("attempts")
    if isinstance(attempts, list) and attempts:
        yield from _flat("ranks", _mapping(attempts[-1]).get("world_size"))
    for part, names in (("machine", _MACHINE), ("throughput", _THROUGHPUT), ("program", _PROGRAM)):
        for name in names:
            yield from _flat(f"{part}.{name}", _mapping(report.get(part)).get(name))
    for gpu in _mapping(report.get("machine")).get("gpus") or ():
        yield from _flat(f"gpu {gpu.get('index')}", gpu.get("name"))
    for loader in report.get("loaders") or ():
        for name in _LOADER:
            yield from _flat(f"loader {loader.get('name')} ({loader.get('phase')}) {name}", loader.get(name))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(f"{key}.{name}", item)
    elif value not in _UNKNOWN:
        yield printable(key), printable(f"{value:.6g}" if isinstance(value, float) else str(value), 1_000)


@dataclass(frozen=True, slots=True)
class LineDifference:
    """A function, its hottest line in the run that spends more time there, and the difference per step."""

    file: str
    line: int
    function: str
    seconds: float


class _Place:
    """Time of a function per step, and the variance of that by the number of its samples."""

    def __init__(self) -> None:
        self.seconds = self.variance = 0.0
        self.hottest: LineStats | None = None

    def add(self, line: LineStats, seconds: float) -> None:
        """Add a line of the function; the lines come hottest first."""
        self.seconds += seconds
        self.variance += seconds**2 / max(1, line.samples)
        self.hottest = self.hottest or line


def line_of(before: Snapshot, after: Snapshot, section: str, seconds: float) -> LineDifference | None:
    """Return the function with most of a section's difference of ``seconds``; None if the samples show none."""
    old, new = (_places(run, section) for run in (before, after))
    sign = 1 if seconds > 0 else -1
    best: LineDifference | None = None
    for key in old.keys() | new.keys():
        was, now = old.get(key, _Place()), new.get(key, _Place())
        difference = now.seconds - was.seconds
        hottest = (now if sign > 0 else was).hottest
        is_clear = sign * difference >= max(CLEARLY * sqrt(was.variance + now.variance), OF_SECTION * abs(seconds))
        if hottest is not None and is_clear and (best is None or abs(difference) > abs(best.seconds)):
            best = LineDifference(hottest.file, hottest.line, hottest.function, difference)
    return best


def _places(run: Snapshot, section: str) -> dict[tuple[Sequence[str], str], _Place]:
    """Return the functions of a section: by the end of their path, because checkouts lie in different folders."""
    places: dict[tuple[Sequence[str], str], _Place] = {}
    for line in run.lines.get(section, ()):
        place = places.setdefault((PurePath(line.file).parts[-2:], line.function), _Place())
        place.add(line, line.share * run.wall_s / max(1, run.steps))
    return places
