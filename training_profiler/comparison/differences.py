"""What else differs between two runs: command, settings, code, versions, machine, loaders, optimizer."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from training_profiler.base.text import printable

_META: Final = ("command", "folder", "python", "platform", "cpus", "host", "versions", "git")
# They differ between any two runs, or follow from others.
_NOT_SETTINGS: Final = ("launch", "rank", "dir", "name")
_MACHINE: Final = ("cores", "allowed_cores", "host_cores", "local_ranks", "ram_host_total_bytes", "ram_limit_bytes")
_THROUGHPUT: Final = ("flops_per_step", "dtype", "device", "attention")
_LOADER: Final = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "is_remade")
_PROGRAM: Final = ("optimizer", "autocast")
_UNKNOWN: Final[tuple[Any, ...]] = (None, "", [], {})


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
