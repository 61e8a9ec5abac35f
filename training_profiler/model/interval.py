"""A flush interval as it stands in a journal. Sections go by name, because ids differ from run to run."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self

from msgspec import Meta, Struct, defstruct, field, structs

from training_profiler.base.text import printable
from training_profiler.base.units import NS_PER_US
from training_profiler.model.bounds import Count, Moment, Real
from training_profiler.model.location import Location


class StepFlops(NamedTuple):
    """The floating-point operations of one step."""

    flops: int  # as executed, so recomputation by checkpointing counts too
    dtype: str  # of most of them: float32, bfloat16, ..., or tf32
    device: str  # name of the accelerator of most of them; "" for none or several
    attention: str = ""  # torch's kernel of most attention; "" for none
    forward: int = 0  # those of forward passes, without recomputation; 0 is unknown
    attention_forward: int = 0  # the part of it in torch's attention kernels
    measured_tflops: float | None = None  # the peak of the device, measured; for those without a data sheet


NO_SECTION: Final = ""  # stands for row 0: time in no section
BIN_COUNT: Final = 1856  # bins of 2 % up to 2**53 ns, 104 days; longer durations share the last one
MOST_BLOCKS: Final = 32  # of steps in an interval; 10 sections then take some 2 kB of the journal
LOADER_CELLS: Final = 20  # of a loader: see ``LoaderSums``

# A batch may be recorded later than one that arrived after it, so the time between two can be below 0.
Cell = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Bin = Annotated[int, Meta(ge=0, lt=BIN_COUNT)]
Micros = Annotated[int, Meta(ge=0, le=2**43)]  # 2^53 ns
Samples = Annotated[int, Meta(ge=1, le=2**53)]
Point = tuple[Samples, Real, Real]  # values, and the sums of their places and of themselves; see ``Series``
GarbageRow = tuple[Count, Count, Count, Count, Count, Count, Count]
Squares = Annotated[float, Meta(ge=0, le=1e60)]


class SectionRecord(Struct, omit_defaults=True):
    """The sums of one section; see ``SectionSums``, whose ``ADDED`` and ``MEASURED`` are the first fields."""

    count: Count = 0
    total_ns: Count = 0
    self_ns: Count = 0
    elsewhere_ns: Count = 0
    step_self_ns: Count = 0
    step_total_ns: Count = 0
    after_ns: Count = 0
    after_count: Count = 0
    device_ns: Count = 0
    device_count: Count = 0
    measured: Count = 0
    min_ns: Count = 0
    max_ns: Count = 0
    min_step: Count = 0
    max_step: Count = 0
    mean_ns: Real | None = None
    m2: Squares | None = None
    bins: tuple[list[Bin], list[Count]] | None = None  # (bins, counts)
    coupling: tuple[Real, Real, Real] | None = None  # see ``Coupling.sections``
    early: tuple[list[Count], list[Count]] | None = None  # (first steps, ns)
    series_us: list[Micros] = []  # exclusive time within each block of steps; see ``StepBlocks``

    def check(self, blocks: int) -> None:
        """Check what the types alone do not, in an interval of so many blocks of steps.

        Raises:
            ValueError: columns do not belong together.
        """
        if self.series_us and len(self.series_us) != blocks:
            raise ValueError("the series of a section does not have one number per block")
        if self.bins and (self.mean_ns is None or self.m2 is None or not self.measured):
            raise ValueError("a section with bins needs measured, mean_ns and m2")
        if any(columns and len(columns[0]) != len(columns[1]) for columns in (self.bins, self.early)):
            raise ValueError("two columns have different lengths")


class MachineRecord(Struct):
    """The sums of the machine's samples; see ``MachineSums``."""

    samples: Count = field(default=0, name="looks")
    levels: dict[str, tuple[Real, Real, Real, Real]] = {}  # weight, weighted sum, largest, last
    series: dict[str, list[Point]] = {}
    facts: dict[str, Real | str] = {}  # constant values


class GarbageRecord(Struct):
    """The sums of garbage collections; see ``GarbageSums``."""

    steps: Count
    rows: tuple[GarbageRow, GarbageRow, GarbageRow, GarbageRow]
    coupling: tuple[Count, Real, Real, Real, Real]


if TYPE_CHECKING:

    class LineRow(Struct):
        """Samples of one line of the user's code."""

        samples: Samples

else:
    # The fields of a location; all are missing where the code is not the user's.
    LineRow = defstruct(
        "LineRow",
        [("samples", Samples), *((name, kind, None) for name, kind in Location.__annotations__.items())],
        array_like=True,
    )


def location_of(row: LineRow) -> Location | None:
    """Return the line of the user's code, its texts as reports may have them; None for other code."""
    _, file, line, *texts = structs.astuple(row)
    if file is None:
        return None
    return Location(printable(file), line or 0, *(printable(text) if text else "" for text in texts))


