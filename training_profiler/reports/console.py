"""The three reports of the terminal: periodic, of an epoch, and of the run. docs/read-a-report.md describes them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from training_profiler.base.sections import OF_PASSES
from training_profiler.base.text import printable_lines
from training_profiler.base.units import (
    S_PER_HOUR,
    counted,
    duration_text,
    ms_column,
    rounded,
    time_text,
    unit_of_steps,
)
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.device import host_runs_ahead
from training_profiler.diagnosis.pauses import lost_in_long_steps_s, pauses
from training_profiler.model.snapshot import (
    BETWEEN,
    HOT_SHARE,
    OTHER,
    PROFILER,
    EpochStats,
    SectionStats,
    Snapshot,
    StepStats,
)
from training_profiler.recording.section_names import name_of
from training_profiler.reports.first_screen import first_screen
from training_profiler.reports.layout import WIDTH, Layout, column_width, shortened, table
from training_profiler.reports.ranks import attempt_lines, exchange_lines, rank_lines
from training_profiler.reports.resources import (
    HEADER,
    device_cell,
    device_lines,
    device_words,
    loader_lines,
    machine_lines,
)
from training_profiler.reports.sections import (
    INDENT,
    bar_label,
    distribution,
    epoch_label,
    in_tree_order,
    lines_under,
    percentages,
    table_label,
)
from training_profiler.reports.verdict import GOOD, checklist_lines, insight_lines, verdict

TIMES: Final = ("avg", "min", "max")
MORE_TIMES: Final = ("p50", "p95", "p99", "std")  # where the terminal is wide enough
MIN_NAME_WIDTH: Final = 24
MIN_PLACE_WIDTH: Final = 10
ROOM_FOR_SHARE: Final = 14  # indentation, the spaces between the columns and the percentage


def breakdown_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return the detailed breakdown and the time distribution, each below its title."""
    rows = list(in_tree_order(snapshot.sections))
    breakdown = ["(no section has ended yet)"]
    if rows:
        # The profiler has time before it has a span: this report is part of its first span.
        rows = [(depth, section) for depth, section in rows if section.count or section.name != PROFILER]
        breakdown = list(_row_lines(snapshot, rows)) if layout.is_lines else _table(snapshot, rows, layout)
    shares = _share_lines(snapshot) if layout.is_lines else _share_rows(snapshot, layout)
    shares = shares or ["(no time has passed on the clock)"]
    return ["Detailed Breakdown:", *breakdown, "", "Time Distribution:", *shares]


def _row_lines(snapshot: Snapshot, rows: Sequence[tuple[int, SectionStats]]) -> Iterator[str]:
    for _, section in rows:
        seconds = ((name, getattr(section, f"{name}_s")) for name in TIMES)
        times = "".join(f", {name}={value:.4f}s" for name, value in seconds if value is not None)
        total = f"{section.name}: count={section.count}, total={section.total_s:.3f}s"
        yield total + times + device_words(snapshot, section)


def _table(snapshot: Snapshot, rows: Sequence[tuple[int, SectionStats]], layout: Layout) -> list[str]:
    """Return the table with the columns that fit, and names shortened where even the fewest do not.

    A column has a header, one unit and one number of decimals.
    """
    names = [INDENT * depth + table_label(section.name, snapshot.sections) for depth, section in rows]
    sections = [section for _, section in rows]
    for times in ((*TIMES, *MORE_TIMES), TIMES):
        columns = [
            ["count", *(str(section.count or "") for section in sections)],
            ["total\n(s)", *(rounded(section.total_s, 3) for section in sections)],
            *([f"{name}\n(ms)", *ms_column([getattr(each, f"{name}_s") for each in sections])] for name in times),
        ]
        if snapshot.device is not None:
            columns.append([f"{HEADER}\n(ms)", *(device_cell(section) for section in sections)])
        room = layout.width - sum(column_width(header, cells) for header, *cells in columns)
        if layout.width > WIDTH and room >= min(MIN_NAME_WIDTH, max(map(len, names), default=0)):
            break
    headers, *cells = zip(["section", *(shortened(name, room) for name in names)], *columns, strict=True)
    return table(headers, cells)


def _share_lines(snapshot: Snapshot) -> list[str]:
    lines = []
    for _, section, share in distribution(snapshot):
        lines.append(f"{section.name}: {share:.1f}%")
        places = lines_under(snapshot, section, share)
        lines += [f"{section.name}: {place} {function}: {part:.1f}%" for place, function, part in places]
    return lines


