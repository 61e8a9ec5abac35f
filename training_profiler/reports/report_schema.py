"""The JSON schema of ``report.json``, made from the classes that its figures come from."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from training_profiler.findings.finding import Check
from training_profiler.reports.report_json import SCHEMA
from training_profiler.snapshot.machine import Pause
from training_profiler.snapshot.snapshot import (
    AllRanksStats,
    AttemptStats,
    DeviceTimingStats,
    EpochStats,
    GarbageStats,
    GradientSyncStats,
    Health,
    LineStats,
    LoaderStats,
    MachineStats,
    MemoryChange,
    SectionStats,
    StepStats,
    Throughput,
    UnseenWait,
)

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": ["number", "null"]}  # NaN and infinity become null


def report_schema(trials: type) -> Schema:
    """Return the schema. Keys may be added in any version, so other keys are allowed everywhere.

    ``trials`` is the class of the results of changes that were tried.
    """
    properties = {
        "schema": {"const": SCHEMA},
        "verdict": _TEXT,
        "steps": _COUNT,
        "wall_s": _NUMBER,
        "sections": _by_name(_object_of(SectionStats, without=("name",))),
        "lines": _by_name(_list_of(_object_of(LineStats, without=("lines", "parts")))),
        "phases": _by_name(_NUMBER),
        "making": _by_name(_NUMBER),
        "unseen": _list_of(_object_of(UnseenWait)),
        "startup": _or_null(_startup()),
        "step_time": _or_null(_object_of(StepStats)),
        "epochs": _list_of(_with(_object_of(EpochStats), batches_per_s=_NUMBER)),
        "device": _or_null(_object_of(DeviceTimingStats)),
        "loaders": _list_of(_object_of(LoaderStats)),
        "calls": _list_of(_call()),
        "throughput": _or_null(_object_of(Throughput)),
        "machine": _or_null(_object_of(MachineStats)),
        "memory_changes": _list_of(_object_of(MemoryChange)),
        "garbage": _or_null(_object_of(GarbageStats)),
        "pauses": _list_of(_object_of(Pause)),
        "ranks": _or_null(_ranks()),
        "exchange": _or_null(_object_of(GradientSyncStats)),
        "attempts": _list_of(_object_of(AttemptStats)),
        "insights": _list_of(_insight()),
        "checklist": _list_of(_object_of(Check)),
        "cost": _or_null(
            _object({"gpu_hour_price": _NUMBER, "currency": _TEXT, "devices": _or_null(_COUNT), "total": _NUMBER})
        ),
        "health": _object_of(Health),
        "open_sections": _list_of(_TEXT),
        "ended_by": _or_null(_TEXT),
        "trials": _or_null(_object_of(trials)),
    }
    return {"$schema": DIALECT, "title": "report.json of training_profiler", **_object(properties)}


def _startup() -> Schema:
    line = _object({"place": _TEXT, "seconds": _NUMBER})
    part = _object({"name": _TEXT, "seconds": _NUMBER, "share": _NUMBER, "lines": _list_of(line)})
    return _object({"total_s": _NUMBER, "has_steps": {"type": "boolean"}, "parts": _list_of(part)})


def _call() -> Schema:
    texts = dict.fromkeys(("kind", "function", "file", "path", "inside"), _TEXT)
    return _object({**texts, "line": _COUNT, "arguments": _by_name(_TEXT)})


def _insight() -> Schema:
    numbers = ("worth_s", "worth_share", "worth_cost", "step_s", "step_if_gone_s")
    texts = dict.fromkeys(("code", "finding", "remedy", "losses", "tried"), _TEXT)
    pair = {"type": ["array", "null"], "items": _NUMBER}
    return _object({**texts, **dict.fromkeys(numbers, _NUMBER), "worth_range_s": pair, "evidence": {"type": "object"}})


def _ranks() -> Schema:
    ranks = _object_of(AllRanksStats)
    # A section's slowest rank is only its number there.
    _properties(_properties(ranks)["sections"]["items"])["slowest"] = _COUNT
    return ranks


def _properties(schema: Schema) -> Schema:
    properties: Schema = schema["properties"]
    return properties


def _object_of(kind: Any, without: tuple[str, ...] = ()) -> Schema:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    return _object({name: _schema_of(hints[name]) for name in names if name not in without})


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _with(schema: Schema, **more: Schema) -> Schema:
    """Return the schema of an object that may have more keys."""
    return {**schema, "properties": {**schema["properties"], **more}}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _by_name(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_PLAIN: Final[dict[Any, Schema]] = {
    bool: {"type": "boolean"},
    int: _COUNT,
    float: _NUMBER,
    str: _TEXT,
    Any: {},
}


def _schema_of(kind: Any) -> Schema:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        kinds = [each for each in arguments if each is not NoneType]
        inner = _schema_of(kinds[0]) if len(kinds) == 1 else {"anyOf": [_schema_of(each) for each in kinds]}
        return inner if inner == _NUMBER else _or_null(inner)
    if origin is not None and issubclass(origin, Mapping):
        return _by_name(_schema_of(arguments[1]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _list_of(_schema_of(arguments[0]))
    if is_dataclass(kind):
        return _object_of(kind)
    if origin is tuple or issubclass(kind, tuple):  # JSON has lists for named tuples
        return {"type": "array"}
    raise TypeError(f"{kind} has no form in JSON here")
