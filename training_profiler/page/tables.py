"""The tables and lists of the page."""

import re
from collections.abc import Mapping

from training_profiler.base.units import MS_PER_S, duration_text, rounded
from training_profiler.page.html import Cell, Html, element, part, table, text
from training_profiler.recording.section_names import name_of
from training_profiler.reports.checklist import checklist
from training_profiler.reports.distribution import distribution
from training_profiler.reports.labels import table_label
from training_profiler.reports.machine import machine_lines
from training_profiler.snapshot.ranks import RankStats
from training_profiler.snapshot.snapshot import EpochStats, LineStats, LoaderStats, SectionStats, Snapshot

MOST_LINES = 200
MOST_EPOCHS = 500


def _ms(seconds: float | None) -> Cell:
    if seconds is None:
        return Cell("")
    return Cell(rounded(seconds * MS_PER_S, 3), seconds)


def _s(seconds: float | None) -> Cell:
    return Cell("") if seconds is None else Cell(duration_text(seconds), seconds)


def _count(number: float | None) -> Cell:
    return Cell("") if number is None else Cell(f"{number:g}" if isinstance(number, float) else str(number), number)


def _share(share: float | None) -> Cell:
    return Cell("") if share is None else Cell(f"{share:.1%}", share)


def _breakable(name: str) -> Html:
    """Return a name that is broken after a / or _ where there is little room."""
    parts = re.split(r"(?<=[/_])(?=[^/_])", name)
    return Html("<wbr>".join(map(text, parts)))


def sections_part(snapshot: Snapshot) -> Html:
    """Return all sections with their percentiles."""
    rows = [_section_row(snapshot, *row) for row in distribution(snapshot)]
    headers = ("section", "of the run", "self time", "count", "mean ms", "min ms", "p50", "p95", "p99", "max ms",
               "std ms", "longest at step")  # fmt: skip
    return part("sections", "Sections", table("Where the time goes, by section", headers, rows))


def _section_row(snapshot: Snapshot, depth: int, section: SectionStats, percent: float) -> list[object]:
    name = element("span", _breakable(table_label(section.name, snapshot.sections)), style=f"padding-left:{depth}em")
    times = (section.avg_s, section.min_s, section.p50_s, section.p95_s, section.p99_s, section.max_s, section.std_s)
    return [
        name,
        Cell(f"{percent:.1f}%", percent),
        _s(section.self_s),
        _count(section.count or None),
        *map(_ms, times),
        _count(section.max_step or None),
    ]


def lines_part(snapshot: Snapshot) -> Html:
    """Return the lines of the user's code with the most samples."""
    lines = [(name, line) for name, of_section in snapshot.lines.items() for line in of_section]
    lines.sort(key=lambda each: -each[1].share)
    rows = [_line_row(snapshot, name, line) for name, line in lines[:MOST_LINES]]
    return part("lines", "Lines of code", table("Sampled lines", ("line", "function", "section", "of the run"), rows))


def _line_row(snapshot: Snapshot, name: str, line: LineStats) -> list[object]:
    place = f"{line.place} (called by {line.caller})" if line.caller else line.place
    waits = f", of this {line.waiting_share:.1%} waits for the device" if line.waiting_share else ""
    return [element("code", place), line.what + waits, table_label(name, snapshot.sections), _share(line.share)]


def epochs_part(snapshot: Snapshot) -> Html:
    """Return the epochs."""
    headers = ("epoch", "time", "steps", "batches", "samples", "mean batch ms", "first fetch ms", "largest section")
    rows = [_epoch_row(epoch) for epoch in snapshot.epochs[:MOST_EPOCHS]]
    left_out = len(snapshot.epochs) - MOST_EPOCHS
    more = element("p", f"{left_out} more epochs are in report.json") if left_out > 0 else ""
    return part("epochs", "Epochs", table("Epochs", headers, rows), more) if rows else Html("")


def _epoch_row(epoch: EpochStats) -> list[object]:
    largest = max(epoch.self_s.items(), key=lambda each: each[1], default=("", 0.0))
    label = table_label(largest[0], epoch.self_s)
    share = f" {largest[1] / epoch.wall_s:.0%}" if epoch.wall_s and largest[0] else ""
    number = Cell(f"{epoch.number}{'' if epoch.is_complete else ' (not complete)'}", epoch.number)
    counts = (epoch.steps, epoch.batches, epoch.samples)
    times = (epoch.avg_batch_s, epoch.first_fetch_s)
    return [number, _s(epoch.wall_s), *map(_count, counts), *map(_ms, times), label + share]


