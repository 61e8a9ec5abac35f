"""How wall time divides among sections, nested ones indented under their parents."""

from collections.abc import Iterator, Mapping
from typing import Final

from training_profiler.snapshot.snapshot import HOT_PLACES, HOT_SHARE, OTHER, OUTSIDE_STEPS, SectionStats, Snapshot
from training_profiler.tables.sections import DATA_LOADING

INDENT: Final = "  "
MOST_DEPTH: Final = 20  # deeper sections are not indented further
IN_WORKERS: Final = "worker:"  # before the place of a line
LINES_ABOVE: Final = 0.10  # of the run: a section with a larger self time shows its lines


def in_tree_order(sections: Mapping[str, SectionStats]) -> Iterator[tuple[int, SectionStats]]:
    """Yield (depth, section): the largest first, each followed by those nested in it."""
    children: dict[str | None, list[SectionStats]] = {}
    for section in sections.values():
        if section.name in (OTHER, OUTSIDE_STEPS) and not section.count:
            continue
        parent = section.parent if section.parent in sections else None
        children.setdefault(parent, []).append(section)

    def below(parent: str | None, depth: int) -> list[tuple[int, SectionStats]]:
        nested = children.pop(parent, [])
        return [(depth, section) for section in sorted(nested, key=lambda each: (-each.total_s, each.name))]

    waiting = below(None, 0)[::-1]
    while waiting or children:
        if not waiting:  # a circle of parents, which only a damaged journal has
            waiting = below(next(iter(children)), 0)[::-1]
        depth, section = waiting.pop()
        yield min(depth, MOST_DEPTH), section
        waiting += below(section.name, depth + 1)[::-1]


def uncovered(sections: Mapping[str, SectionStats]) -> list[SectionStats]:
    """Return the rows for time that no section covers."""
    rows = [sections[name] for name in (OTHER, OUTSIDE_STEPS) if name in sections and not sections[name].count]
    return [row for row in rows if row.name == OTHER or row.self_s > 0]


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
    """Return (depth, section, percentage of wall time by exclusive time); percentages add up to 100.0."""
    rows = [*in_tree_order(snapshot.sections), *((0, row) for row in uncovered(snapshot.sections))]
    if not snapshot.wall_s:
        return []
    return [
        (depth, section, percentage)
        for (depth, section), percentage in zip(rows, percentages([section.share for _, section in rows]), strict=True)
    ]


def lines_under(snapshot: Snapshot, section: SectionStats, percentage: float) -> list[tuple[str, str, float]]:
    """Return (file:line, function, percentage of wall time) of the code to show under a section.

    They are included in the section's own ``percentage``.
    """
    if section.name != OTHER and section.share <= LINES_ABOVE:
        return []
    if section.name == DATA_LOADING and (in_workers := _lines_in_workers(snapshot, section)):
        return in_workers
    return [
        (line.place, line.what, min(percentage, round(100 * line.share, 1))) for line in snapshot.hottest(section.name)
    ]


def _lines_in_workers(snapshot: Snapshot, section: SectionStats) -> list[tuple[str, str, float]]:
    """Return the lines in the workers that the training waits for; none if it makes some batches itself.

    The waiting is divided as the work of the workers.
    """
    if any(not loader.num_workers for loader in snapshot.loaders):
        return []
    return [
        (f"{IN_WORKERS} {line.place}", line.what, round(100 * section.share * line.share, 1))
        for line in snapshot.lines_in_workers()[:HOT_PLACES]
        if section.share * line.share >= HOT_SHARE
    ]
