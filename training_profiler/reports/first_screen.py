"""The top of the final summary: the verdict, where the time went, and what to change, on one screen."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from training_profiler.base.sections import VALIDATION_EPOCH
from training_profiler.base.units import counted, duration_text, ms_column, unit_of_steps
from training_profiler.diagnosis import Finding
from training_profiler.diagnosis.device import host_runs_ahead
from training_profiler.diagnosis.lines import WAITS_FOR_DEVICE
from training_profiler.diagnosis.registry import section_of
from training_profiler.model.snapshot import OTHER, OUTSIDE_STEPS, PROFILER, Snapshot
from training_profiler.reports.layout import KEPT, Layout, shortened
from training_profiler.reports.resources import OTHERS_SHOWN_FROM, rate_texts
from training_profiler.reports.sections import bar_label, percentages
from training_profiler.reports.verdict import important, source_line, verdict

MOST_BARS: Final = 9
WIDEST: Final = 110  # columns; longer bars show no more
LABEL_WIDTH: Final = 26
NEGLIGIBLE: Final = 0.001  # of the time in no section
WAITING: Final = "waiting for the device"
SHOWN_WAITING: Final = 0.1  # of unattributed time
MOST_OF_IT: Final = 0.9
PASSES_BEFORE: Final = "passes before training"  # that no validation repeats
BLOCKS: Final = " ▏▎▍▌▋▊▉█"
MARGIN: Final = " " * 10  # of what follows VERDICT
IN_STEPS, UNATTRIBUTED, BESIDE_STEPS, OUTSIDE, OURS = range(5)


class Bar(NamedTuple):
    """One bar: self time of a section and all nested in it. ``step_s``, of a mean step, is None outside steps."""

    name: str
    self_s: float
    step_s: float | None

    @property
    def group(self) -> int:
        """Return which group of bars it is in; they are shown in this order."""
        of_name = {PROFILER: OURS, OUTSIDE_STEPS: OUTSIDE, OTHER: UNATTRIBUTED}
        return of_name.get(self.name, BESIDE_STEPS if self.step_s is None else IN_STEPS)


def first_screen(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout, program: str | None) -> list[str]:
    """Return the lines below the title of the final summary."""
    layout = Layout(min(layout.width, WIDEST), layout.has_color, layout.is_unicode)
    changes = important(snapshot, findings)
    speed = [figure.replace(" ", KEPT) for figure in _speed(snapshot)]  # a line ends between two of them
    space = "   " if sum(map(len, speed)) + 3 * len(speed) <= layout.width else "  "
    blocks = (
        layout.wrap(space.join(speed), first=" ", rest=" ") if speed else [],
        _bar_lines(snapshot, changes, layout),
        _change_lines(snapshot, changes, layout) if changes else [],
    )
    rule = "=" * layout.width
    below = [line for block in blocks if block for line in ("", *block)]
    return [*_run_line(snapshot, layout, program), rule, *_verdict_lines(snapshot, findings, layout), *below, rule]


def _run_line(snapshot: Snapshot, layout: Layout, program: str | None) -> list[str]:
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


def _verdict_lines(snapshot: Snapshot, findings: Sequence[Finding], layout: Layout) -> list[str]:
    headline, detail, saving, color = verdict(snapshot, findings)
    begin = len(MARGIN)
    lines = [
        line[:begin] + layout.color(line[begin:], color, is_bold=True)
        for line in layout.wrap(headline, first=" VERDICT  ", rest=MARGIN)
    ]
    if detail:
        lines += layout.wrap(detail, first=MARGIN, rest=MARGIN)
    if saving:
        lines += [MARGIN + layout.color(line, color) for line in layout.wrap(saving, "", "", layout.width - begin)]
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
        yield from rate_texts(snapshot, rates)
        if rates.mfu is not None:
            yield f"MFU {rates.mfu:.0%}"
    gpus = () if machine is None else machine.gpus
    busy = [gpu.loop_utilization.mean for gpu in gpus if gpu.loop_utilization is not None]
    if busy:
        shared = None if machine is None else machine.most_shared
        others = "" if shared is None or shared[0] < OTHERS_SHOWN_FROM else f" (others {shared[0]:.0%})"
        yield f"GPU busy {sum(busy) / len(busy):.0%}{others}"


def _bars(snapshot: Snapshot) -> list[Bar]:
    """Return sections with time in steps, then unattributed time, sections outside steps, and the profiler.

    A section's time in a mean step is without warm-up, as the mean step itself.
    """
    step, tops = snapshot.step, dict[str, list[str]]()
    for name in snapshot.sections:
        tops.setdefault(_top(snapshot, name), []).append(name)
    bars = []
    for top, names in tops.items():
        self_s = sum(snapshot.sections[name].self_s for name in names)
        in_steps_s = self_s if top == OTHER else sum(snapshot.sections[name].step_self_s for name in names)
        step_s = None
        if step is not None and step.count and in_steps_s > 0:
            settled_s = snapshot.sections[top].settled_total_s
            is_settled = step.settled_count and settled_s
            step_s = settled_s / step.settled_count if is_settled else in_steps_s / step.count
        if top == OTHER:
            bars += _unattributed_bars(snapshot, Bar(top, self_s, step_s))
        elif self_s > 0:
            bars.append(Bar(top, self_s, step_s))
    return sorted(bars, key=lambda bar: (bar.group, -bar.self_s, bar.name))


def _unattributed_bars(snapshot: Snapshot, bar: Bar) -> list[Bar]:
    """Return the known parts of the time in no section, and the rest of it.

    A run without steps has parts of its start-up; its loop may have begun although no step ended. In steps much of it
    may be waiting for an accelerator, as in ``item()``.
    """
    parts = [] if snapshot.startup is None else snapshot.startup.parts
    seconds = {part.name: part.seconds for part in parts if part.name not in snapshot.sections}
    if not snapshot.steps and seconds:
        known_s = sum(seconds.values())
        scale = min(1.0, bar.self_s / known_s) if known_s else 0.0
        bars = [Bar(name, scale * part_s, None) for name, part_s in seconds.items()]
        left_s = bar.self_s - scale * known_s
        return [*bars, Bar(OTHER, left_s, None)] if left_s > NEGLIGIBLE * bar.self_s else bars
    if bar.self_s <= 0:
        return []
    share = sum(line.waiting_share for line in snapshot.lines.get(OTHER, ()))
    part = min(1.0, share * snapshot.wall_s / bar.self_s)
    if snapshot.device is None or part < SHOWN_WAITING:
        return [bar]
    step_s = bar.step_s or 0.0
    waits = Bar(WAITING, part * bar.self_s, part * step_s or None)
    return [waits, Bar(bar.name, (1 - part) * bar.self_s, (1 - part) * step_s or None)] if part < 1 else [waits]


def _top(snapshot: Snapshot, name: str) -> str:
    """Return the outermost section around ``name``."""
    seen = {name}
    while (parent := snapshot.sections[name].parent) in snapshot.sections and parent is not None and parent not in seen:
        name = parent
        seen.add(name)
    return name


def _bar_lines(snapshot: Snapshot, changes: Sequence[Finding], layout: Layout) -> list[str]:
    bars = _folded(_bars(snapshot))
    whole_s = sum(bar.self_s for bar in bars)
    if not whole_s:
        return []
    before = snapshot.program.passes_before
    before_s = None if before is None else before.seconds
    labels = []
    for bar in bars:
        is_before = bar.name == VALIDATION_EPOCH and before_s is not None and before_s >= MOST_OF_IT * bar.self_s
        label = PASSES_BEFORE if is_before else bar_label(bar.name, snapshot.sections)
        labels.append(shortened(label, LABEL_WIDTH))
    shares = percentages([bar.self_s / whole_s for bar in bars])
    marks = [_mark(snapshot, bar, changes) for bar in bars]
    label_width = max(map(len, labels))
    bar_width = max(5, layout.width - label_width - 23 - max(map(len, marks)))
    steps = 0 if snapshot.step is None else snapshot.step.count
    title = " where the time went".ljust(label_width + bar_width + 4)
    lines = [f"{title}{'ms/step' if steps else '':>10}{'of run':>9}"]
    times = ms_column([bar.step_s for bar in bars], digits=3)
    for label, share, mark, time in zip(labels, shares, marks, times, strict=True):
        per_step = time or ("-" if steps else "")
        drawn = layout.color(_drawn(share / max(shares), bar_width, layout).ljust(bar_width), "cyan")
        lines.append(f"   {label:<{label_width}} {drawn}{per_step:>10}{share:>8.1f}%{mark}")
    return lines


def _folded(bars: list[Bar]) -> list[Bar]:
    """Return at most ``MOST_BARS`` bars: if there are more, the smallest sections share one."""
    if len(bars) <= MOST_BARS:
        return bars
    named = sorted((bar for bar in bars if bar.group in (IN_STEPS, BESIDE_STEPS)), key=lambda bar: -bar.self_s)
    small = named[max(1, MOST_BARS - 1 - (len(bars) - len(named))) :]
    step_s = sum(bar.step_s or 0.0 for bar in small)
    rest = Bar(f"{len(small)} smaller sections", sum(bar.self_s for bar in small), step_s or None)
    left = [bar for bar in bars if bar not in small]
    at = sum(bar.group == IN_STEPS for bar in left)
    return [*left[:at], rest, *left[at:]]


def _mark(snapshot: Snapshot, bar: Bar, changes: Sequence[Finding]) -> str:
    """Return which changes are about this bar: "" where none is."""
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
    room = layout.width - 15
    lines = [f" what to change{'could save':>{room}}"]
    for number, change in enumerate(changes, start=1):
        saving = duration_text(change.potential_saving_s) if change.potential_saving_s else ""
        first, *more = layout.wrap(change.message, first=f" {number} ", rest="   ", width=room)
        lines += [f"{first:<{room}}{layout.color(f'{saving:>15}', 'green')}".rstrip(), *more]
        place = source_line(snapshot, change)
        if place is not None:
            line, share = place
            where = f"{share:>5.0%} of {bar_label(section_of(change) or '', snapshot.sections)} time"
            left = layout.width - 7 - len(where)
            lines.append(f"     {shortened(f'{line.place}  {line.what}', left):<{left}}  {where}")
        same = next((at for at, before in enumerate(changes[: number - 1], 1) if before.advice == change.advice), None)
        advice = change.advice if same is None else f"The same change as {same}"
        lines += layout.wrap(advice, first="     -> ", rest="        ")
    return lines
