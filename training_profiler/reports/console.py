"""The reports of the terminal, as spec and PROFILING.md describe them."""

import sys
from collections.abc import Iterable

from training_profiler.diagnosis import Finding
from training_profiler.reports.checklist import checklist_lines
from training_profiler.reports.device import HEADER, device_cells, device_lines, device_words
from training_profiler.reports.distribution import INDENT, distribution, in_tree_order, lines_under, percentages
from training_profiler.reports.findings import finding_lines
from training_profiler.reports.loaders import loader_lines
from training_profiler.reports.machine import machine_lines
from training_profiler.reports.ranks import attempt_lines, exchange_lines, rank_lines
from training_profiler.snapshot.snapshot import OUTSIDE_STEPS, PROFILER, EpochStats, SectionStats, Snapshot
from training_profiler.units import S_PER_HOUR, seconds_text

# Now, and not at the first table: an import at the interpreter's end makes it forget that Ctrl-C ended the program.
# And out of sight again: what a program imports at its end, as torch does this very module, shall be new to it.
_was_there = "tabulate" in sys.modules
try:
    from tabulate import tabulate
except ImportError:  # the program has a tabulate.py of its own beside it
    tabulate = None  # type: ignore[assignment]
if not _was_there:
    sys.modules.pop("tabulate", None)

TABLE, LINES = "table", "lines"
_HEADERS = ("section", "count", "total", "avg", "min", "max", "p50", "p95", "p99", "std")
_RULE = "=" * 50


def render_periodic(snapshot: Snapshot, layout: str = TABLE) -> str:
    """Return the report on the steps since the last one."""
    return f"\n=== Profiling Report (Step {snapshot.steps}) ===\n\n{_body(snapshot, layout)}\n"


def render_final(
    snapshot: Snapshot, findings: Iterable[Finding], layout: str = TABLE, has_checklist: bool = False
) -> str:
    """Return the summary of a run, with what to change and how the profiler itself fared."""
    parts = [
        f"\n=== Final Profiling Summary ({snapshot.steps} steps) ===",
        "",
        _body(snapshot, layout),
        "",
        *_run_lines(snapshot, layout),
        "Performance Insights:",
        *finding_lines(snapshot, findings),
        *(["", *checklist_lines(snapshot)] if has_checklist else []),
        *_health_lines(snapshot),
    ]
    if snapshot.run_folder:
        parts += ["", f"Run folder: {snapshot.run_folder}"]
    return "\n".join(parts) + "\n"


def render_epoch(epoch: EpochStats, warnings: Iterable[str] = ()) -> str:
    """Return the summary of one epoch."""
    lines = [f"\n=== Epoch {epoch.number} Profiling Summary ===", f"Total time: {epoch.wall_s:.2f}s"]
    if epoch.avg_batch_s is not None and epoch.batches:
        lines.append(f"Avg batch time: {epoch.avg_batch_s:.3f}s")
        if epoch.wall_s:
            samples = f", {epoch.samples / epoch.wall_s:.1f} samples/s" if epoch.samples else ""
            lines.append(f"Throughput: {epoch.batches / epoch.wall_s * S_PER_HOUR:.1f} batches/hour{samples}")
    if epoch.wall_s:
        lines += ["", "Time Breakdown:", *_epoch_rows(epoch)]
    lines += [_RULE, *(f"WARNING: {warning}" for warning in warnings)]
    return "\n".join(lines) + "\n"


def _epoch_rows(epoch: EpochStats) -> list[str]:
    named = sorted(((s, name) for name, s in epoch.self_s.items() if name != "other"), reverse=True)
    rows = [(name, s) for s, name in named] + [("other/overhead", epoch.self_s.get("other", 0.0))]
    shares = percentages([s / epoch.wall_s for _, s in rows])
    width = max(25, *(len(name) for name, _ in rows))
    return [f"  {name:<{width}}: {share:4.1f}% ({s:5.2f}s)" for (name, s), share in zip(rows, shares, strict=True)]


def _body(snapshot: Snapshot, layout: str) -> str:
    rows = list(in_tree_order(snapshot.sections))
    # Of the profiler's own work there is time before there is a span: the report is in the middle of it.
    shown_rows = [(depth, section) for depth, section in rows if section.count or section.name != PROFILER]
    breakdown = _lines(snapshot, shown_rows) if layout == LINES else _table(snapshot, shown_rows)
    if not rows:
        breakdown = "(no section has ended yet)"
    shares = _share_lines(snapshot) if layout == LINES else _share_rows(snapshot)
    shown = "\n".join(shares or ["(no time has passed on the clock)"])
    of_ranks = "".join(f"\n{line}" for line in rank_lines(snapshot, layout))
    return f"Detailed Breakdown:\n{breakdown}\n\nTime Distribution:\n{shown}" + (of_ranks and f"\n{of_ranks}")


def _share_lines(snapshot: Snapshot) -> list[str]:
    lines = []
    for _, section, share in distribution(snapshot):
        lines.append(f"{section.name}: {share:.1f}%")
        places = lines_under(snapshot, section, share)
        lines += [f"{section.name}: {place} {function}: {part:.1f}%" for place, function, part in places]
    return lines


