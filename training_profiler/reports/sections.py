"""Sections on the screen: their names, and how wall time divides among them; nested ones follow their parents.

Data, metrics and lines to grep keep the sections' own names.
"""

from collections.abc import Container, Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

from training_profiler.base import sections as known
from training_profiler.base.sections import key_of, name_of
from training_profiler.base.text import PREFIX
from training_profiler.base.units import duration_text, three_digits
from training_profiler.model.snapshot import (
    AFTER_TRAINING,
    BEFORE_TRAINING,
    HOT_PLACES,
    HOT_SHARE,
    OTHER,
    OUTSIDE_STEPS,
    PROFILER,
    SectionStats,
    Snapshot,
)
from training_profiler.reports.layout import shortened

# Of rows that are not sections of the program.
LABELS: Final = {
    OTHER: "unattributed (in step)",
    OUTSIDE_STEPS: "startup & between steps",
    PROFILER: "profiler overhead",
    known.FIRST_FETCH: "first batch of an epoch",
    known.FORWARD_WITHOUT_GRAD: "no-grad forward",
}
WITHOUT_STEPS: Final = {**LABELS, OTHER: "unattributed"}
WITHOUT_START: Final = {  # where the start-up stands apart, and what follows the training
    **LABELS,
    OUTSIDE_STEPS: "between steps",
    BEFORE_TRAINING: "before the first step",
    AFTER_TRAINING: "after the last step",
}
OF_EPOCHS: Final = {**LABELS, OTHER: "other/overhead"}
OURS: Final = "(built-in)"  # behind the label of a row of ours, where the user called a section by that label


def table_label(key: str, among: Container[str] = (), labels: Mapping[str, str] = LABELS) -> str:
    """Return the name of a section in tables, charts and sentences, ``among`` others."""
    label = labels.get(key) or name_of(key)
    users = key_of(label)
    return f"{label} {OURS}" if users != key and users in among else label


INDENT: Final = "  "


def row_label(depth: int, section: SectionStats, among: Container[str] = (), labels: Mapping[str, str] = LABELS) -> str:
    """Return the label of a row of a table, below that of the section around it."""
    within, _, name = section.name.rpartition("/")
    if not (depth and within and f"{section.parent}/".startswith(f"{within}/")):
        name = section.name
    return INDENT * depth + table_label(name, among, labels)


MOST_ROWS, SMALL = 12, 0.5  # of the distribution; sections below so many percent share a row
MORE: Final = "{} more sections"
MOST_DEPTH: Final = 20  # deeper sections are not indented further
IN_WORKERS: Final = "worker:"  # before the place of a line
MOSTLY: Final = 0.5
LINES_ABOVE: Final = 0.10  # of the run: a section with a larger self time shows its lines


def in_tree_order(sections: Mapping[str, SectionStats]) -> Iterator[tuple[int, SectionStats]]:
    """Yield (depth, section): the largest first, each followed by those nested in it."""
    children: dict[str | None, list[SectionStats]] = {}
    for section in sections.values():
        if section.count or section.name not in (OTHER, OUTSIDE_STEPS):
            children.setdefault(section.parent if section.parent in sections else None, []).append(section)
    waiting: list[tuple[int, SectionStats]] = []
    parent: str | None = None
    depth = 0
    while True:
        nested = sorted(children.pop(parent, []), key=lambda each: (-each.total_s, each.name), reverse=True)
        waiting += [(depth, section) for section in nested]
        if waiting:
            depth, section = waiting.pop()
            yield min(depth, MOST_DEPTH), section
            parent, depth = section.name, depth + 1
        elif children:  # a circle of parents, which only a damaged journal has
            parent, depth = next(iter(children)), 0
        else:
            return