def _share_rows(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return a row a section, and below it the lines of the user's code that its time goes to.

    The shares of those lines are parts of the section's own, so they stand right of the column that adds up to 100.
    """
    rows = []
    for depth, section, share in distribution(snapshot):
        label = INDENT * depth + table_label(section.name, snapshot.sections, snapshot.steps > 0)
        lines = [_fitting(line, layout.width) for line in lines_under(snapshot, section, share)]
        indent = INDENT * (depth + 2)
        rows.append((label, share, section, [(indent + place, function, part) for place, function, part in lines]))
    width = min(layout.width - 10, max((len(label) for label, *_ in rows), default=0))
    places = [line for *_, lines in rows for line in lines]
    # Two spaces between columns, seven for the percentage.
    longest = max((len(place) for place, *_ in places), default=0)
    place_width = min(longest, layout.width - MIN_PLACE_WIDTH - 10)
    function_width = max(width + 6 - place_width, *(len(function) for _, function, _ in places), 0)
    function_width = max(MIN_PLACE_WIDTH, min(function_width, layout.width - place_width - 10))
    text = []
    for label, share, section, lines in rows:
        elsewhere = ""
        if section.elsewhere_s:
            elsewhere = f"  (and {section.elsewhere_s:.3f} s on other threads, in parallel)"
            if len(elsewhere) > layout.width - width - 8:
                elsewhere = f"  (+{section.elsewhere_s:.3f} s on other threads)"
        text.append(f"{shortened(label, width):<{width}}  {share:5.1f}%{elsewhere}")
        for place, function, part in lines:
            shown = shortened(place, place_width), shortened(function, function_width)
            text.append(f"{shown[0]:<{place_width}}  {shown[1]:<{function_width}}  {part:5.1f}%")
    return text


def _fitting(line: tuple[str, str, float], width: int) -> tuple[str, str, float]:
    """Return a line of a library by its innermost frame, where the frames around it leave no room for that."""
    place, function, share = line
    inner_place, _, inner_function = function.rpartition(BETWEEN)[2].partition(" ")
    if len(place) + len(function) <= width - ROOM_FOR_SHARE or not (inner_function and ":" in inner_place):
        return line
    return inner_place, inner_function, share


SHOWN_FROM_S: Final = 0.5  # a shorter start-up needs no explanation
NEARLY_ALL: Final = 0.9  # of a part: less is said of its longest line
SHOWN_SHARE: Final = 0.03  # of the start-up


def startup_lines(snapshot: Snapshot) -> list[str]:
    """Return what the program did before its first step, each with its longest line; nothing if that is short."""
    startup = snapshot.startup
    if startup is None or startup.total_s < SHOWN_FROM_S:
        return []
    texts = []
    for part in startup.parts:
        if part.seconds >= SHOWN_SHARE * startup.total_s:
            text = f"{bar_label(part.name)} {duration_text(part.seconds)}"
            for place, seconds in part.lines[:1]:
                most = "" if seconds >= NEARLY_ALL * part.seconds else f"{duration_text(seconds)} at "
                text += f" ({most}{place})"
            texts.append(text)
    of = "Before the first step" if startup.has_steps else "Without steps, the run"
    return [f"{of} ({duration_text(startup.total_s)}): {', '.join(texts)}"]


SHOWN_FROM: Final = 0.01  # of step time


def pause_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on the pauses that take 1 % of step time or more, and what they explain; none without."""
    step = snapshot.step
    shown = [] if step is None else [pause for pause in pauses(snapshot) if pause.seconds >= SHOWN_FROM * step.total_s]
    if step is None or not shown:
        return []
    texts = []
    for pause in shown:
        least, most = duration_text(pause.least_s), duration_text(pause.most_s)
        between = "" if least == most else f" ({least} to {most})"
        texts.append(f"{pause.cause} {duration_text(pause.seconds)}{between}")
    lost_s = lost_in_long_steps_s(snapshot)
    long = f"; steps took {duration_text(lost_s)} more than as many median ones"
    if lost_s < SHOWN_FROM * step.total_s:
        long = ""
    return [f"Pauses within steps ({duration_text(step.total_s)}): {', '.join(texts)}{long}"]


FILE: Final = Layout()  # 80 columns, ASCII, no color
_EPOCH_LABEL_WIDTH: Final = 25
_SHOWN_FROM_S: Final = 0.005
_MOST_PHASES: Final = 6
_CLEAR_CHANGE: Final = 0.02  # of the median step
_CLEAR_ERRORS: Final = 3.0  # standard errors


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a report comes from; None is unknown."""

    program: str | None = None
    """What was run: ``train.py``, or the name of a module."""
    folder: str | None = None
    """The run folder as it can be typed in a command."""


def render_periodic(snapshot: Snapshot, layout: Layout = FILE) -> str:
    """Return the report on the steps since the last one."""
    title = f"=== Profiling Report (Step {snapshot.steps}) ==="
    return _text([title, "", *breakdown_lines(snapshot, layout), *_rank_block(snapshot, layout)], layout)


def render_final(
    snapshot: Snapshot,
    findings: Iterable[Finding],
    layout: Layout = FILE,
    has_checklist: bool = False,
    origin: Origin | None = None,
) -> str:
    """Return the summary of a run: the verdict, where the time went, what to change, then all details."""
    findings, origin = list(findings), origin or Origin()
    return _text(
        [
            f"=== Final Profiling Summary ({snapshot.steps} steps) ===",
            *first_screen(snapshot, findings, layout, origin.program),
            "",
            *breakdown_lines(snapshot, layout),
            *_rank_block(snapshot, layout),
            "",
            *_run_lines(snapshot, layout),
            "Performance Insights:",
            *insight_lines(snapshot, findings, layout),
            *(["", *checklist_lines(snapshot, layout)] if has_checklist else []),
            *_health_lines(snapshot, layout),
            *_closing_lines(snapshot, findings, origin),
        ],
        layout,
    )


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
        rows = [(epoch_label(key, epoch.self_s), s) for s, key in [*named, (epoch.self_s.get(OTHER, 0.0), OTHER)]]
        shares = percentages([s / wall_s for _, s in rows])
        width = min(max(_EPOCH_LABEL_WIDTH, *(len(name) for name, _ in rows)), layout.width - 24)
        lines += ["", "Time Breakdown:"]
        for (name, s), share in zip(rows, shares, strict=True):
            lines.append(f"  {shortened(name, width):<{width}}: {share:4.1f}% ({s:5.2f}s)")
    lines.append("=" * 50)
    for warning in warnings:
        lines += layout.wrap(warning, first="WARNING: ")
    return _text(lines, layout)


def _run_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return what accounts for the whole wall time, how regular the steps were, and on what machine they ran."""
    before = [
        *_wall_lines(snapshot),
        *startup_lines(snapshot),
        *_step_lines(snapshot),
        *_phase_lines(snapshot),
        *device_lines(snapshot),
        *machine_lines(snapshot),
        *pause_lines(snapshot),
    ]
    after = [*exchange_lines(snapshot), *attempt_lines(snapshot)]
    if snapshot.open_sections:
        after.append(f"Still inside: {' > '.join(map(name_of, snapshot.open_sections))}")
    if snapshot.ended_by:
        after.append(f"Ended by: {snapshot.ended_by}")
    lines = [line for sentence in before for line in layout.wrap(sentence)]
    lines += loader_lines(snapshot, layout)
    lines += [line for sentence in after for line in layout.wrap(sentence)]
    return [*lines, ""] if lines else []


def _wall_lines(snapshot: Snapshot) -> list[str]:
    if not snapshot.wall_s:
        return []
    line, step = f"Wall time {duration_text(snapshot.wall_s)}", snapshot.step
    if step is None:
        return [line]
    in_steps_s = min(step.total_s, snapshot.wall_s)
    rest_s, rest, parts = snapshot.wall_s - in_steps_s, "outside steps", []
    if step.before_s is not None and step.before_s <= rest_s:
        parts.append(f"startup {duration_text(step.before_s)}")
        rest_s, rest = rest_s - step.before_s, "between steps"
    parts.append(f"{counted(step.count, 'step')} {duration_text(in_steps_s)}")
    if rest_s >= _SHOWN_FROM_S:
        parts.append(f"{rest} {duration_text(rest_s)}")
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


def _health_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    health = snapshot.health
    notes = [f"events dropped: {health.dropped}"] if health.dropped else []
    notes += [f"switched off: {part}" for part in health.disabled]
    cost = f"cost of the profiler: {health.overhead_s:.3f} s of the training thread"
    if snapshot.wall_s:
        cost += f" ({health.overhead_s / snapshot.wall_s:.2%} of the run)"
    lines = [line for note in (*notes, *health.notes, cost) for line in layout.wrap(note, first="- ")]
    return ["", "Profiler health:", *lines]


def _closing_lines(snapshot: Snapshot, findings: list[Finding], origin: Origin) -> list[str]:
    """Return where the run's files are, and the commands to type next."""
    lines = ["", f"Run folder: {snapshot.run_folder}"] if snapshot.run_folder else []
    if origin.folder is None:
        return lines
    report = f"training-profiler report {origin.folder}"
    lines += ["Next:", f"  {report} --checklist", f"  {report} --json"]
    if verdict(snapshot, findings).color == GOOD:  # then the slow operators matter most
        first = min(100, snapshot.steps // 2)
        lines.append(f"  RECTIFIED_FLOW_PROFILE_CAPTURE=steps={first}-{first + 3} training-profiler run ...")
    return lines
