"""The times of sections in consecutive blocks of steps, as an interval of a journal has them."""

from collections.abc import Callable
from typing import NamedTuple

from training_profiler.base.units import NS_PER_US
from training_profiler.snapshot.snapshot import OTHER
from training_profiler.storage.journal_codec import NO_SECTION, IntervalRecord


class SectionBlocks(NamedTuple):
    """The steps of an interval in blocks, of which the last may be shorter."""

    steps_a_block: int
    by_section_ns: dict[str, tuple[int, ...]]  # exclusive time in each block


def section_blocks(record: IntervalRecord, shown: Callable[[str], str]) -> SectionBlocks:
    """Return the blocks of an interval. Sections that ``shown`` gives one name add up.

    Journals of earlier versions have no series: there, the whole interval is one block.
    """
    steps = len(record.step_ns)
    by_section_ns: dict[str, tuple[int, ...]] = {}
    for given, section in record.sections.items():
        column = tuple(us * NS_PER_US for us in section.series_us or ())
        if not column and not record.steps_a_block and steps and section.step_self_ns:
            column = (section.step_self_ns,)
        if column:
            name = OTHER if given == NO_SECTION else shown(given)
            other = by_section_ns.get(name)
            by_section_ns[name] = column if other is None else tuple(map(sum, zip(column, other, strict=True)))
    return SectionBlocks(record.steps_a_block or max(1, steps), by_section_ns)
