"""The top of the final summary: the verdict, where the time went, and what to change, on one screen."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from training_profiler.base.units import duration_text, ms_column, three_digits, unit_of_steps
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.device import host_runs_ahead
from training_profiler.diagnosis.lines import WAITS_FOR_DEVICE
from training_profiler.diagnosis.registry import section_of
from training_profiler.reports.distribution import percentages
from training_profiler.reports.findings import important, source_line
from training_profiler.reports.labels import bar_label
from training_profiler.reports.layout import KEPT, Layout, shortened
from training_profiler.reports.machine import OTHERS_SHOWN_FROM, steps_per_s_text
from training_profiler.reports.verdict import verdict
from training_profiler.snapshot.snapshot import OTHER, OUTSIDE_STEPS, PROFILER, Snapshot
from training_profiler.tables.sections import VALIDATION_EPOCH

MOST_BARS: Final = 9
WIDEST: Final = 110  # columns; longer bars show no more
LABEL_WIDTH: Final = 26
NEGLIGIBLE: Final = 0.001  # of the time in no section
WAITING: Final = "waiting for the device"
SHOWN_WAITING: Final = 0.1  # of unattributed time
MOST_OF_IT: Final = 0.9
PASSES_BEFORE: Final = "passes before training"  # that no validation repeats
BLOCKS: Final = " ▏▎▍▌▋▊▉█"
INDENT: Final = 10  # of what follows VERDICT


class Bar(NamedTuple):
    """One bar: self time of a section and all nested in it. ``step_s``, of a mean step, is None outside steps."""

    name: str
    self_s: float
    step_s: float | None


def first_screen(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout, program: str | None) -> list[str]:
    """Return the lines below the title of the final summary."""
    layout = Layout(min(layout.width, WIDEST), layout.has_color, layout.is_unicode)
    changes = important(snapshot, findings)
    rule = "=" * layout.width
    lines = [*_run_line(snapshot, layout, program), rule, *_verdict_lines(snapshot, findings, layout)]
    speed = [figure.replace(" ", KEPT) for figure in _speed(snapshot)]  # a line ends between two of them
    space = "   " if sum(map(len, speed)) + 3 * len(speed) <= layout.width else "  "
    if speed:
        lines += ["", *layout.wrap(space.join(speed), first=" ", rest=" ")]
    bars = _bar_lines(snapshot, changes, layout)
    if bars:
        lines += ["", *bars]
    if changes:
        lines += ["", *_change_lines(snapshot, changes, layout)]
    return [*lines, rule]


def _run_line(snapshot: Snapshot, layout: Layout, program: str | None) -> list[str]:
    """Return the lines that describe the run."""
    counts = [_plural(snapshot.steps, "step")]
    epochs = max(len(snapshot.epochs), snapshot.program.epochs)
    if epochs and not snapshot.program.unclear_after:
        counts.insert(0, _plural(epochs, "epoch"))
    if snapshot.ranks is not None:
        counts.append(_plural(snapshot.ranks.world_size, "rank"))
    text = ", ".join(counts)
    if snapshot.wall_s:
        text += f" in {duration_text(snapshot.wall_s)}"
    if snapshot.ended_by:
        text += f", ended by {snapshot.ended_by}"
    return layout.wrap(f"{program} - {text}" if program else text, rest="")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _verdict_lines(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout) -> list[str]:
    headline, detail, saving, color = verdict(snapshot, findings)
    margin = " " * INDENT
    lines = [
        line[:INDENT] + layout.color(line[INDENT:], color, is_bold=True)
        for line in layout.wrap(headline, first=" VERDICT  ", rest=margin)
    ]
    if detail:
        lines += layout.wrap(detail, first=margin, rest=margin)
    if saving:
        lines += [
            margin + layout.color(line, color) for line in layout.wrap(saving, rest="", width=layout.width - INDENT)
        ]
    return lines


def _speed(snapshot: Snapshot) -> Iterator[str]:
    """Yield how fast the training is; figures that are unknown are left out."""
    step, rates, machine = snapshot.step, snapshot.throughput, snapshot.machine
    if step is not None and step.settled_count:
        unit, number = unit_of_steps(step.avg_s)
        other = f" (median {number(step.median_s)})" if step.p95_s is None else f" (p95 {number(step.p95_s)})"
        if host_runs_ahead(snapshot):
            other = " (mean; the host runs ahead)"
        yield f"step {number(step.avg_s)} {unit}{other if step.settled_count > 1 else ''}"
    if rates is not None:
        yield steps_per_s_text(snapshot)
        if rates.samples_per_s is not None:
            yield f"{three_digits(rates.samples_per_s)} samples/s"
        if rates.tokens_per_s is not None:
            yield f"{three_digits(rates.tokens_per_s)} tokens/s"
        if rates.mfu is not None:
            yield f"MFU {rates.mfu:.0%}"
    gpus = () if machine is None else machine.gpus
    busy = [gpu.loop_utilization.mean for gpu in gpus if gpu.loop_utilization is not None]
    if busy:
        shared = None if machine is None else machine.most_shared
        others = "" if shared is None or shared[0] < OTHERS_SHOWN_FROM else f" (others {shared[0]:.0%})"
        yield f"GPU busy {sum(busy) / len(busy):.0%}{others}"


def _bars(snapshot: Snapshot) -> list[Bar]:
    """Return sections with time in steps, then unattributed time, sections outside steps, and the profiler."""
    tops: dict[str, list[str]] = {}
    for name in snapshot.sections:
        tops.setdefault(_top(snapshot, name), []).append(name)
    bars = []
    for top, names in tops.items():
        parts = [snapshot.sections[name] for name in names]
        self_s, step_s = sum(part.self_s for part in parts), sum(part.step_self_s for part in parts)
        if top == OTHER:
            step_s = self_s
        if top == OTHER and not snapshot.steps and (prepared := _prepared_bars(snapshot, self_s)):
            bars += prepared
        elif self_s > 0:
            bar = Bar(top, self_s, _of_a_step_s(snapshot, top, step_s) if step_s > 0 else None)
            bars += _without_waiting(snapshot, bar) if top == OTHER else [bar]
    return sorted(bars, key=lambda bar: (_group(bar), -bar.self_s, bar.name))


def _without_waiting(snapshot: Snapshot, bar: Bar) -> list[Bar]:
    """Return the bar of unattributed time in two, where much of it is waiting for an accelerator, as in ``item()``."""
    share = sum(line.waiting_share for line in snapshot.lines.get(OTHER, ()))
    part = min(1.0, share * snapshot.wall_s / bar.self_s)
    if snapshot.device is None or part < SHOWN_WAITING:
        return [bar]
    step_s = bar.step_s or 0.0
    waits = Bar(WAITING, part * bar.self_s, part * step_s or None)
    return [waits, Bar(bar.name, (1 - part) * bar.self_s, (1 - part) * step_s or None)] if part < 1 else [waits]


def _of_a_step_s(snapshot: Snapshot, name: str, in_steps_s: float) -> float | None:
    """Return a section's time in a mean step; warm-up is left out, as in the mean step itself."""
    step = snapshot.step
    if step is None or not step.count:
        return None
    settled_s = snapshot.sections[name].settled_total_s
    return settled_s / step.settled_count if step.settled_count and settled_s else in_steps_s / step.count


