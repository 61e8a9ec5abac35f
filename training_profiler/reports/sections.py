"""Sections on the screen: their names, and how wall time divides among them; nested ones follow their parents.

Data, metrics and lines to grep keep the sections' own names.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Final

from training_profiler.base import sections as known
from training_profiler.base.text import PREFIX
from training_profiler.base.units import three_digits
from training_profiler.model.snapshot import (
    HOT_PLACES,
    HOT_SHARE,
    OTHER,
    OUTSIDE_STEPS,
    PROFILER,
    SectionStats,
    Snapshot,
)
from training_profiler.recording.section_names import key_of, name_of
from training_profiler.reports.layout import shortened

# In tables: rows that are not sections of the program.
_IN_TABLES: Final = {
    OTHER: "unattributed (in step)",
    OUTSIDE_STEPS: "startup & between steps",
    PROFILER: "profiler overhead",
    known.FIRST_FETCH: "first batch of an epoch",
    known.FORWARD_WITHOUT_GRAD: "no-grad forward",
}
_WITHOUT_STEPS: Final = {**_IN_TABLES, OTHER: "unattributed"}
# In bars, which are read and not searched.
_IN_BARS: Final = {
    **_WITHOUT_STEPS,
    **{key: key.replace("_", " ") for key in (known.DATA_LOADING, known.DATA_GENERATION, known.DATA_TRANSFER)},
    **{key: key.replace("_", " ") for key in (known.GRAPH_REPLAY, known.BATCH_NORM_UPDATE, known.WORKER_START)},
    known.FORWARD_PASS: "forward",
    known.BACKWARD_PASS: "backward",
    known.OPTIMIZER_STEP: "optimizer",
    known.METRICS_COMPUTATION: "metrics, grad norms",
    known.EMA_UPDATE: "EMA update",
    known.VALIDATION_EPOCH: "validation",
    known.VISUALIZATION_GENERATION: "visualization",
}
OURS: Final = "(built-in)"  # behind the label of a row of ours, where the user called a section by that label


def table_label(key: str, among: Container[str] = (), has_steps: bool = True) -> str:
    """Return the name of a section's row in a table ``among`` others, of a run with steps or without."""
    return _label(key, _IN_TABLES if has_steps else _WITHOUT_STEPS, among)


def epoch_label(key: str, among: Container[str] = ()) -> str:
    """Return the name of a section in the summary of an epoch, ``among`` others."""
    return _label(key, {OTHER: "other/overhead"}, among)


def bar_label(key: str, among: Container[str] = ()) -> str:
    """Return the name of a section's bar ``among`` others."""
    return _label(key, _IN_BARS, among)


def _label(key: str, labels: Mapping[str, str], among: Container[str]) -> str:
    label = labels.get(key) or name_of(key)
    users = key_of(label)
    return f"{label} {OURS}" if users != key and users in among else label


INDENT: Final = "  "
MOST_DEPTH: Final = 20  # deeper sections are not indented further
IN_WORKERS: Final = "worker:"  # before the place of a line
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


def distribution(snapshot: Snapshot) -> list[tuple[int, SectionStats, float]]:
    """Return (depth, section, percentage of wall time by exclusive time); percentages add up to 100.0.

    The rows for time that no section covers come last.
    """
    if not snapshot.wall_s:
        return []
    sections = snapshot.sections
    uncovered = [sections[name] for name in (OTHER, OUTSIDE_STEPS) if name in sections and not sections[name].count]
    rows = [*in_tree_order(sections), *((0, row) for row in uncovered if row.name == OTHER or row.self_s > 0)]
    shares = percentages([section.share for _, section in rows])
    return [(depth, section, percentage) for (depth, section), percentage in zip(rows, shares, strict=True)]


def lines_under(snapshot: Snapshot, section: SectionStats, percentage: float) -> list[tuple[str, str, float]]:
    """Return (file:line, function, percentage of wall time) of the code to show under a section.

    They are included in the section's own ``percentage``. Waiting for data is divided as the work of the loaders'
    workers, unless the training makes some batches itself.
    """
    if section.name != OTHER and section.share <= LINES_ABOVE:
        return []
    if section.name == known.DATA_LOADING and all(loader.num_workers for loader in snapshot.loaders):
        in_workers = [
            (f"{IN_WORKERS} {line.place}", line.what, round(100 * section.share * line.share, 1))
            for line in snapshot.lines_in_workers()[:HOT_PLACES]
            if section.share * line.share >= HOT_SHARE
        ]
        if in_workers:
            return in_workers
    return [
        (line.place, line.what, min(percentage, round(100 * line.share, 1))) for line in snapshot.hottest(section.name)
    ]


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


def largest_sections(snapshot: Snapshot) -> str:
    """Return the sections that took most of an interval: ``forward_pass 41%, data_loading 30%``."""
    return largest_shares({name: section.share for name, section in snapshot.sections.items() if section.share})


def largest_shares(shares: Mapping[str, float]) -> str:
    """Return the largest parts of an interval by section, as ``largest_sections`` does."""
    shown = [(share, name) for name, share in shares.items() if share >= LEAST_SHARE and name != PROFILER]
    largest = sorted(shown, reverse=True)[:MOST_SECTIONS]
    return ", ".join(f"{shortened(table_label(name, shares), NAME_WIDTH)} {share:.0%}" for share, name in largest)