def loaders_part(snapshot: Snapshot) -> Html:
    """Return the data loaders."""
    headers = ("loader", "phase", "batches", "samples", "waiting", "data ms", "forward ms", "backward ms",
               "optimizer ms", "workers", "pinned", "share")  # fmt: skip
    return part(
        "loaders", "Data loaders", table("Data loaders", headers, [_loader_row(row) for row in snapshot.loaders])
    )


def _loader_row(loader: LoaderStats) -> list[object]:
    times = (loader.data_avg_s, loader.forward_avg_s, loader.backward_avg_s, loader.optimizer_avg_s)
    pinned = "" if loader.pin_memory is None else "yes" if loader.pin_memory else "no"
    return [
        loader.name,
        "validation" if loader.phase == "val" else "training",
        _count(loader.batches),
        _count(loader.samples),
        _s(loader.wait_s),
        *map(_ms, times),
        _count(loader.num_workers),
        pinned,
        _share(loader.proportion),
    ]


def machine_part(snapshot: Snapshot) -> Html:
    """Return the sentences on throughput and the machine, and the places of the charts."""
    lines = [element("p", line) for line in machine_lines(snapshot)]
    return part("machine", "Machine", *lines, element("div", id="machine-charts", class_="charts"))


def ranks_part(snapshot: Snapshot) -> Html:
    """Return the heat map of ranks and their table; nothing of a single rank."""
    ranks = snapshot.ranks
    if ranks is None:
        return Html("")
    headers = ("rank", "host", "steps", "step ms", "work ms", "sync ms", "waiting ms", "work over the least", "cause")
    rows = [_rank_row(rank) for rank in ranks.ranks]
    notes = [element("p", note) for note in ranks.left_out]
    return part("ranks", "Ranks", element("div", id="rank-map"), table("Ranks", headers, rows), *notes)


def _rank_row(rank: RankStats) -> list[object]:
    over = None if rank.against_best is None else rank.against_best
    cause = f"{name_of(rank.cause)} {rank.place}".strip()
    times = (rank.step_s, rank.work_s, rank.sync_s, rank.waiting_s)
    over_cell = Cell("") if over is None else Cell(f"{over:.2f}x", over)
    return [_count(rank.who.rank), rank.who.host, _count(rank.steps), *map(_ms, times), over_cell, cause]


def captures_part(captures: Mapping[str, str], folder: str) -> Html:
    """Return the traces of captures, each with its analysis, or with the command for one that is too large."""
    if not captures:
        return Html("")
    items = [_capture(name, analysis, folder) for name, analysis in captures.items()]
    return part("captures", "Captures", element("ul", *items))


def _capture(name: str, analysis: str, folder: str) -> Html:
    if analysis:
        text = element("pre", *(element("span", line or " ") for line in analysis.splitlines()), tabindex="0")
        return element("li", element("details", element("summary", element("code", name)), text))
    command = element("code", f"training-profiler trace {folder}/{name}")
    return element("li", element("code", name), " (analyse it: ", command, ")")


def checklist_part(snapshot: Snapshot) -> Html:
    """Return the quick checklist."""
    rows = [[check.what, check.verdict, check.measured, check.target] for check in checklist(snapshot)]
    return part("checklist", "Checklist", table("Quick checklist", ("check", "result", "measured", "target"), rows))


def health_part(snapshot: Snapshot) -> Html:
    """Return the state of the profiler itself."""
    health = snapshot.health
    cost = f"cost of the profiler: {health.overhead_s:.3f} s of the training thread"
    if snapshot.wall_s:
        cost += f" ({health.overhead_s / snapshot.wall_s:.2%} of the run)"
    lines = [f"events dropped: {health.dropped}"] if health.dropped else []
    lines += [f"switched off: {name}" for name in health.disabled]
    items = [element("li", line) for line in (*lines, *health.notes, cost)]
    return part("health", "Profiler health", element("ul", *items))