def _prepared_bars(snapshot: Snapshot, self_s: float) -> list[Bar]:
    """Return what a run without steps did in no section, in place of one bar of ``self_s``; nothing if unknown.

    A loop may have begun although no step ended. What it did in no section stays in the last bar.
    """
    parts = [] if snapshot.startup is None else snapshot.startup.parts
    seconds = {part.name: part.seconds for part in parts if part.name not in snapshot.sections}
    known_s = sum(seconds.values())
    scale = min(1.0, self_s / known_s) if known_s else 0.0
    bars = [Bar(name, scale * part_s, None) for name, part_s in seconds.items()]
    left_s = self_s - scale * known_s
    return [*bars, Bar(OTHER, left_s, None)] if bars and left_s > NEGLIGIBLE * self_s else bars


def _top(snapshot: Snapshot, name: str) -> str:
    """Return the outermost section around ``name``."""
    seen = {name}
    while (parent := snapshot.sections[name].parent) in snapshot.sections and parent is not None and parent not in seen:
        name = parent
        seen.add(name)
    return name


def _group(bar: Bar) -> int:
    if bar.name == PROFILER:
        return 4
    if bar.name == OUTSIDE_STEPS:
        return 3
    return 1 if bar.name == OTHER else 2 if bar.step_s is None else 0


