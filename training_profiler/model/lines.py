"""The lines of the user's code where the time of a section goes, and how few of them stand for many."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class WorkerLineStats:
    """A line that workers ran: of the user's code, or of a library where none of it was on the stack."""

    file: str
    line: int
    function: str
    share: float  # of the workers' work, 0 to 1
    samples: int
    phase: str  # fetch, decode, transform, collate, ...; a line may be in several
    inside: str = ""  # what ran in a library that the line called

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"

    @property
    def what(self) -> str:
        """The function, and what it ran in a library."""
        return f"{self.function} > {self.inside.rpartition(' ')[2]}" if self.inside else self.function


@dataclass(frozen=True, slots=True)
class StreamRepeats:
    """Samples that the workers of one pass over a stream yielded, or that ranks trained on."""

    workers: Annotated[int, Meta(ge=0, le=2**53)]
    samples: Annotated[int, Meta(ge=0, le=2**53)]  # whose fingerprints were compared
    times: float  # workers that yielded a sample, mean
    again: float  # part of the samples that a worker yielded more than once, 0 to 1
    is_over: bool  # the stream has ended
    each: Annotated[int, Meta(ge=0, le=2**53)] = 0  # samples of each, its first ones


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The workers of one loader. Times are per batch, summed over all of one worker's threads."""

    workers: int  # that were observed, of all passes
    batches: int  # that they made; those not asked for at the end included
    busy: float  # share of their time in which they made batches, 0 to 1
    batch_avg_s: float  # from the request to the batch, in the worker
    batch_max_s: float
    cpu_avg_s: float  # CPU time, with programs that a worker ran
    cpu_wait_avg_s: float  # ready to run while no CPU was free
    samples: int
    phases: Mapping[str, float] = field(default_factory=dict)  # fetch, decode, ... -> share of their time
    lines: tuple[WorkerLineStats, ...] = ()  # most samples first
    memory_bytes: int | None = None  # resident, of the largest worker at its end
    memory_growth_bytes: int | None = None  # of the worker that grew most, since its first batches
    memory_copied_bytes: int | None = (
        None  # of the training's that the worker with most of it has copied by writing there
    )
    in_order_wait_share: float | None = None  # share of the training's waiting in which later batches were ready
    pinning_share: float | None = None  # share of the waiting in which the pin-memory thread had a batch in hand
    sampling_share: float = 0.0  # of the workers' time: CPU time of the sampling
    repeats: StreamRepeats | None = None  # samples of a stream that several of them yielded; None: too few are known
    threads: float | None = None  # of a worker that compute, such as torch's, mean

    @property
    def work_s(self) -> float:
        """Time in which they made batches, in s."""
        return self.batches * self.batch_avg_s


@dataclass(frozen=True, slots=True)
class UnsampledWait:
    """A wait of the training for work elsewhere that is not sampled."""

    what: str  # "a queue between processes"
    line: str  # that waits longest for it: "train.py:41 main"
    share: float  # of the run, 0 to 1
    samples: int
    in_loader: bool = False  # while a data loader of torch asks its data set


HOT_PLACES, HOT_SHARE = 3, 0.01  # places shown for each section, and the least share of the run that one has
NEARLY_ALL: Final = 0.8  # of a function's time
PYTHON: Final = "<python>"  # in ``LineStats.called``: no function, but a loop or the begin of one, in Python
PARAMETERS: Final = "<parameters>"  # the same: an operator, or a round, of a loop that changes parameters one by one
CHECKS: Final = "<checks>"  # the same: no function of the line, but torch.distributions checking arguments
# Functions that read a number out of a tensor, for which the device has to have computed it.
READ_BY_FUNCTION: Final = frozenset(("bool", "float", "int", "math.isfinite", "math.isinf", "math.isnan"))
TOKENIZERS: Final = "tokenizers"  # in ``LineStats.packages``: the tokenizers of transformers, which mostly wait for it
BETWEEN: Final = " > "  # frames in each other, in ``LineStats.inside``
_LINE_NUMBER: Final = re.compile(r"(?<=[\w>]):\d+(?= )")


