"""The whole page: a pure function of a run's stats and series."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from training_profiler.base.units import duration_text, ms_number, three_digits
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.device import host_runs_ahead
from training_profiler.page import tables
from training_profiler.page.charts import chart_data
from training_profiler.page.document import document, part_file
from training_profiler.page.findings import Excerpt, findings_part, verdict_part
from training_profiler.page.html import Html, element, joined, part
from training_profiler.page.recorded import has_device
from training_profiler.reports.loaders import loader_name
from training_profiler.reports.stacks import Stack, stacks_of, worker_stacks
from training_profiler.snapshot.series import RankSeries
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot

SHOWN_FROM: Final = 0.002  # of all samples
MOST_DEPTH: Final = 30


def flame(stacks: Counter[Stack], label: str = "Flame view of the line samples") -> Html:
    """Return the boxes; nothing without samples. A screen reader reads the label."""
    whole = stacks.total()
    if not whole:
        return Html("")
    boxes = _boxes(stacks, 0, whole)
    return element("div", boxes, class_="flame", role="group", aria_label=label)


def _boxes(stacks: Counter[Stack], depth: int, whole: int) -> Html:
    """Return the boxes of all frames at ``depth``, the widest first, and the room of what is too small."""
    by_frame: dict[str, Counter[Stack]] = {}
    for stack, samples in stacks.items():
        if len(stack) > depth:
            by_frame.setdefault(stack[depth], Counter())[stack] += samples
    sizes = {frame: inner.total() for frame, inner in by_frame.items()}
    shown = [
        frame for frame in sorted(sizes, key=lambda frame: (-sizes[frame], frame)) if sizes[frame] >= SHOWN_FROM * whole
    ]
    boxes = [_box(frame, by_frame[frame], depth, whole) for frame in shown]
    room = stacks.total() - sum(sizes[frame] for frame in shown)
    if room and boxes:
        boxes.append(element("div", class_="room", style=f"flex-grow:{room}"))
    return joined(boxes)


def _box(frame: str, inner: Counter[Stack], depth: int, whole: int) -> Html:
    samples = inner.total()
    label = f"{frame}: {samples} of {whole} samples, {samples / whole:.1%}"
    button = element("button", frame, type="button", title=label, aria_label=label)
    below = _boxes(inner, depth + 1, whole) if depth < MOST_DEPTH else Html("")
    inside = element("div", below, class_="row") if below else Html("")
    return element("div", button, inside, class_="box", style=f"flex-grow:{samples}")


DEVICE_NOTE: Final = (
    "On the lane of a device, a section lasts from when the device reached its begin until it reached its end, at the "
    "earliest at which that can have been: a device that is far behind the host all the time may be later. Sections "
    "whose time on the device is unknown are left out."
)
AHEAD_NOTE: Final = (
    "The host runs ahead of its device: most steps only queue work for it, and a long one waits until what was queued "
    "before is done. The pace of this training is the mean."
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from; unknown texts are empty."""

    program: str = ""
    folder: str = ""  # as it can be typed in a command
    began: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    captures: Mapping[str, str] = field(default_factory=dict)  # traces below the run folder, with their analysis or ""


def render_page(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    ranks: Sequence[RankSeries],
    origin: Origin,
    sources: Mapping[tuple[str, int], Excerpt],
    missing: Mapping[str, str] | None = None,
) -> str:
    """Return the page as one HTML document that loads nothing.

    Args:
        snapshot: the figures of the run.
        findings: about it.
        ranks: what each rank has over time.
        origin: where the run comes from.
        sources: lines of source code by file and line.
        missing: why other files have none.
    """
    body = joined(
        [
            verdict_part(snapshot, findings),
            _figures(snapshot),
            findings_part(snapshot, findings, sources, missing or {}),
            _steps(snapshot),
            _recorded(ranks),
            tables.sections_part(snapshot),
            _flame(snapshot, ranks),
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
    return document(origin.program or "Training", _subtitle(snapshot, origin), body, chart_data(ranks, snapshot.step))


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
        longest = "longest after warm-up" if step.warmup_count else "longest"
        figures.append((f"{longest}, step {step.max_step}", f"{ms_number(step.max_s)} ms"))
    if rates is not None:
        figures.append(("steps a second", three_digits(rates.steps_per_s)))
        if rates.samples_per_s is not None:
            figures.append(("samples a second", three_digits(rates.samples_per_s)))
        if rates.tokens_per_s is not None:
            figures.append(("tokens a second", three_digits(rates.tokens_per_s)))
        if rates.mfu is not None:
            figures.append(("MFU", f"{rates.mfu:.1%}"))
    boxes = [element("div", element("dt", name), element("dd", value)) for name, value in figures]
    return element("dl", *boxes, class_="figures") if boxes else Html("")


def _steps(snapshot: Snapshot) -> Html:
    if not snapshot.steps:
        return Html("")
    note = element("p", AHEAD_NOTE, class_="note") if host_runs_ahead(snapshot) else ""
    return part("steps", "Steps", Html(part_file("steps.html")), note)


def _recorded(ranks: Sequence[RankSeries]) -> Html:
    if not ranks or not ranks[0].recorded:
        return Html("")
    note = element("p", DEVICE_NOTE, class_="note") if any(map(has_device, ranks[0].recorded)) else ""
    return part("recorded", "Steps span by span", Html(part_file("recorded.html")), note)


def _flame(snapshot: Snapshot, ranks: Sequence[RankSeries]) -> Html:
    boxes = flame(stacks_of(ranks[0])) if ranks else Html("")
    of_workers = joined(_worker_flame(loader) for loader in snapshot.loaders)
    if not boxes and not of_workers:
        return Html("")
    note = element(
        "p",
        "Samples of the training thread: sections, the line of your code, and what it called in a library; below "
        "them, where known, those of the loaders' workers, by what they do. "
        "A click shows one box at full width. Frames of a library that your code did not call are not shown.",
        class_="note",
    )
    return part("flame", "Where in the code", note, Html(part_file("flame.html")), boxes, of_workers)


def _worker_flame(loader: LoaderStats) -> Html:
    """Return what the worker processes of a loader did, as boxes; nothing where that is unknown."""
    title = f"Workers of loader {loader_name(loader)}"
    boxes = flame(worker_stacks(loader.workers), title) if loader.workers is not None else Html("")
    return joined([element("h3", title), boxes]) if boxes else Html("")


def _about(origin: Origin) -> Html:
    rows = [("command", origin.command), ("run folder", origin.folder), *origin.versions.items()]
    items = [element("div", element("dt", name), element("dd", value)) for name, value in rows if value]
    return part("about", "This run", element("dl", *items, class_="about")) if items else Html("")