def _bar_lines(snapshot: Snapshot, changes: Sequence[Finding], layout: Layout) -> list[str]:
    bars = _folded(_bars(snapshot))
    whole_s = sum(bar.self_s for bar in bars)
    if not whole_s:
        return []
    shares = percentages([bar.self_s / whole_s for bar in bars])
    marks = [_mark(snapshot, bar, changes) for bar in bars]
    labels = [shortened(_label(snapshot, bar), LABEL_WIDTH) for bar in bars]
    label_width = max(len(label) for label in labels)
    bar_width = max(5, layout.width - label_width - 23 - max(len(mark) for mark in marks))
    steps = 0 if snapshot.step is None else snapshot.step.count
    title = " where the time went".ljust(label_width + bar_width + 4)
    lines = [f"{title}{'ms/step' if steps else '':>10}{'of run':>9}"]
    times = ms_column([bar.step_s for bar in bars], digits=3)
    for label, share, mark, time in zip(labels, shares, marks, times, strict=True):
        per_step = time or ("-" if steps else "")
        drawn = layout.color(_drawn(share / max(shares), bar_width, layout).ljust(bar_width), "cyan")
        lines.append(f"   {label:<{label_width}} {drawn}{per_step:>10}{share:>8.1f}%{mark}")
    return lines


def _label(snapshot: Snapshot, bar: Bar) -> str:
    before = snapshot.program.passes_before
    is_before = bar.name == VALIDATION_EPOCH and before is not None and before.seconds >= MOST_OF_IT * bar.self_s
    return PASSES_BEFORE if is_before else bar_label(bar.name, snapshot.sections)


def _folded(bars: list[Bar]) -> list[Bar]:
    """Return at most ``MOST_BARS`` bars: if there are more, the smallest sections share one."""
    named = sorted((bar for bar in bars if _group(bar) in (0, 2)), key=lambda bar: -bar.self_s)
    kept = max(1, MOST_BARS - 1 - (len(bars) - len(named)))
    if len(bars) <= MOST_BARS:
        return bars
    small = named[kept:]
    step_s = sum(bar.step_s or 0.0 for bar in small)
    rest = Bar(f"{len(small)} smaller sections", sum(bar.self_s for bar in small), step_s or None)
    left = [bar for bar in bars if bar not in small]
    at = sum(_group(bar) == 0 for bar in left)
    return [*left[:at], rest, *left[at:]]


def _mark(snapshot: Snapshot, bar: Bar, changes: Sequence[Finding]) -> str:
    """Return which change is about this bar: "" where none is."""
    numbers = []
    for number, change in enumerate(changes, start=1):
        name = section_of(change)
        is_waiting = change.code == WAITS_FOR_DEVICE and bar.name == WAITING
        if is_waiting or (name is not None and name in snapshot.sections and _top(snapshot, name) == bar.name):
            numbers.append(str(number))
    return f" <- {','.join(numbers)}" if numbers else ""


def _drawn(share: float, width: int, layout: Layout) -> str:
    if not layout.is_unicode:
        return "#" * round(share * width) or "."
    eighths = max(1, round(share * width * 8))
    return BLOCKS[-1] * (eighths // 8) + BLOCKS[eighths % 8].strip()


def _change_lines(snapshot: Snapshot, changes: Sequence[Finding], layout: Layout) -> list[str]:
    lines = [f" what to change{'could save':>{layout.width - 15}}"]
    for number, change in enumerate(changes, start=1):
        saving = duration_text(change.potential_saving_s) if change.potential_saving_s else ""
        first, *more = layout.wrap(change.message, first=f" {number} ", rest="   ", width=layout.width - 15)
        lines.append(f"{first:<{layout.width - 15}}{layout.color(f'{saving:>15}', 'green')}".rstrip())
        lines += more
        place = source_line(snapshot, change)
        if place is not None:
            line, share = place
            text = f"{line.place}  {line.what}"
            where = f"{share:>5.0%} of {bar_label(section_of(change) or '', snapshot.sections)} time"
            lines.append(
                f"     {shortened(text, layout.width - 7 - len(where)):<{layout.width - 7 - len(where)}}  {where}"
            )
        same = next((at for at, before in enumerate(changes[: number - 1], 1) if before.advice == change.advice), None)
        advice = change.advice if same is None else f"The same change as {same}"
        lines += layout.wrap(advice, first="     -> ", rest="        ")
    return lines
