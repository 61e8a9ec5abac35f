"""The three reports of the terminal: periodic, of an epoch, and of the run. docs/read-a-report.md describes them.

Each quantity stands in them once. The answer comes last, where a terminal shows it when the run has ended.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from training_profiler.base.sections import DATA_LOADING, NESTED_SECTIONS, OF_PASSES, name_of
from training_profiler.base.text import PREFIX, printable_lines
from training_profiler.base.units import (
    S_PER_HOUR,
    counted,
    duration_text,
    ms_column,
    ms_text,
    rounded,
    three_digits,
    time_text,
    unit_of_steps,
)
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.compute_fixes import busy_part
from training_profiler.diagnosis.device import host_runs_ahead
from training_profiler.diagnosis.registry import section_of
from training_profiler.model.snapshot import (
    AFTER_TRAINING,
    BETWEEN,
    HOT_SHARE,
    OTHER,
    PROFILER,
    EpochStats,
    SectionStats,
    Snapshot,
    StepStats,
)
from training_profiler.reports.answer import WIDEST, answer_of, verdict_lines
from training_profiler.reports.answer import Origin as Origin
from training_profiler.reports.layout import WIDTH, Layout, column_width, shortened, table
from training_profiler.reports.ranks import attempt_lines, exchange_lines, rank_lines, unusual_ranks
from training_profiler.reports.resources import (
    HEADER,
    after_lines,
    device_cell,
    device_lines,
    device_words,
    health_notes,
    loader_lines,
    machine_lines,
    pause_lines,
    rate_texts,
    startup_lines,
    utilization_texts,
)
from training_profiler.reports.sections import (
    INDENT,
    MORE,
    MOST_ROWS,
    OF_EPOCHS,
    WITHOUT_START,
    distribution,
    folded,
    in_tree_order,
    labels_of,
    lines_under,
    percentages,
    row_label,
    smallest,
    table_label,
    training_rows,
)
from training_profiler.reports.verdict import checklist_lines, insight_lines

TIMES: Final = ("avg", "min", "max")
MORE_TIMES: Final = ("p50", "p95", "p99", "std")  # where the terminal is wide enough
MIN_NAME_WIDTH: Final = 24
TITLE: Final = "Time Distribution:"
TIME_WIDTH, SHARE_WIDTH, FEWEST_OF_BAR, NARROW, NARROW_SHARE = 10, 13, 8, 60, 8  # columns
LABEL_WIDTH: Final = 30
FEWEST_TIMES: Final = (TIMES, TIMES[:1], ())  # where the terminal is narrow
FEW: Final = 5  # rows: where the table has fewer, there are two more bars than that
BLOCKS: Final = " ▏▎▍▌▋▊▉█"


def breakdown_lines(
    snapshot: Snapshot, layout: Layout, changes: Sequence[Finding] = (), most: int = MOST_ROWS
) -> list[str]:
    """Return the detailed breakdown and the time distribution, each below its title and with ``most`` rows at most.

    Sections that ``changes`` are about are marked; below each stand the lines of the user's code.
    """
    rows = list(in_tree_order(snapshot.sections))
    breakdown = ["(no section has ended yet)"]
    if rows:
        # The profiler has time before it has a span: this report is part of its first span.
        rows = [(depth, section) for depth, section in rows if section.count or section.name != PROFILER]
        breakdown = list(_row_lines(snapshot, rows)) if layout.is_lines else _table(snapshot, rows, layout, most)
    bars = max(most, min(most + 2, FEW))
    shares = _share_lines(snapshot) if layout.is_lines else share_rows(snapshot, layout, changes, True, bars)
    shares = shares or ["Time Distribution:", "(no time has passed on the clock)"]
    return ["Detailed Breakdown:", *breakdown, "", *shares]


def _row_lines(snapshot: Snapshot, rows: Sequence[tuple[int, SectionStats]]) -> Iterator[str]:
    for _, section in rows:
        seconds = ((name, getattr(section, f"{name}_s")) for name in TIMES)
        times = "".join(f", {name}={value:.4f}s" for name, value in seconds if value is not None)
        total = f"{section.name}: count={section.count}, total={section.total_s:.3f}s"
        yield total + times + device_words(snapshot, section)


def _table(snapshot: Snapshot, rows: Sequence[tuple[int, SectionStats]], layout: Layout, most: int) -> list[str]:
    """Return the table with the columns that fit, and names shortened where even the fewest do not."""
    small = smallest([(section, section.total_s) for _, section in rows], most)
    if small:
        total_s = sum(each.total_s for _, each in rows if each.name in small and each.parent not in small)
        rest = SectionStats(MORE.format(len(small)), 0, total_s, 0.0, 0.0)
        rows = [*((depth, each) for depth, each in rows if each.name not in small), (0, rest)]
    names = [row_label(depth, section, snapshot.sections) for depth, section in rows]
    sections = [section for _, section in rows]
    for times in ((*TIMES, *MORE_TIMES), *FEWEST_TIMES):
        columns = [
            ["count", *(str(section.count or "") for section in sections)],
            ["total\n(s)", *(rounded(section.total_s, 3) for section in sections)],
            *([f"{name}\n(ms)", *ms_column([getattr(each, f"{name}_s") for each in sections])] for name in times),
        ]
        if snapshot.device is not None:
            columns.append([f"{HEADER}\n(ms)", *(device_cell(section) for section in sections)])
        room = layout.width - sum(column_width(header, cells) for header, *cells in columns)
        is_for_wide = len(times) > len(TIMES)
        if layout.width > WIDTH * is_for_wide and room >= min(MIN_NAME_WIDTH, max(map(len, names), default=0)):
            break
    headers, *cells = zip(["section", *(shortened(name, room) for name in names)], *columns, strict=True)
    return table(headers, cells)


def _share_lines(snapshot: Snapshot) -> list[str]:
    lines = ["Time Distribution:"]
    for (_, section), share in distribution(snapshot):
        lines.append(f"{section.name}: {share:.1f}%")
        places = lines_under(snapshot, section, share, of_run=True)
        lines += [f"{section.name}: {place} {function}: {part:.1f}%" for place, function, part in places]
    return lines if len(lines) > 1 else []


def share_rows(
    snapshot: Snapshot,
    layout: Layout,
    changes: Sequence[Finding] = (),
    has_lines: bool = False,
    most: int = MOST_ROWS,
) -> list[str]:
    """Return a bar a section with its time in a step, and below it the lines of the user's code that it goes to.

    Shares of sections add up to 100; those of lines are parts of their section's.
    """
    marked = {row.section.name for row in training_rows(snapshot) if _mark(snapshot, row.section.name, changes)}
    rows = folded(training_rows(snapshot), {OTHER, *marked}, most)
    rows = [row for row in rows if row.percent or row.section.count or (row.section.name == OTHER and row.step_s)]
    if not rows:
        return []
    width, (names, of) = min(layout.width, WIDEST), labels_of(snapshot)
    of = "share" if width < NARROW else "of interval" if snapshot.first_step else of
    labels = [row_label(row.depth, row.section, snapshot.sections, names) for row in rows]
    times = ms_column([row.step_s for row in rows], digits=3)
    time_width, share_width = (TIME_WIDTH * any(times), SHARE_WIDTH) if width >= NARROW else (0, NARROW_SHARE)
    marks = [_mark(snapshot, row.section.name, changes) for row in rows]
    room = width - time_width - share_width - max(map(len, marks))
    label_width = max(len(TITLE), min(LABEL_WIDTH + max(0, width - WIDTH), max(map(len, labels)), room))
    bar_width = room - label_width - 1
    if bar_width < FEWEST_OF_BAR or width < NARROW:
        label_width, bar_width = room, 0
    left, largest = label_width + bar_width + bool(bar_width), max(row.percent for row in rows)
    text = [f"{TITLE:<{left}}{'ms/step' * bool(time_width):>{time_width}}{of:>{share_width}}"]
    for row, label, time, mark in zip(rows, labels, times, marks, strict=True):
        bar = layout.color(_bar(row.percent / largest, bar_width, layout), "cyan")
        name = f"{shortened(label, label_width):<{label_width}}{' ' * bool(bar)}{bar}"
        shown = (time or "-") if time_width else ""
        text.append(f"{name}{shown:>{time_width}}{row.percent:>{share_width - 1}.1f}%{mark}")
        indent = INDENT * (row.depth + 2)
        if seconds := row.section.other_threads_s:
            text.append(shortened(f"{indent}and {seconds:.3f} s on other threads, in parallel", width))
        if waiting := _waiting_text(snapshot, row.section):
            text.append(shortened(indent + waiting, width))
        of_section = lines_under(snapshot, row.section, row.percent) if has_lines else ()
        for place, function, part in of_section:
            place, function = _fitting(place, function, left + time_width - len(indent) - 2)
            shown = shortened(f"{indent}{place}  {function}", left + time_width)
            text.append(f"{shown:<{left + time_width}}{part:>{share_width - 1}.1f}%")
    return text


def _waiting_text(snapshot: Snapshot, section: SectionStats) -> str:
    """Return what a section's own work takes a busy device, where the host mostly waits in it for other work."""
    step, device_s = snapshot.step, snapshot.total_of_step_s(section.name)
    if step is None or device_s is None or not snapshot.is_by_device(section.name) or busy_part(snapshot) is None:
        return ""
    if section.settled_total_s < SHOWS_WAITING * step.settled_s or device_s > MOSTLY_OWN * section.settled_total_s:
        return ""
    return f"waits for the device, whose work in it takes {ms_text(device_s / step.settled_count)}"