class StretchFigures(Struct, omit_defaults=True, eq=False):
    """Figures of a stretch of time beside its tables, in memory and in a journal."""

    begin_ns: Moment  # on the recorder's clock
    first_step: Count  # steps complete before it
    end_ns: Moment = 0
    # Indices of this stretch's steps, counted from 0, that a capture window slowed. Of this stretch only.
    slowed_by_capture: list[Count] = field(default_factory=list, name="disturbed")
    loop_begin_ns: Moment | None = None  # begin of the run's first step, which may precede this stretch
    loop_end_ns: Moment | None = None  # end of the last step that ended in this stretch, or of its marked epoch
    first_fetch_ns: Count | None = None  # the first wait for a batch, if it ended in this stretch
    batches: Count | None = None  # fetched for training; None without a known loader
    samples: Count | None = None
    tokens: Count | None = None  # read by the training; None where no trainer counts them
    flops: StepFlops | None = None  # of one step, as counted last
    slow_steps: Count = 0  # first steps of the run up to the last one slowed by counting its FLOPs
    named_steps: Count = 0  # the same, by naming its operations
    with_grad: tuple[Count, Count] = (0, 0)  # forward passes of evaluations that recorded gradients: number, ns
    late_exchange_ns: Count = 0  # DDP's gradient sync, reported in this stretch for backward passes before it
    dropped: Count = 0  # exits without an enter, and enters beyond MAX_OPEN
    unended: Count = 0  # sections still open when their thread ended


class SectionBlocks(NamedTuple):
    """The steps of an interval in blocks, of which the last may be shorter."""

    steps_a_block: int
    by_section_ns: dict[str, tuple[int, ...]]  # exclusive time in each block


class IntervalRecord(StretchFigures, omit_defaults=True, kw_only=True):
    """The totals of a flush interval. Fields with a default are missing where they have it, and in earlier journals."""

    step_ns: list[Count]
    sections: dict[str, SectionRecord]
    parents: list[tuple[str, str, Count]]  # (parent, section, spans)
    coupling: tuple[Count, Real, Real]
    steps_a_block: Annotated[int, Meta(ge=1, le=2**53)] | None = None  # of the series of sections
    lines: dict[str, list[LineRow]] = {}  # by section
    step_lines: list[LineRow] = []
    startup_lines: list[LineRow] = []
    by_loader: list[list[Cell]] = []  # loader id, then its table row by row
    machine: MachineRecord | None = None
    # Steps in a row, and the forward passes in each; left out if all steps have one.
    step_calls: list[tuple[Count, Count]] = []
    input_sizes: list[Point] = []  # see ``Series``
    garbage: GarbageRecord | None = None

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Return the record itself: nothing changes one, and it may have a row for each of 100,000 lines."""
        return self

    @property
    def block_count(self) -> int:
        """Number of blocks of steps that the series of sections have."""
        return -(-len(self.step_ns) // self.steps_a_block) if self.steps_a_block else 0

    def blocks(self, shown: Callable[[str], str]) -> SectionBlocks:
        """Return the times of sections in consecutive blocks of steps. Sections that ``shown`` gives one name add up.

        Journals of earlier versions have no series: there, the whole interval is one block.
        """
        steps = len(self.step_ns)
        by_section_ns: dict[str, tuple[int, ...]] = {}
        for given, section in self.sections.items():
            column = tuple(us * NS_PER_US for us in section.series_us)
            if not column and not self.steps_a_block and steps and section.step_self_ns:
                column = (section.step_self_ns,)
            if column:
                other = by_section_ns.get(name := shown(given))
                by_section_ns[name] = column if other is None else tuple(map(sum, zip(column, other, strict=True)))
        return SectionBlocks(self.steps_a_block or max(1, steps), by_section_ns)

    def check(self) -> None:
        """Check what the types alone do not.

        Raises:
            ValueError: columns do not belong together.
        """
        if self.end_ns < self.begin_ns:
            raise ValueError(f"an interval ends {self.begin_ns - self.end_ns} ns before its begin")
        if self.slowed_by_capture and max(self.slowed_by_capture) >= len(self.step_ns):
            raise ValueError("a slowed step is not among the steps")
        if self.step_calls and sum(steps for steps, _ in self.step_calls) != len(self.step_ns):
            raise ValueError("step_calls are not of the steps")
        if any(len(row) != 1 + LOADER_CELLS for row in self.by_loader):
            raise ValueError(f"a row of by_loader does not have {1 + LOADER_CELLS} numbers")
        if self.block_count > MOST_BLOCKS:
            raise ValueError(f"an interval has more than {MOST_BLOCKS} blocks of steps")
        for section in self.sections.values():
            section.check(self.block_count)

    def largest_sum(self) -> int:
        """Return a bound of what the record adds to any sum."""
        figures = structs.asdict(self)
        rows = [row.samples for table in (*self.lines.values(), self.step_lines, self.startup_lines) for row in table]
        return (
            sum(self.step_ns)
            + sum(figures[name] or 0 for name in ("batches", "samples", "tokens", "late_exchange_ns"))
            + sum((self.dropped, self.unended, *self.with_grad, *rows))
            + sum(count for _, _, count in self.parents)
            + sum(abs(cell) for row in self.by_loader for cell in row)
            + sum(calls for _, calls in self.step_calls)
            + (0 if not self.garbage else self.garbage.steps + sum(map(sum, self.garbage.rows)))
            + sum(_largest_of(section) for section in self.sections.values())
        )


def _largest_of(section: SectionRecord) -> int:
    tables = (column[1] for column in (section.bins, section.early) if column)
    return max(number for number in structs.astuple(section) if isinstance(number, int)) + sum(map(sum, tables))