def percentages(shares: list[float]) -> list[float]:
    """Return ``shares`` of 1 as percentages of one decimal that add up to exactly 100.0.

    What rounding leaves over goes to the shares with the largest remainders. Shares that do not add up to 1 are only
    rounded.
    """
    tenths = [share * 1000 for share in shares]
    rounded = [int(value // 1) for value in tenths]
    missing = 1000 - sum(rounded) if abs(sum(shares) - 1) < 1e-6 else 0
    by_remainder = sorted(range(len(tenths)), key=lambda i: rounded[i] - tenths[i])
    for i in by_remainder[: max(0, missing)]:
        rounded[i] += 1
    return [value / 10 for value in rounded]


def distribution(snapshot: Snapshot) -> list[tuple[tuple[int, SectionStats], float]]:
    """Return how the run divides among sections: percentages of its exclusive time, which add up to 100.0."""
    rows = _rows(snapshot) if snapshot.wall_s else []
    return list(zip(rows, percentages([section.share for _, section in rows]), strict=True))


def _rows(snapshot: Snapshot) -> list[tuple[int, SectionStats]]:
    """Return (depth, section); the rows for time that no section covers come last."""
    sections = snapshot.sections
    uncovered = [sections[name] for name in (OTHER, OUTSIDE_STEPS) if name in sections and not sections[name].count]
    return [*in_tree_order(sections), *((0, row) for row in uncovered if row.name == OTHER or row.self_s > 0)]


class ShareRow(NamedTuple):
    """A section in the distribution of the training time, which is the time from the first step to the last."""

    depth: int
    section: SectionStats
    percent: float  # of the training time, by exclusive time; those of all rows add up to 100.0
    step_s: float | None  # of a mean step after warm-up, by exclusive time; None outside of steps


def training_rows(snapshot: Snapshot) -> list[ShareRow]:
    """Return how the training time divides among sections, or without steps, the run; nothing where no time passed."""
    rows = _rows(snapshot)
    whole_s = sum(section.training_s for _, section in rows)
    if not snapshot.wall_s or not whole_s:
        return []
    percents = percentages([section.training_s / whole_s for _, section in rows])
    return [
        ShareRow(depth, section, percent, _own_step_s(snapshot, section))
        for (depth, section), percent in zip(rows, percents, strict=True)
    ]


def smallest(
    rows: list[tuple[SectionStats, float]], most: int, small: float = 0.0, kept: Container[str] = ()
) -> set[str]:
    """Return which sections share a row: all below ``small``, and so many that there are at most ``most`` rows.

    A section stays if it is ``kept``, or holds one that stays. ``rows`` are in tree order, each with its size.
    """
    largest: dict[str | None, float] = {}  # of a section and of those in it
    for section, size in reversed(rows):
        here = max(size, largest.get(section.name, 0.0), inf if section.name in kept else 0.0)
        largest[section.name] = here
        largest[section.parent] = max(here, largest.get(section.parent, 0.0))
    ordered = sorted((section.name for section, _ in reversed(rows)), key=largest.__getitem__)
    surplus = len(rows) + 1 - most if len(rows) > most else 0
    below = sum(largest[name] < small for name in ordered)
    rest = {name for name in ordered[: max(surplus, below)] if largest[name] < inf}
    return rest if len(rest) > 1 else set()


def folded(rows: list[ShareRow], kept: Container[str], most: int) -> list[ShareRow]:
    """Return at most so many rows; of many, the smallest sections but the ``kept`` ones share the last row."""
    small_from = SMALL if len(rows) > MOST_ROWS else 0.0
    names = smallest([(row.section, row.percent) for row in rows], most, small_from, kept)
    small = [row for row in rows if row.section.name in names]
    if not small:
        return rows
    rest = SectionStats(MORE.format(len(small)), 0, 0.0, sum(row.section.self_s for row in small), 0.0)
    step_s = sum(row.step_s or 0.0 for row in small) or None
    percent = round(sum(row.percent for row in small), 1)
    return [*(row for row in rows if row not in small), ShareRow(0, rest, percent, step_s)]


def labels_of(snapshot: Snapshot) -> tuple[Mapping[str, str], str]:
    """Return the names of rows that are not sections, and what time ``training_rows`` divides, in words."""
    if snapshot.training_s < snapshot.wall_s:
        return WITHOUT_START, "of training"
    return LABELS if snapshot.steps else WITHOUT_STEPS, "of run"


def _own_step_s(snapshot: Snapshot, section: SectionStats) -> float | None:
    step = snapshot.step
    if step is None or not section.step_self_s:
        return None
    nested_s = sum(each.settled_total_s for each in snapshot.sections.values() if each.parent == section.name)
    if step.settled_count and section.settled_total_s > nested_s:
        return (section.settled_total_s - nested_s) / step.settled_count
    return section.step_self_s / step.count


def lines_under(
    snapshot: Snapshot, section: SectionStats, percentage: float, *, of_run: bool = False
) -> list[tuple[str, str, float]]:
    """Return the code to show under a section: place, function and what waits there, and percentage of the training.

    With ``of_run`` percentages are of the run, and nothing is said of waiting.

    That is included in the section's own ``percentage``. Waiting for data is divided as the work of the loaders'
    workers, unless the training makes some batches itself.
    """
    whole_s, from_first_step_s = snapshot.wall_s if of_run else snapshot.training_s, section.self_s - section.before_s
    scale = snapshot.wall_s / whole_s if whole_s else 0.0
    if section.name != OTHER and section.share * scale <= LINES_ABOVE:
        return []
    if section.name == known.DATA_LOADING and all(loader.num_workers for loader in snapshot.loaders):
        in_workers = [
            (f"{IN_WORKERS} {line.place}", line.what, round(percentage * line.share, 1))
            for line in snapshot.lines_in_workers()[:HOT_PLACES]
            if section.share * line.share >= HOT_SHARE
        ]
        if in_workers:
            return in_workers
    early_s: dict[str, float] = {}
    if section.name == OUTSIDE_STEPS and not of_run:
        if section.after_s > MOSTLY * from_first_step_s:  # then its lines are those of another time
            return []
        if section.before_s and snapshot.startup is not None:
            early_s = {text: seconds for part in snapshot.startup.parts for text, seconds in part.lines}
    in_training = 1.0 if of_run else section.training_s / from_first_step_s if from_first_step_s > 0 else 0.0
    lines = []
    for line in snapshot.hottest(section.name):
        seconds = line.share * snapshot.wall_s - early_s.get(f"{line.place} {line.what}", 0.0)
        share = in_training * seconds / (whole_s or 1.0)
        if share >= HOT_SHARE and percentage >= 100 * HOT_SHARE:
            waits = not of_run and line.waiting_share >= 0.5 * line.share > 0
            what = f"{line.what} waits in {line.waits_text}" if waits else line.what
            lines.append((line.place, what, min(percentage, round(100 * share, 1))))
    return lines


MOST_SECTIONS: Final = 3
NAME_WIDTH: Final = 40
LEAST_SHARE: Final = 0.01


def status_text(steps: int, steps_per_s: float | None, detail: str, width: int) -> str:
    """Return the status line between reports, shorter than ``width``: the last column would begin the next line."""
    rate = f"{three_digits(steps_per_s)} steps/s" if steps_per_s else ""
    line = " | ".join(part for part in (f"{PREFIX}step {steps}", rate, detail) if part)
    while len(line) >= width and ", " in line:  # the smallest section comes last
        line = line.rpartition(", ")[0]
    return line if len(line) < width else shortened(line, width - 1)


def left_text(snapshot: Snapshot) -> str:
    """Return the time until the loop under way ends; "" where it is not known."""
    return "" if snapshot.left_s is None else f"{duration_text(snapshot.left_s)} left"


def largest_shares(shares: Mapping[str, float]) -> str:
    """Return the largest parts of an interval by section: ``forward_pass 41%, data_loading 30%``."""
    shown = [(share, name) for name, share in shares.items() if share >= LEAST_SHARE and name != PROFILER]
    largest = sorted(shown, reverse=True)[:MOST_SECTIONS]
    return ", ".join(f"{shortened(table_label(name, shares), NAME_WIDTH)} {share:.0%}" for share, name in largest)
