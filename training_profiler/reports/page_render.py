"""The whole page: a pure function of a run's stats and series."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from training_profiler.base.html import Cell, Html, element, joined, part, table, text
from training_profiler.base.sections import name_of
from training_profiler.base.units import MS_PER_S, US_PER_S, duration_text, ms_column, ms_text, rounded, three_digits
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.device import host_runs_ahead
from training_profiler.diagnosis.pauses import PRODUCTIVE, goodput
from training_profiler.model.series import RankSeries
from training_profiler.model.snapshot import AFTER_TRAINING, BEFORE_TRAINING, Snapshot
from training_profiler.reports.answer import action_text, saving_cells, worst_losses_of
from training_profiler.reports.exports import Stack, stacks_of, worker_stacks
from training_profiler.reports.page_charts import chart_data, has_device
from training_profiler.reports.page_document import document, part_file
from training_profiler.reports.resources import (
    LONG_RUN_S,
    after_lines,
    health_notes,
    loader_name,
    machine_lines,
    startup_lines,
)
from training_profiler.reports.sections import WITHOUT_START, labels_of, table_label, training_rows
from training_profiler.reports.verdict import REMARKS, checklist, important, saving_text, source_line, verdict

PLACE: Final = re.compile(r"([^\s:()\"']+\.py):(\d{1,7})\b")
MOST_PLACES: Final = 4  # of a finding
MOST_LINES: Final = 200
MOST_EPOCHS: Final = 500
WAITS_FROM: Final = 0.0005  # of the run: 0.1 %


# Lines of source files around one of them: by file and line, the number of the first, and all of them.
Sources = Mapping[tuple[str, int], tuple[int, Sequence[str]]]


def places(snapshot: Snapshot, findings: Sequence[Finding]) -> set[tuple[str, int]]:
    """Return the files and lines whose source the page shows."""
    return {place for finding in findings for place in _places(snapshot, finding)}


def _places(snapshot: Snapshot, finding: Finding) -> list[tuple[str, int]]:
    hottest = source_line(snapshot, finding)
    # In a library, the place and what ran there are the library's, and the caller is the user's line.
    lines = "" if hottest is None else f"{hottest[0].place} {hottest[0].what} {hottest[0].caller}"
    workers = [line.inside for line in snapshot.lines_in_workers()[:MOST_PLACES] if f"{line.place} " in finding.message]
    found = [(file, int(line)) for file, line in PLACE.findall(" ".join([finding.message, lines, *workers]))]
    return list(dict.fromkeys(found))[:MOST_PLACES]


def _answer(snapshot: Snapshot, findings: Sequence[Finding], changes: Sequence[Finding]) -> Html:
    """Return the verdict with the first change, the figures of steps, and the bars of where the time went."""
    (headline, detail, saving, color), shares = verdict(snapshot, findings), training_rows(snapshot)
    shares = [row for row in shares if row.percent or row.section.count]
    past = "" if snapshot.history is None else snapshot.history.text
    rest = [element("p", words) for words in (detail, saving, past) if words]
    rest += [_actions(snapshot, change) for change in changes[:1]]
    box = element("div", element("p", headline, class_="headline"), *rest, class_=f"verdict {color}", role="status")
    said = joined([box, _figures(snapshot)])
    if not shares:
        return said
    rows: list[list[object]] = []
    labels, of = labels_of(snapshot)
    largest, times = max(row.percent for row in shares), ms_column([row.step_s for row in shares], digits=3)
    for row, time in zip(shares, times, strict=True):
        label = table_label(row.section.name, snapshot.sections, labels)
        drawn = element("i", style=f"width:{100 * row.percent / largest:.2f}%", aria_hidden="true")
        name = element("span", label, style=f"padding-left:{row.depth}em")
        rows.append([name, drawn, Cell(time, row.step_s), Cell(f"{row.percent:.1f}%", row.percent)])
    whole = table("Time distribution", ("section", "", "ms/step", of), rows)
    return joined([said, element("div", whole, class_="bars")])


def _actions(snapshot: Snapshot, finding: Finding) -> Html:
    """Return what to do about a finding, each action with its own saving, and what that does to the losses."""
    units = " a step", " of the training", ""
    lines: list[Html] = []
    for action in finding.actions:
        cells = saving_cells(snapshot, finding, action)
        saving = ", ".join(f"{cell}{unit}" for cell, unit in zip(cells, units, strict=False) if cell)
        lines.append(element("p", "or " if lines else "→ ", action_text(finding, action), " ", element("b", saving)))
    losses = worst_losses_of(finding)
    return element("div", *lines, *([element("p", f"losses: {losses}")] if losses else []), class_="actions")


def _findings(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    first: Sequence[Finding],
    sources: Sources,
    missing: Mapping[str, str],
) -> Html:
    """Return the findings to act on, each with its lines, then the others, and why files have no lines."""
    others = [finding for finding in findings if finding not in first and (finding.fix or finding.code not in REMARKS)]
    items = [_finding(snapshot, finding, sources) for finding in first]
    more = [_finding(snapshot, finding, sources) for finding in others]
    parts = [element("ol", *items, class_="findings")] if items else []
    if more:
        title = f"{len(more)} smaller {'remark' if len(more) == 1 else 'remarks'}"
        parts.append(element("details", element("summary", title), element("ul", *more, class_="findings")))
    if parts and missing:
        reasons = "; ".join(f"{file} ({why})" for file, why in sorted(missing.items()))
        parts.append(element("p", f"No lines of source code: {reasons}", class_="note"))
    return part("findings", "What to change", *parts)


def _finding(snapshot: Snapshot, finding: Finding, sources: Sources) -> Html:
    content: list[object] = [element("p", finding.message, class_="message")]
    more = [element("summary", "In full: ", element("code", finding.code))]
    if finding.potential_saving_s:
        more.append(element("p", f"could save {saving_text(snapshot, finding)}", class_="saving"))
    if finding.fix:
        content.append(_actions(snapshot, finding))
        more.append(element("p", finding.advice, class_="fix"))
    for place in filter(sources.__contains__, _places(snapshot, finding)):
        (first, lines), rows = sources[place], []
        for number, line in enumerate(lines, start=first):
            shown = joined([element("span", f"{number:>5} ", class_="number"), line.expandtabs(4) or " "])
            rows.append(element("mark" if number == place[1] else "span", shown))
        title = element("figcaption", f"{place[0]}:{place[1]}")
        content.append(element("figure", title, element("pre", *rows, tabindex="0"), class_="source"))
    return element("li", *content, element("details", *more, class_="code"))


def _cell(show: Callable[[float], str], value: float | None) -> Cell:
    return Cell("") if value is None else Cell(show(value), value)


_ms: Final = partial(_cell, lambda seconds: rounded(seconds * MS_PER_S, 3))
_s: Final = partial(_cell, duration_text)
_count: Final = partial(_cell, lambda number: f"{number:g}" if isinstance(number, float) else str(number))
_share: Final = partial(_cell, "{:.1%}".format)


def _breakable(name: str) -> Html:
    """Return a name that is broken after a / or _ where there is little room."""
    parts = re.split(r"(?<=[/_])(?=[^/_])", name)
    return Html("<wbr>".join(map(text, parts)))


def sections_part(snapshot: Snapshot) -> Html:
    """Return all sections with their percentiles."""
    labels, of = labels_of(snapshot)
    headers = ("section", of, "self time", "count", "mean ms", "min ms", "p50", "p95", "p99", "max ms", "std ms",
               "longest at step")  # fmt: skip
    rows: list[list[object]] = []
    for depth, section, percent, _ in training_rows(snapshot):
        label = _breakable(table_label(section.name, snapshot.sections, labels))
        times = section.avg_s, section.min_s, section.p50_s, section.p95_s, section.p99_s, section.max_s, section.std_s
        first = element("span", label, style=f"padding-left:{depth}em"), Cell(f"{percent:.1f}%", percent)
        counts = _count(section.count or None), _count(section.max_step or None)
        rows.append([*first, _s(section.training_s), counts[0], *map(_ms, times), counts[1]])
    around = [element("p", line) for line in (*startup_lines(snapshot), *after_lines(snapshot))]
    return part("sections", "Sections", table("Where the time goes, by section", headers, rows), *around)


def _lines(snapshot: Snapshot) -> Html:
    """Return the lines of the user's code with the most samples."""
    lines = [(name, line) for name, of_section in snapshot.lines.items() for line in of_section]
    lines.sort(key=lambda each: -each[1].share)
    rows: list[list[object]] = []
    for name, line in lines[:MOST_LINES]:
        place = f"{line.place} (called by {line.caller})" if line.caller else line.place
        waits = f", of this {line.waiting_share:.1%} waits for the device" if line.waiting_share >= WAITS_FROM else ""
        label = table_label(name, snapshot.sections)
        rows.append([element("code", place), line.what + waits, label, _share(line.share)])
    return part("lines", "Lines of code", table("Sampled lines", ("line", "function", "section", "of the run"), rows))


