"""The data contract: ``report.json`` and ``training-profiler report RUN --json``, and its JSON schema.

``SCHEMA`` changes when a key is removed or changes its meaning. New keys may come at any time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from training_profiler.base.sections import LINES_IN_WORKERS
from training_profiler.base.text import printable_data
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.finding import Check, losses_text
from training_profiler.diagnosis.pauses import goodput, pauses
from training_profiler.model.program import CompileFacts, CompileReason
from training_profiler.model.snapshot import AllRanksStats, EpochStats, LineStats, Pause, SectionStats, Snapshot
from training_profiler.reports.answer import action_text
from training_profiler.reports.verdict import checklist, saved_share, verdict

SCHEMA: Final = 2
# The line that a program which reads schema 1 meets beside the number; docs/reference/json.md has every key.
SCHEMA_CHANGES: Final = (
    "schema 2 renames keys of schema 1: insights to findings, worth_s to saving_s, remedy to fix, making to "
    "batch_parts, unseen to unsampled_waits, exchange to gradient_sync; the rest is in docs/reference/json.md"
)
LINES_A_SECTION: Final = 10
AS_THEY_ARE: Final = (  # fields of a snapshot
    "steps", "wall_s", "phases", "batch_parts", "unsampled_waits", "device", "loaders", "throughput", "machine",
    "memory_changes", "garbage", "gradient_sync", "attempts", "health", "history", "open_sections", "ended_by",
)  # fmt: skip


def as_data(snapshot: Snapshot, findings: Iterable[Finding], trials: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the final report as plain data; seconds are floats, shares 0 to 1, unknown figures None.

    ``trials`` are the results of the changes that were tried on the run, as plain data.
    """
    findings = tuple(findings)
    sections = sorted(snapshot.sections.values(), key=lambda section: -section.self_s)
    data: dict[str, Any] = printable_data(
        {
            "schema": SCHEMA,
            "schema_changes": SCHEMA_CHANGES,
            "verdict": verdict(snapshot, findings).headline,
            "training_s": snapshot.training_s,
            "after_training_s": snapshot.after_training_s,
            "left_s": snapshot.left_s,
            "goodput": goodput(snapshot),
            "sections": {section.name: _without(asdict(section), "name") for section in sections},
            "lines": {
                name: [_without(asdict(line), "lines", "parts") for line in lines]
                for name, lines in _lines(snapshot).items()
            },
            "startup": _startup(snapshot),
            "step_time": _plain(snapshot.step),
            "epochs": [_epoch(epoch) for epoch in snapshot.epochs],
            "calls": [
                {
                    "kind": call.kind,
                    "function": call.function,
                    **_without(call.site._asdict(), "column"),
                    "arguments": dict(call.arguments),
                }
                for call in snapshot.program.calls
            ],
            "compilations": _compilations(snapshot.program.compiled),
            "pauses": _plain(pauses(snapshot)),
            "ranks": _ranks(snapshot.ranks),
            "findings": [_finding(snapshot, finding) for finding in findings],
            "cost": _run_cost(snapshot),
            "checklist": [check._asdict() for check in checklist(snapshot)],
            **{name: _plain(getattr(snapshot, name)) for name in AS_THEY_ARE},
            "trials": trials,
        }
    )
    return data


def _plain(value: Any) -> Any:
    """Return a record of figures, or several, as plain data; all else as it is."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _without(data: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


def _lines(snapshot: Snapshot) -> dict[str, list[LineStats]]:
    """Return the lines of each section, and those in the workers of loaders: shares are of the workers' work."""
    lines = {name: list(lines[:LINES_A_SECTION]) for name, lines in sorted(snapshot.lines.items())}
    in_workers = [
        LineStats(line.file, line.line, line.function, line.share, line.samples, inside=line.inside, phase=line.phase)
        for line in snapshot.lines_in_workers()[:LINES_A_SECTION]
    ]
    return lines | ({LINES_IN_WORKERS: in_workers} if in_workers else {})


def _startup(snapshot: Snapshot) -> dict[str, Any] | None:
    startup = snapshot.startup
    if startup is None:
        return None
    parts = [
        {
            "name": part.name,
            "seconds": part.seconds,
            "share": part.seconds / startup.total_s if startup.total_s else 0.0,
            "lines": [{"place": place, "seconds": seconds} for place, seconds in part.lines],
        }
        for part in startup.parts
    ]
    return {"total_s": startup.total_s, "has_steps": startup.has_steps, "parts": parts}


def _compilations(compiled: CompileFacts | None) -> dict[str, Any] | None:
    reasons = () if compiled is None else compiled.reasons
    return None if compiled is None else {**compiled._asdict(), "reasons": [each._asdict() for each in reasons]}


def _epoch(epoch: EpochStats) -> dict[str, Any]:
    rate = {"batches_per_s": epoch.batches / epoch.wall_s} if epoch.wall_s and epoch.batches else {}
    return {**asdict(epoch), **rate}


def _ranks(ranks: AllRanksStats | None) -> dict[str, Any] | None:
    """Return the stats of all ranks; a section's slowest rank is only a number, because there are many sections."""
    if ranks is None:
        return None
    return {**asdict(ranks), "sections": [{**asdict(each), "slowest": each.slowest.rank} for each in ranks.sections]}


