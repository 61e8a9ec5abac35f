"""The whole page: a pure function of a run's stats and series."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

from training_profiler.diagnosis import Finding
from training_profiler.page import tables
from training_profiler.page.charts import chart_data
from training_profiler.page.findings import Excerpt, findings_part, verdict_part
from training_profiler.page.flame import flame
from training_profiler.page.html import Html, element, joined, part, text
from training_profiler.reports.stacks import stacks_of
from training_profiler.snapshot.series import RankSeries
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.text import printable_data
from training_profiler.units import duration_text, ms_number

_SLOT: Final = re.compile(r"\{\{(\w+)\}\}")
_UNSAFE: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from; unknown texts are empty."""

    program: str = ""
    folder: str = ""  # as it can be typed in a command
    began: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    captures: Sequence[str] = ()  # files of captures, below the run folder


def render_page(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    ranks: Sequence[RankSeries],
    origin: Origin,
    sources: Mapping[tuple[str, int], Excerpt],
) -> str:
    """Return the page as one HTML document that loads nothing."""
    body = joined(
        [
            verdict_part(snapshot, findings),
            _figures(snapshot),
            findings_part(snapshot, findings, sources),
            _steps(snapshot),
            tables.sections_part(snapshot),
            _flame(ranks),
            tables.lines_part(snapshot),
            tables.epochs_part(snapshot),
            tables.loaders_part(snapshot),
            tables.machine_part(snapshot),
            tables.ranks_part(snapshot),
            tables.captures_part(origin.captures, origin.folder),
            tables.checklist_part(snapshot),
            tables.health_part(snapshot),
            _about(origin),
        ]
    )
    scripts = [_file("vendor/uPlot.iife.min.js"), _file("page.js")]
    links = [element("a", title, href=f"#{id}") for id, title in re.findall(r'<h2 id="(\w+)-title">([^<]*)</h2>', body)]
    slots = {
        "title": text(origin.program or "Training"),
        "subtitle": text(_subtitle(snapshot, origin)),
        "policy": Html(" ".join(f"'sha256-{_digest(script)}'" for script in scripts)),
        "style": Html(_file("vendor/uPlot.min.css") + _file("page.css")),
        "links": joined(Html(link) for link in links),
        "body": body,
        "data": Html(_json(chart_data(ranks, snapshot.step))),
        "charts": Html(scripts[0]),
        "script": Html(scripts[1]),
        "license": Html(_file("vendor/uPlot.LICENSE").replace("--", "- -")),
    }
    return _SLOT.sub(lambda slot: slots[slot[1]], _file("page.html"))


def _subtitle(snapshot: Snapshot, origin: Origin) -> str:
    counts = [f"{snapshot.steps} steps", duration_text(snapshot.wall_s)]
    if snapshot.ranks is not None:
        counts.insert(0, f"{snapshot.ranks.world_size} ranks")
    ended = [f"ended by {snapshot.ended_by}"] if snapshot.ended_by else []
    return " · ".join([*filter(None, [origin.began]), *counts, *ended])


def _figures(snapshot: Snapshot) -> Html:
    """Return the figures that a reader looks for first."""
    step, rates = snapshot.step, snapshot.throughput
    figures: list[tuple[str, str]] = []
    if step is not None and step.settled_count:
        figures.append(("mean step", f"{ms_number(step.avg_s)} ms"))
        figures.append(("median", f"{ms_number(step.median_s)} ms"))
        if step.p95_s is not None:
            figures.append(("95th percentile", f"{ms_number(step.p95_s)} ms"))
        figures.append((f"longest, step {step.max_step}", f"{ms_number(step.max_s)} ms"))
    if rates is not None:
        figures.append(("steps a second", f"{rates.steps_per_s:.3g}"))
        if rates.samples_per_s is not None:
            figures.append(("samples a second", f"{rates.samples_per_s:.4g}"))
        if rates.tokens_per_s is not None:
            figures.append(("tokens a second", f"{rates.tokens_per_s:.4g}"))
        if rates.mfu is not None:
            figures.append(("MFU", f"{rates.mfu:.1%}"))
    boxes = [element("div", element("dt", name), element("dd", value)) for name, value in figures]
    return element("dl", *boxes, class_="figures") if boxes else Html("")


def _steps(snapshot: Snapshot) -> Html:
    if not snapshot.steps:
        return Html("")
    return part("steps", "Steps", Html(_file("steps.html")))


def _flame(ranks: Sequence[RankSeries]) -> Html:
    boxes = flame(stacks_of(ranks[0])) if ranks else Html("")
    if not boxes:
        return Html("")
    note = element(
        "p",
        "Samples of the training thread: sections, the line of your code, and what it called in a library. "
        "A click shows one box at full width. Frames of a library that your code did not call are not shown.",
        class_="note",
    )
    return part("flame", "Where in the code", note, Html(_file("flame.html")), boxes)


def _about(origin: Origin) -> Html:
    rows = [("command", origin.command), ("run folder", origin.folder), *origin.versions.items()]
    items = [element("div", element("dt", name), element("dd", value)) for name, value in rows if value]
    return part("about", "This run", element("dl", *items, class_="about")) if items else Html("")


def _json(data: dict[str, Any]) -> str:
    """Return data as JSON in which no text can end the script that it stands in."""
    return json.dumps(printable_data(data), allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _file(name: str) -> str:
    """Return a file beside this one."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