def _epochs(snapshot: Snapshot) -> Html:
    headers = ("epoch", "time", "steps", "batches", "samples", "mean batch ms", "first fetch ms", "largest section")
    rows: list[list[object]] = []
    for epoch in snapshot.epochs[:MOST_EPOCHS]:
        name, seconds = max(epoch.self_s.items(), key=lambda each: each[1], default=("", 0.0))
        share = f" {seconds / epoch.wall_s:.0%}" if epoch.wall_s and name else ""
        number = Cell(f"{epoch.number}{'' if epoch.is_complete else ' (not complete)'}", epoch.number)
        counts, times = (epoch.steps, epoch.batches, epoch.samples), (epoch.avg_batch_s, epoch.first_fetch_s)
        label = table_label(name, epoch.self_s) + share
        rows.append([number, _s(epoch.wall_s), *map(_count, counts), *map(_ms, times), label])
    left_out = len(snapshot.epochs) - MOST_EPOCHS
    more = element("p", f"{left_out} more epochs are in report.json") if left_out > 0 else ""
    return part("epochs", "Epochs", table("Epochs", headers, rows), more) if rows else Html("")


def _loaders(snapshot: Snapshot) -> Html:
    headers = ("loader", "phase", "batches", "samples", "waiting", "data ms", "forward ms", "backward ms",
               "optimizer ms", "workers", "pinned", "share")  # fmt: skip
    rows: list[list[object]] = []
    for loader in snapshot.loaders:
        phase = "validation" if loader.phase == "val" else "training"
        counts = map(_count, (loader.batches, loader.samples))
        times = map(_ms, (loader.data_avg_s, loader.forward_avg_s, loader.backward_avg_s, loader.optimizer_avg_s))
        pinned = "" if loader.pin_memory is None else "yes" if loader.pin_memory else "no"
        others = _count(loader.num_workers), pinned, _share(loader.proportion)
        rows.append([loader.name, phase, *counts, _s(loader.wait_s), *times, *others])
    return part("loaders", "Data loaders", table("Data loaders", headers, rows))


