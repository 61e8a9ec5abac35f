"""The data contract: ``report.json`` and ``training-profiler report RUN --json``.

``SCHEMA`` changes when a key is removed or changes its meaning. New keys may come at any time. docs/reference.py writes
the JSON schema of all keys, ``report.schema.json``, from the classes of the figures.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from importlib.resources import files
from typing import Any, Final

from training_profiler.base.sections import LINES_IN_WORKERS
from training_profiler.base.text import printable_data
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.finding import losses_text
from training_profiler.diagnosis.pauses import pauses
from training_profiler.model.snapshot import AllRanksStats, EpochStats, LineStats, Snapshot
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
    "memory_changes", "garbage", "gradient_sync", "attempts", "health", "open_sections", "ended_by",
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


def report_schema() -> str:
    """Return the JSON schema of a report, as text. Any version may add keys, so it allows others."""
    return files(__package__).joinpath("report.schema.json").read_text(encoding="utf-8")