def _share_rows(snapshot: Snapshot) -> list[str]:
    # Two columns need no library, and half a report's time goes into tables.
    sections = [
        (INDENT * depth + section.name, share, section, _code_rows(snapshot, section, share, depth + 2))
        for depth, section, share in distribution(snapshot)
    ]
    width = max((len(label) for label, _, _, _ in sections), default=0)
    code = [row for _, _, _, code_rows in sections for row in code_rows]
    place_width = max((len(place) for place, _, _ in code), default=0)
    # What code takes is a part of the section's own time, so it stands to the right of the column that adds up to 100.
    function_width = max([width + 6 - place_width, *(len(function) for _, function, _ in code)])
    rows = []
    for label, share, section, code_rows in sections:
        rows.append(f"{label:<{width}}  {share:5.1f}%{_elsewhere(section)}")
        rows += [
            f"{place:<{place_width}}  {function:<{function_width}}  {part:5.1f}%" for place, function, part in code_rows
        ]
    return rows


def _code_rows(snapshot: Snapshot, section: SectionStats, share: float, depth: int) -> list[tuple[str, str, float]]:
    return [(INDENT * depth + place, function, part) for place, function, part in lines_under(snapshot, section, share)]


def _elsewhere(section: SectionStats) -> str:
    if not section.elsewhere_s:
        return ""
    return f"  (and {section.elsewhere_s:.3f}s on other threads, beside this time)"


def _table(snapshot: Snapshot, rows: list[tuple[int, SectionStats]]) -> str:
    headers = _HEADERS if snapshot.device is None else (*_HEADERS, HEADER)
    cells = [
        (
            INDENT * depth + section.name,
            section.count,
            f"{section.total_s:.3f}s",
            *(
                "" if seconds is None else seconds_text(seconds)
                for seconds in (
                    section.avg_s,
                    section.min_s,
                    section.max_s,
                    section.p50_s,
                    section.p95_s,
                    section.p99_s,
                    section.std_s,
                )
            ),
            *device_cells(snapshot, section),
        )
        for depth, section in rows
    ]
    if tabulate is None:
        return _lines(snapshot, rows)
    return tabulate(
        cells,
        headers=headers,
        colalign=("left", *["right"] * (len(headers) - 1)),
        disable_numparse=True,
        preserve_whitespace=True,
    )


def _lines(snapshot: Snapshot, rows: list[tuple[int, SectionStats]]) -> str:
    return "\n".join(
        f"{section.name}: count={section.count}, total={section.total_s:.3f}s"
        + "".join(
            f", {label}={seconds:.4f}s"
            for label, seconds in (("avg", section.avg_s), ("min", section.min_s), ("max", section.max_s))
            if seconds is not None
        )
        + device_words(snapshot, section)
        for _, section in rows
    )


def _run_lines(snapshot: Snapshot, layout: str) -> list[str]:
    """Return what accounts for the whole wall time, and how regular the steps were."""
    lines = []
    if snapshot.wall_s:
        lines.append(_wall_line(snapshot))
    step = snapshot.step
    if step is not None:
        warmup = f" after {step.warmup_count} of warm-up" if step.warmup_count else ""
        if step.disturbed_count:
            how = "without" if step.has_own_pace else "with"
            warmup += f", {how} {step.disturbed_count} in or after a capture window"
        lines.append(
            f"Step time: {seconds_text(step.avg_s)} avg, {seconds_text(step.std_s)} std{warmup}; "
            f"median {seconds_text(step.median_s)}, max {seconds_text(step.max_s)} at step {step.max_step}"
        )
    lines += device_lines(snapshot)
    lines += machine_lines(snapshot)
    lines += loader_lines(snapshot, layout != LINES)
    lines += exchange_lines(snapshot)
    lines += attempt_lines(snapshot)
    if snapshot.open_sections:
        lines.append(f"Still inside: {' > '.join(snapshot.open_sections)}")
    if snapshot.ended_by:
        lines.append(f"Ended by: {snapshot.ended_by}")
    return [*lines, ""] if lines else []


def _wall_line(snapshot: Snapshot) -> str:
    line = f"Wall time: {snapshot.wall_s:.2f}s"
    step = snapshot.step
    if step is None:
        return line
    in_steps_s = min(step.total_s, snapshot.wall_s)
    rest_s, rest = snapshot.wall_s - in_steps_s, "before, between and after them"
    line += " = "
    if step.before_s is not None and step.before_s <= rest_s:
        line += f"{step.before_s:.2f}s before the first step + "
        rest_s, rest = rest_s - step.before_s, "between and after them"
    line += f"{in_steps_s:.2f}s in {step.count} steps + {rest_s:.2f}s {rest}"
    outside = snapshot.sections.get(OUTSIDE_STEPS)
    if outside is not None and outside.self_s >= 0.005:
        line += f" ({outside.self_s:.2f}s outside of steps in no section)"
    return line


def _health_lines(snapshot: Snapshot) -> list[str]:
    health = snapshot.health
    lines = [f"- events dropped: {health.dropped}"] if health.dropped else []
    lines += [f"- switched off: {part}" for part in health.disabled]
    lines += [f"- {note}" for note in health.notes]
    cost = f"- cost of the profiler: {health.overhead_s:.3f}s"
    if snapshot.wall_s:
        cost += f" ({health.overhead_s / snapshot.wall_s:.2%} of the run)"
    return ["", "Profiler health:", *lines, cost]