def _machine(snapshot: Snapshot) -> Html:
    """Return the sentences on throughput and the machine, and the places of the charts."""
    lines = [element("p", line) for line in machine_lines(snapshot)]
    return part("machine", "Machine", *lines, element("div", id="machine-charts", class_="charts"))


def _ranks(snapshot: Snapshot) -> Html:
    """Return the heat map of ranks and their table; nothing of a single rank."""
    if snapshot.ranks is None:
        return Html("")
    headers = ("rank", "host", "steps", "step ms", "work ms", "sync ms", "waiting ms", "work over the least", "cause")
    rows: list[list[object]] = []
    for rank in snapshot.ranks.ranks:
        over, times = rank.work_over_best, map(_ms, (rank.step_s, rank.work_s, rank.sync_s, rank.waiting_s))
        cause = Cell("") if over is None else Cell(f"{over:.2f}x", over), f"{name_of(rank.cause)} {rank.place}".strip()
        rows.append([_count(rank.who.rank), rank.who.host, _count(rank.steps), *times, *cause])
    notes = [element("p", note) for note in snapshot.ranks.left_out]
    return part("ranks", "Ranks", element("div", id="rank-map"), table("Ranks", headers, rows), *notes)


def _captures(captures: Mapping[str, str], folder: str) -> Html:
    """Return the traces of captures, each with its analysis, or with the command for one that is too large."""
    items = []
    for name, analysis in captures.items():
        code = element("code", name)
        if analysis:
            lines = element("pre", *(element("span", line or " ") for line in analysis.splitlines()), tabindex="0")
            items.append(element("li", element("details", element("summary", code), lines)))
        else:
            command = element("code", f"training-profiler trace {folder}/{name}")
            items.append(element("li", code, " (analyse it: ", command, ")"))
    return part("captures", "Captures", element("ul", *items)) if items else Html("")


def _checklist(snapshot: Snapshot) -> Html:
    rows = [[check.what, check.verdict, check.measured, check.target] for check in checklist(snapshot)]
    return part("checklist", "Checklist", table("Quick checklist", ("check", "result", "measured", "target"), rows))


def _health(snapshot: Snapshot) -> Html:
    items = [element("li", note) for note in health_notes(snapshot, is_full=True)]
    return part("health", "Profiler health", element("ul", *items))


SHOWN_FROM: Final = 0.002  # of the whole
MOST_DEPTH: Final = 30


