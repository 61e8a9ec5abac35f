"""The data contract: ``report.json`` and ``training-profiler report RUN --json``.

``SCHEMA`` changes when a key is removed or changes its meaning. New keys may come at any time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from training_profiler.base.text import printable_data
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.pauses import pauses
from training_profiler.reports.checklist import checklist
from training_profiler.reports.verdict import verdict
from training_profiler.snapshot.snapshot import (
    AllRanksStats,
    EpochStats,
    LineStats,
    Price,
    SectionStats,
    Snapshot,
    StartupStats,
)
from training_profiler.tables.sections import LINES_IN_WORKERS

SCHEMA: Final = 1
LINES_A_SECTION: Final = 10


def as_data(snapshot: Snapshot, findings: Iterable[Finding], trials: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the final report as plain data; seconds are floats, shares 0 to 1, unknown figures None.

    ``trials`` are the results of the changes that were tried on the run, as plain data.
    """
    data: dict[str, Any] = printable_data({**_data(snapshot, findings), "trials": trials})
    return data


def _data(snapshot: Snapshot, findings: Iterable[Finding]) -> dict[str, Any]:
    step = snapshot.step
    findings = tuple(findings)
    return {
        "schema": SCHEMA,
        "verdict": verdict(snapshot, findings).headline,
        "steps": snapshot.steps,
        "wall_s": snapshot.wall_s,
        "sections": {
            section.name: _section(section)
            for section in sorted(snapshot.sections.values(), key=lambda section: -section.self_s)
        },
        "lines": {
            name: [_line(line) for line in lines[:LINES_A_SECTION]]
            for name, lines in (*sorted(snapshot.lines.items()), *_worker_lines(snapshot))
        },
        "phases": dict(snapshot.phases),
        "making": dict(snapshot.making),
        "unseen": [asdict(wait) for wait in snapshot.unseen],
        "startup": None if snapshot.startup is None else _startup(snapshot.startup),
        "step_time": None if step is None else asdict(step),
        "epochs": [_epoch(epoch) for epoch in snapshot.epochs],
        "device": None if snapshot.device is None else asdict(snapshot.device),
        "loaders": [asdict(loader) for loader in snapshot.loaders],
        "calls": _calls(snapshot),
        "throughput": None if snapshot.throughput is None else asdict(snapshot.throughput),
        "machine": None if snapshot.machine is None else asdict(snapshot.machine),
        "memory_changes": [asdict(change) for change in snapshot.memory_changes],
        "garbage": None if snapshot.garbage is None else asdict(snapshot.garbage),
        "pauses": [asdict(pause) for pause in pauses(snapshot)],
        "ranks": None if snapshot.ranks is None else _ranks(snapshot.ranks),
        "exchange": None if snapshot.exchange is None else asdict(snapshot.exchange),
        "attempts": [asdict(attempt) for attempt in snapshot.attempts],
        "insights": [_insight(snapshot, finding) for finding in findings],
        "cost": None if snapshot.price is None else _run_cost(snapshot, snapshot.price),
        "checklist": [check._asdict() for check in checklist(snapshot)],
        "health": {
            "dropped": snapshot.health.dropped,
            "disabled": list(snapshot.health.disabled),
            "overhead_s": snapshot.health.overhead_s,
            "span_s": snapshot.health.span_s,
            "notes": list(snapshot.health.notes),
        },
        "open_sections": list(snapshot.open_sections),
        "ended_by": snapshot.ended_by,
    }


def _insight(snapshot: Snapshot, finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "finding": finding.message,
        "evidence": dict(finding.evidence),
        "worth_s": finding.potential_saving_s,
        "worth_share": finding.potential_saving_s / snapshot.wall_s if snapshot.wall_s else None,
        "worth_range_s": finding.saving_range_s,
        "worth_cost": _cost(snapshot, finding.potential_saving_s),
        "step_s": finding.step_s,
        "step_if_gone_s": finding.step_if_gone_s,
        "remedy": finding.fix,
        "losses": finding.losses,
        "tried": finding.tried,
    }


def _cost(snapshot: Snapshot, seconds: float) -> float | None:
    """Return what all accelerators cost for this time; None without a price or without accelerators."""
    devices = snapshot.device_count
    return None if snapshot.price is None or devices is None else snapshot.price.amount_of(seconds, devices)


def _run_cost(snapshot: Snapshot, price: Price) -> dict[str, Any]:
    return {
        "gpu_hour_price": price.amount,
        "currency": price.currency,
        "devices": snapshot.device_count,
        "total": _cost(snapshot, snapshot.wall_s),
    }


def _ranks(ranks: AllRanksStats) -> dict[str, Any]:
    """Return the stats of all ranks; a section's slowest rank is only a number, because there are many sections."""
    sections = [{**asdict(spread), "slowest": spread.slowest.rank} for spread in ranks.sections]
    return {**asdict(ranks), "sections": sections}


def _section(section: SectionStats) -> dict[str, Any]:
    return {key: value for key, value in asdict(section).items() if key != "name"}


def _line(line: LineStats) -> dict[str, Any]:
    return {key: value for key, value in asdict(line).items() if key not in ("lines", "parts")}


def _calls(snapshot: Snapshot) -> list[dict[str, Any]]:
    rows = []
    for call in snapshot.program.calls:
        site = {key: value for key, value in call.site._asdict().items() if key != "column"}
        rows.append({"kind": call.kind, "function": call.function, **site, "arguments": dict(call.arguments)})
    return rows


def _worker_lines(snapshot: Snapshot) -> list[tuple[str, Sequence[LineStats]]]:
    """Return the lines in the workers of loaders in the form of the others; shares are of the workers' work."""
    lines = [
        LineStats(line.file, line.line, line.function, line.share, line.samples, inside=line.inside, phase=line.phase)
        for line in snapshot.lines_in_workers()
    ]
    return [(LINES_IN_WORKERS, lines)] if lines else []


def _startup(startup: StartupStats) -> dict[str, Any]:
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
    rate = {} if not epoch.wall_s else {"batches_per_s": (epoch.batches or 0) / epoch.wall_s}
    return {**asdict(epoch), **(rate if epoch.batches else {})}