def _finding(snapshot: Snapshot, finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "finding": finding.message,
        "evidence": finding.evidence,
        "saving_s": finding.potential_saving_s,
        "saving_share": saved_share(snapshot, finding),
        "saving_range_s": finding.saving_range_s,
        "saving_cost": _cost(snapshot, finding.potential_saving_s),
        "step_s": finding.step_s,
        "step_if_fixed_s": finding.step_if_fixed_s,
        "fix": finding.fix,
        "actions": [
            {
                "text": action_text(finding, action),
                "saving_s": action.part * finding.potential_saving_s,
                "saving_share": saved_share(snapshot, finding, action.part),
                "losses": losses_text(action.changes),
            }
            for action in finding.actions
        ],
        "losses": finding.losses,
        "tried": finding.tried,
    }


def _cost(snapshot: Snapshot, seconds: float) -> float | None:
    """Return what all accelerators cost for this time; None without a price or without accelerators."""
    devices = snapshot.device_count
    return None if snapshot.price is None or devices is None else snapshot.price.amount_of(seconds, devices)


def _run_cost(snapshot: Snapshot) -> dict[str, Any] | None:
    if snapshot.price is None:
        return None
    return {
        "gpu_hour_price": snapshot.price.amount,
        "currency": snapshot.price.currency,
        "devices": snapshot.device_count,
        "total": _cost(snapshot, snapshot.wall_s),
    }


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": ["number", "null"]}  # NaN and infinity become null
_SCHEMAS: Final[dict[Any, Schema]] = {bool: {"type": "boolean"}, int: _COUNT, float: _NUMBER, str: _TEXT, Any: {}}

_DEFINED: Final[dict[str, Schema]] = {}  # by the name of the class; those that are met so far


def report_schema(trials: type) -> Schema:
    """Return the schema, made from the classes of the figures. Any version may add keys, so others are allowed.

    ``trials`` is the class of the results of changes that were tried.
    """
    ranks, epoch = _object_of(AllRanksStats), _object_of(EpochStats)
    hints = {
        name: _schema_of(hint) for name, hint in get_type_hints(Snapshot).items() if name in (*AS_THEY_ARE, "step")
    }
    _DEFINED["SectionSpread"]["properties"]["slowest"] = _COUNT
    epoch["properties"]["batches_per_s"] = _NUMBER  # not of every epoch
    line = _object({"place": _TEXT, "seconds": _NUMBER})
    part = _object({"name": _TEXT, "seconds": _NUMBER, "share": _NUMBER, "lines": _list_of(line)})
    call = dict.fromkeys(("kind", "function", "file", "path", "inside"), _TEXT)
    texts = dict.fromkeys(("code", "finding", "fix", "losses", "tried"), _TEXT)
    numbers = dict.fromkeys(("saving_s", "saving_share", "saving_cost", "step_s", "step_if_fixed_s"), _NUMBER)
    action = _object({"text": _TEXT, "saving_s": _NUMBER, "saving_share": _or_null(_NUMBER), "losses": _TEXT})
    ranges = {"saving_range_s": {"type": ["array", "null"], "items": _NUMBER}, "evidence": {"type": "object"}}
    cost = {"gpu_hour_price": _NUMBER, "currency": _TEXT, "devices": _or_null(_COUNT), "total": _NUMBER}
    compiled = {**_object_of(CompileFacts)["properties"], "reasons": _list_of(_object_of(CompileReason))}
    properties = {
        "schema": {"const": SCHEMA},
        "schema_changes": _TEXT,
        "verdict": _TEXT,
        "training_s": _NUMBER,
        "after_training_s": _NUMBER,
        "left_s": _NUMBER,
        "goodput": _or_null(_by_name(_NUMBER)),
        "sections": _by_name(_object_of(SectionStats, "name")),
        "lines": _by_name(_list_of(_object_of(LineStats, "lines", "parts"))),
        "startup": _or_null(_object({"total_s": _NUMBER, "has_steps": _SCHEMAS[bool], "parts": _list_of(part)})),
        "step_time": hints["step"],
        "epochs": _list_of(epoch),
        "calls": _list_of(_object({**call, "line": _COUNT, "arguments": _by_name(_TEXT)})),
        "compilations": _or_null(_object(compiled)),
        "pauses": _schema_of(tuple[Pause, ...]),
        "ranks": _or_null(ranks),
        "findings": _list_of(_object({**texts, **numbers, **ranges, "actions": _list_of(action)})),
        "checklist": _list_of(_object_of(Check)),
        "cost": _or_null(_object(cost)),
        **{name: hints[name] for name in AS_THEY_ARE},
        "trials": _or_null(_object_of(trials)),
    }
    title = "report.json of training_profiler"
    return {"$schema": DIALECT, "title": title, **_object(properties), "$defs": dict(sorted(_DEFINED.items()))}


def _object_of(kind: Any, *without: str) -> Schema:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    return _object({name: _schema_of(hints[name]) for name in names if name not in without})


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _by_name(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _schema_of(kind: Any) -> Schema:
    if kind in _SCHEMAS:
        return _SCHEMAS[kind]
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
        name = str(getattr(kind, "__name__", ""))
        if name not in _DEFINED:
            _DEFINED[name] = _object_of(kind)
        return {"$ref": f"#/$defs/{name}"}
    if origin is tuple or issubclass(kind, tuple):  # JSON has lists for named tuples
        return {"type": "array"}
    raise TypeError(f"{kind} has no form in JSON here")