def _bar(share: float, width: int, layout: Layout) -> str:
    if not layout.is_unicode:
        return ("#" * round(share * width) or "."[:width]).ljust(width)
    eighths = max(1, round(share * width * 8)) if width else 0
    return (BLOCKS[-1] * (eighths // 8) + BLOCKS[eighths % 8].strip()).ljust(width)


def _mark(snapshot: Snapshot, name: str, changes: Sequence[Finding]) -> str:
    """Return which changes are about this section: "" where none is."""
    numbers = [str(number) for number, change in enumerate(changes, start=1) if section_of(change) == name]
    return f" <- {','.join(numbers)}" if numbers else ""


def _fitting(place: str, function: str, room: int) -> tuple[str, str]:
    """Return a line of a library by its innermost frame, where the frames around it leave no room for that."""
    inner_place, _, inner_function = function.rpartition(BETWEEN)[2].partition(" ")
    if len(place) + len(function) <= room or not (inner_function and ":" in inner_place):
        return place, function
    return inner_place, inner_function


SHOWS_WAITING: Final = 0.1  # of step time
MOSTLY_OWN: Final = 0.5  # of the host's time in a section
MOST_LINES: Final = 60  # of the final report, unless it is the full one
MOST_OF_BLOCKS: Final = (MOST_LINES, MOST_ROWS, 9, 7, FEW, 3, 2)  # rows: the first that make so few lines
BESIDE_ANSWER: Final = 22  # lines: the shortest title and blocks, with the lines below them
FILE: Final = Layout()  # 80 columns, ASCII, no color
_EPOCH_LABEL_WIDTH: Final = 25
_SHOWN_FROM_S: Final = 0.005
_MOST_PHASES: Final = 6
_CLEAR_CHANGE: Final = 0.02  # of the median step
_CLEAR_ERRORS: Final = 3.0  # standard errors


def render_periodic(
    snapshot: Snapshot, run: Snapshot | None = None, findings: Sequence[Finding] = (), layout: Layout = FILE
) -> str:
    """Return the report on the steps since the last one; the first of the ``findings`` is of the ``run`` so far."""
    title = f"=== Profiling Report (Step {snapshot.steps}) ==="
    first, _ = answer_of(run or snapshot, findings, layout, Origin(), most=0)  # the first finding
    first = [] if layout.is_lines else ["", "Performance Insights:", *first]
    return _text([title, "", *breakdown_lines(snapshot, layout), *_rank_block(snapshot, layout), *first], layout)


def render_final(
    snapshot: Snapshot,
    findings: Iterable[Finding],
    layout: Layout = FILE,
    has_checklist: bool = False,
    origin: Origin | None = None,
    is_full: bool = False,
    *,
    most_lines: int = MOST_LINES,
) -> str:
    """Return the summary of a run; the answer comes last.

    Args:
        snapshot: of the run.
        findings: in their order.
        layout: width, color and format. Lines to grep are always full.
        has_checklist: whether usual targets stand before the insights.
        origin: program and run folder, for the commands to type next.
        is_full: whether all that was measured is in it, and every finding with all its figures.
        most_lines: of a report of 80 columns that is not full; of the answer as many as leave room for the rest.
    """
    findings, is_full = list(findings), is_full or layout.is_lines
    origin = replace(origin or Origin(), is_full=is_full)
    all_findings = insight_lines(snapshot, findings, layout)
    checks = ["", *checklist_lines(snapshot, layout)] if has_checklist else []
    answer, changes = answer_of(snapshot, findings, layout, origin, most_lines - BESIDE_ANSWER)
    if layout.is_lines:
        answer, all_findings = [*verdict_lines(snapshot, findings, layout), *all_findings], []
    else:
        all_findings = ["All findings:", *all_findings]
    for most in (sys.maxsize,) if is_full else MOST_OF_BLOCKS:
        lines = [
            f"=== Final Profiling Summary ({snapshot.steps} steps) ===",
            *title_lines(snapshot, origin.program, layout),
            "",
            *breakdown_lines(snapshot, layout, changes, most),
            *(_rank_block(snapshot, layout) if is_full else _beside_lines(snapshot, layout)),
            *(["", *_run_lines(snapshot, layout), *all_findings] if is_full else []),
            *checks,
            *_health_lines(snapshot, layout, is_full),
            "",
            "Performance Insights:",
            *answer,
        ]
        if len(lines) <= most_lines:
            break
    return _text(lines, layout)


def title_lines(snapshot: Snapshot, program: str | None, layout: Layout) -> list[str]:
    """Return what was run, and how much of it in what time."""
    counts = [counted(snapshot.steps, "step")]
    epochs = max(len(snapshot.epochs), snapshot.program.epochs)
    if epochs and not snapshot.program.unclear_after:
        counts.insert(0, counted(epochs, "epoch"))
    if snapshot.ranks is not None:
        counts.append(counted(snapshot.ranks.world_size, "rank"))
    text = ", ".join(counts)
    if snapshot.wall_s:
        text += f" in {duration_text(snapshot.wall_s)}"
    if snapshot.ended_by:
        text += f", ended by {snapshot.ended_by}"
    return layout.wrap(f"{program} - {text}" if program else text, rest="")


def _beside_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return a line each on the start-up, the speed, and what is unusual: restarts, ranks, an open section."""
    speed = ", ".join(_speed(snapshot))
    texts = [*startup_lines(snapshot), *([f"Speed: {speed}"] if speed else []), *after_lines(snapshot)]
    texts += [*_end_lines(snapshot), *unusual_ranks(snapshot)]
    return [*(line for text in texts for line in layout.wrap(text)), *_folder_line(snapshot)]


def _end_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on earlier attempts, and one on the sections that were open at the end."""
    inside = " > ".join(map(name_of, snapshot.open_sections))
    return [*attempt_lines(snapshot), *([f"Still inside: {inside}"] if inside else [])]


def _folder_line(snapshot: Snapshot) -> list[str]:
    return [f"Run folder: {snapshot.run_folder}"] if snapshot.run_folder else []  # a path is not broken


def _speed(snapshot: Snapshot) -> Iterator[str]:
    """Yield how fast the training is; figures that are unknown are left out."""
    step, rates = snapshot.step, snapshot.throughput
    if step is not None and step.settled_count:
        unit, number = unit_of_steps(step.avg_s)
        other = f" (median {number(step.median_s)})" if step.p95_s is None else f" (p95 {number(step.p95_s)})"
        if host_runs_ahead(snapshot):
            other = " (mean; the host runs ahead)"
        yield f"step {number(step.avg_s)} {unit}{other if step.settled_count > 1 else ''}"
    if rates is not None:
        yield from rate_texts(snapshot, rates)
    yield from utilization_texts(snapshot)


def _text(lines: list[str], layout: Layout) -> str:
    return printable_lines("\n" + "\n".join(lines) + "\n", layout.has_color)


def _rank_block(snapshot: Snapshot, layout: Layout) -> list[str]:
    lines = rank_lines(snapshot, layout)
    return ["", *lines] if lines else []


def render_epoch(epoch: EpochStats, warnings: Iterable[str] = (), layout: Layout = FILE) -> str:
    """Return the summary of one epoch."""
    wall_s = epoch.wall_s
    lines = [f"=== Epoch {epoch.number} Profiling Summary ===", f"Total time: {wall_s:.2f}s"]
    if epoch.avg_batch_s is not None and epoch.batches:
        lines.append(f"Avg batch time: {epoch.avg_batch_s:.3f}s")
        if wall_s:
            samples = f", {epoch.samples / wall_s:.1f} samples/s" if epoch.samples else ""
            lines.append(f"Throughput: {epoch.batches / wall_s * S_PER_HOUR:.1f} batches/hour{samples}")
    if wall_s:
        named = sorted(((s, key) for key, s in epoch.self_s.items() if key != OTHER), reverse=True)
        rows = [
            (table_label(key, epoch.self_s, OF_EPOCHS), s) for s, key in [*named, (epoch.self_s.get(OTHER, 0.0), OTHER)]
        ]
        shares = percentages([s / wall_s for _, s in rows])
        width = min(max(_EPOCH_LABEL_WIDTH, *(len(name) for name, _ in rows)), layout.width - 24)
        lines += ["", "Time Breakdown:"]
        for (name, s), share in zip(rows, shares, strict=True):
            lines.append(f"  {shortened(name, width):<{width}}: {share:4.1f}% ({s:5.2f}s)")
    lines.append("=" * 50)
    for warning in warnings:
        lines += layout.wrap(warning, first="WARNING: ")
    return _text(lines, layout)


def epoch_line(epoch: EpochStats, before: EpochStats | None) -> str:
    """Return one line on an epoch: time, share of waiting for data, samples a second, change against the one before."""
    parts = [duration_text(epoch.wall_s)]
    if epoch.wall_s:
        waiting_s = sum(epoch.self_s.get(name, 0.0) for name in (DATA_LOADING, *NESTED_SECTIONS))
        parts.append(f"{waiting_s / epoch.wall_s:.0%} waiting for data")
        parts += [f"{three_digits(epoch.samples / epoch.wall_s)} samples/s"] if epoch.samples else []
    if before is not None and before.wall_s and epoch.is_complete:
        change = epoch.wall_s / before.wall_s - 1
        parts.append(f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'} than before")
    return f"{PREFIX}epoch {epoch.number}: {', '.join(parts)}"


def _run_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return what accounts for the whole wall time, how regular the steps were, and on what machine they ran."""
    before = (
        _wall_lines,
        startup_lines,
        after_lines,
        _step_lines,
        _phase_lines,
        device_lines,
        machine_lines,
        pause_lines,
    )
    after = [*exchange_lines(snapshot), *_end_lines(snapshot)]
    after += [f"Ended by: {snapshot.ended_by}"] if snapshot.ended_by else []
    lines = [line for lines_of in before for sentence in lines_of(snapshot) for line in layout.wrap(sentence)]
    lines += loader_lines(snapshot, layout)
    lines += [line for sentence in after for line in layout.wrap(sentence)] + _folder_line(snapshot)
    return [*lines, ""] if lines else []


def _wall_lines(snapshot: Snapshot) -> list[str]:
    if not snapshot.wall_s:
        return []
    line, step = f"Wall time {duration_text(snapshot.wall_s)}", snapshot.step
    if step is None:
        return [line]
    in_steps_s = min(step.total_s, snapshot.wall_s)
    after_s = snapshot.after_training_s
    rest_s, rest, parts = snapshot.wall_s - in_steps_s - after_s, "outside steps", []
    if step.before_s is not None and step.before_s <= rest_s:
        parts.append(f"startup {duration_text(step.before_s)}")
        rest_s, rest = rest_s - step.before_s, "between steps"
    parts.append(f"{counted(step.count, 'step')} {duration_text(in_steps_s)}")
    if rest_s >= _SHOWN_FROM_S:
        parts.append(f"{rest} {duration_text(rest_s)}")
    if after_s >= _SHOWN_FROM_S:
        parts.append(f"{WITHOUT_START[AFTER_TRAINING]} {duration_text(after_s)}")
    return [f"{line}: {', '.join(parts)}"]


def _phase_lines(snapshot: Snapshot) -> list[str]:
    """Return the phases of trainers, loaders and callbacks of libraries, by their own names for them."""
    phases = [
        f"{phase} {share:.1%}"
        for phase, share in snapshot.phases.items()
        if share >= HOT_SHARE and not set(OF_PASSES).intersection(phase.split(BETWEEN))  # rules are about these
    ]
    return [f"Phases within libraries, of the run: {', '.join(phases[:_MOST_PHASES])}"] if phases else []


def _step_lines(snapshot: Snapshot) -> list[str]:
    step = snapshot.step
    if step is None:
        return []
    warmup = "first warm-up step" if step.warmup_count == 1 else f"first {step.warmup_count} warm-up steps"
    excluded = [warmup] if step.warmup_count else []
    disturbed = f"{step.disturbed_count} steps in or after a capture window" if step.disturbed_count else ""
    if disturbed and step.has_own_pace:
        excluded.append(disturbed)
    notes = f" ({' and '.join(excluded)} excluded)" if excluded else ""
    if disturbed and not step.has_own_pace:
        notes += f" ({disturbed} included)"
    unit, number = unit_of_steps(step.avg_s)
    if step.settled_count == 1:
        return [f"Step time: {number(step.avg_s)} {unit} in 1 step{notes}"]
    high = "" if step.p95_s is None else f", p95 {number(step.p95_s)}"
    ahead = "; long steps wait for the device, others only queue its work" if host_runs_ahead(snapshot) else ""
    return [
        f"Step time: {number(step.avg_s)} {unit} mean +- {number(step.std_s)}{notes}; "
        f"median {number(step.median_s)}{high}, max {number(step.max_s)} at step {step.max_step}{ahead}",
        *_capture_lines(snapshot, step),
    ]


def _capture_lines(snapshot: Snapshot, step: StepStats) -> list[str]:
    """Return a line on the steps before and after the first capture, and whether they differ."""
    around = step.around_capture
    if around is None or not around.before_s:
        return []
    change = around.after_s / around.before_s - 1
    said = "no clear difference"
    if abs(change) >= _CLEAR_CHANGE and abs(around.after_s - around.before_s) > _CLEAR_ERRORS * around.error_s:
        said = f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'}"
        if change > 0 and snapshot.device is not None:
            said += "; torch's profiler may still be attached to the device, so a run without a capture may be faster"
    times = f"{time_text(around.after_s)}, {time_text(around.before_s)} before it"
    return [f"Median step after the first capture: {times} ({said})"]


def _health_lines(snapshot: Snapshot, layout: Layout, is_full: bool) -> list[str]:
    lines = [line for note in health_notes(snapshot, is_full) for line in layout.wrap(note, first="- ")]
    return ["", "Profiler health:", *lines] if lines else []