@dataclass(frozen=True, slots=True)
class LineStats:
    """A line of the user's code, and its part of a section's self time."""

    file: str
    line: int
    function: str
    share: float  # of the wall time, 0 to 1: the section's share times the line's part of the samples
    samples: int
    lines: int = 1  # more than 1: that many lines of one function, shown under the hottest
    waiting_share: float = 0.0  # the part of ``share`` in calls that wait for the device
    waits_in: str = ""  # the call: "item", a method of a tensor; "float", a function; "bool" also of a condition
    inside: str = ""  # "lib/trainer.py:9 fit > callback on_step_end": what ran in a library that the line called
    # Of a trainer, such as "callback on_step_end", or of making a batch; "" if it has none or several.
    phase: str = ""
    # The parts of ``share`` in which a line of another thread had the lock: "load.py:9 decode" -> share.
    held_by: Mapping[str, float] = field(default_factory=dict, compare=False)
    # The parts of ``share`` in which the line was calling a function: "copy.deepcopy" -> share.
    called: Mapping[str, float] = field(default_factory=dict, compare=False)
    # Of a line that makes a batch: the parts of ``share`` in which it was calling a library: "pandas" -> share.
    packages: Mapping[str, float] = field(default_factory=dict, compare=False)
    # With ``lines`` above 1: the lines of the user's code and their shares.
    parts: tuple[tuple[int, float], ...] = field(default=(), compare=False)

    @property
    def waits_text(self) -> str:
        """The call that waits for the device: ".item()", "float()"."""
        return f"{'' if self.waits_in in READ_BY_FUNCTION else '.'}{self.waits_in}()"

    @property
    def place(self) -> str:
        """File and line: of the library's frame where the user's line only calls a loop, else the user's."""
        return self.inside.partition(" ")[0] or f"{self.file}:{self.line}"

    @property
    def what(self) -> str:
        """The function, and how many of its lines are meant if there are several."""
        name = self.inside.partition(" ")[2] or self.function
        several = "places in it" if self.inside else "lines"
        return name if self.lines == 1 else f"{name} ({self.lines} {several})"

    @property
    def caller(self) -> str:
        """The user's line that called the library, if ``place`` is in one; else ""."""
        return f"{self.file}:{self.line} {self.function}" if self.inside else ""


def hottest_places(lines: Sequence[LineStats]) -> list[LineStats]:
    """Return at most 3 places with 1 % of the run each, the largest first.

    A place is a line. If three lines have less than half the time of three functions, the time is spread over many
    lines, and a place is a function. In a library, the line of a trainer's loop holds its functions in turn.

    Args:
        lines: of one section, the largest first.
    """
    places = list(lines[:HOT_PLACES])
    for level in (_function_of, _loop_of, _caller_of):
        merged: dict[tuple[str, ...], LineStats] = {}
        for line in lines:
            key = level(line)
            merged[key] = _added(merged[key], line) if key in merged else replace(line, parts=_part(line))
        coarser = sorted(merged.values(), key=lambda place: -place.share)[:HOT_PLACES]
        if 2 * _share(places) < _share(coarser):
            places = [_common(place, level) for place in coarser]
    return [place for place in places if place.share >= HOT_SHARE]


def hottest_functions(lines: Sequence[LineStats]) -> list[LineStats]:
    """Return all functions, the largest first: the line that has nearly all of its function's time, or its lines."""
    merged: dict[tuple[str, ...], LineStats] = {}
    hottest: dict[tuple[str, ...], LineStats] = {}
    for line in sorted(lines, key=lambda line: -line.share):
        key = _function_of(line)
        hottest.setdefault(key, line)
        merged[key] = _added(merged[key], line) if key in merged else replace(line, parts=_part(line))
    found = [hottest[key] if hottest[key].share >= NEARLY_ALL * each.share else each for key, each in merged.items()]
    return sorted(found, key=lambda place: -place.share)


def _share(places: Sequence[LineStats]) -> float:
    return sum(place.share for place in places)


def _part(line: LineStats) -> tuple[tuple[int, float], ...]:
    return ((line.line, line.share),)


def _function_of(line: LineStats) -> tuple[str, ...]:
    return line.file, line.function, _LINE_NUMBER.sub("", line.inside)


def _loop_of(line: LineStats) -> tuple[str, ...]:
    return line.file, line.function, _LINE_NUMBER.sub("", line.inside.partition(BETWEEN)[0])


def _caller_of(line: LineStats) -> tuple[str, ...]:
    return line.file, line.function


def _common(place: LineStats, level: Callable[[LineStats], tuple[str, ...]]) -> LineStats:
    """Return a place without what its merged lines do not have in common."""
    if place.lines == 1 or not place.inside:
        return place
    if level is _caller_of:  # many places in the library, called by one line or by a few
        by_line: dict[int, float] = {}
        for number, share in place.parts:
            by_line[number] = by_line.get(number, 0.0) + share
        return replace(place, inside="", phase="", lines=len(by_line), parts=tuple(by_line.items()))
    kept = place.inside if level is _function_of else place.inside.partition(BETWEEN)[0]
    return replace(place, inside=kept, phase=place.phase if kept == place.inside else "")


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in (*first, *second)}


def _added(hotter: LineStats, line: LineStats) -> LineStats:
    return replace(
        hotter,
        share=hotter.share + line.share,
        samples=hotter.samples + line.samples,
        lines=hotter.lines + line.lines,
        waiting_share=hotter.waiting_share + line.waiting_share,
        waits_in=hotter.waits_in or line.waits_in,
        called=_sum(hotter.called, line.called),
        packages=_sum(hotter.packages, line.packages),
        parts=hotter.parts + _part(line),
    )