def flame(stacks: Counter[Stack], shown: Callable[[int], str], label: str = "Flame view of the run") -> Html:
    """Return the boxes; nothing without stacks. ``shown`` says a size. A screen reader reads the label."""
    whole = stacks.total()

    def boxes(stacks: Counter[Stack], depth: int) -> list[Html]:
        """Return the boxes of all frames at ``depth``, the widest first, and the room of what is too small."""
        by_frame: dict[str, Counter[Stack]] = {}
        for stack, size in stacks.items():
            if len(stack) > depth:
                by_frame.setdefault(stack[depth], Counter())[stack] += size
        sizes = {frame: inner.total() for frame, inner in by_frame.items() if inner.total() >= SHOWN_FROM * whole}
        found = []
        for frame, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
            says = f"{frame}: {shown(size)}, {size / whole:.1%}"
            button = element("button", frame, type="button", title=says, aria_label=says)
            below = boxes(by_frame[frame], depth + 1) if depth < MOST_DEPTH else []
            inside = element("div", *below, class_="row") if below else Html("")
            found.append(element("div", button, inside, class_="box", style=f"flex-grow:{size}"))
        room = stacks.total() - sum(sizes.values())
        return [*found, element("div", class_="room", style=f"flex-grow:{room}")] if room and found else found

    return element("div", *boxes(stacks, 0), class_="flame", role="group", aria_label=label) if whole else Html("")


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
class PageOrigin:
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
    origin: PageOrigin,
    sources: Sources,
    missing: Mapping[str, str] | None = None,
) -> str:
    """Return the page as one HTML document that loads nothing.

    ``ranks`` have what changes over time. ``missing`` says why files have no lines of source code.
    """
    changes = important(snapshot, findings)
    body = joined(
        [
            _answer(snapshot, findings, changes),
            sections_part(snapshot),
            _findings(snapshot, findings, changes, sources, missing or {}),
            _steps(snapshot),
            _recorded(ranks),
            _flame(snapshot, ranks),
            _lines(snapshot),
            _epochs(snapshot),
            _loaders(snapshot),
            _machine(snapshot),
            _ranks(snapshot),
            _captures(origin.captures, origin.folder),
            _checklist(snapshot),
            _health(snapshot),
            _about(origin),
        ]
    )
    return document(origin.program or "Training", _subtitle(snapshot, origin), body, chart_data(ranks, snapshot.step))


def _subtitle(snapshot: Snapshot, origin: PageOrigin) -> str:
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
        longest = "longest after warm-up" if step.warmup_count else "longest"
        times = {"mean step": step.avg_s, "median": step.median_s, "95th percentile": step.p95_s}
        times[f"{longest}, step {step.max_step}"] = step.max_s
        figures += [(name, ms_text(seconds)) for name, seconds in times.items() if seconds is not None]
    if rates is not None:
        counts = {"steps": rates.steps_per_s, "samples": rates.samples_per_s, "tokens": rates.tokens_per_s}
        figures += [(f"{what} a second", three_digits(rate)) for what, rate in counts.items() if rate is not None]
        if rates.mfu is not None:
            figures.append(("MFU", f"{rates.mfu:.1%}"))
    if snapshot.left_s is not None:
        figures.append(("left in the loop", duration_text(snapshot.left_s)))
    if snapshot.wall_s >= LONG_RUN_S and (parts := goodput(snapshot)) is not None:
        figures.append(("goodput", f"{parts[PRODUCTIVE]:.0%}"))
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
    names = ("", WITHOUT_START[BEFORE_TRAINING], WITHOUT_START[AFTER_TRAINING])
    views: dict[str, Counter[Stack]] = {name: Counter() for name in names}  # the training's, and what stands apart
    for stack, us in stacks_of(ranks[0]).items() if ranks else ():
        views[stack[0] if stack[0] in views else ""][stack] = us
    boxes, more = Html(""), list[Html]()
    for name, stacks in views.items():
        drawn = flame(stacks, lambda us: duration_text(us / US_PER_S), f"Flame view of the run {name}".rstrip())
        if not name:
            boxes = drawn
        elif drawn:
            more += [element("h3", name.capitalize()), drawn]
    for loader in snapshot.loaders:
        title = f"Workers of loader {loader_name(loader)}"
        stacks = Counter[Stack]() if loader.workers is None else worker_stacks(loader.workers)
        more += [element("h3", title), flame(stacks, "{} samples".format, title)] if stacks else []
    if not boxes and not more:
        return Html("")
    note = element(
        "p",
        "The training time on its thread: sections, the line of your code, and what it called in a library, by line "
        "samples; below it, where known, the time before and after it, and samples of the loaders' workers. "
        "A click shows one box at full width. Frames of a library that your code did not call are not shown.",
        class_="note",
    )
    return part("flame", "Where in the code", note, Html(part_file("flame.html")), boxes, *more)


def _about(origin: PageOrigin) -> Html:
    rows = [("command", origin.command), ("run folder", origin.folder), *origin.versions.items()]
    items = [element("div", element("dt", name), element("dd", value)) for name, value in rows if value]
    return part("about", "This run", element("dl", *items, class_="about")) if items else Html("")
