"""What a session of trials has found, also of losses: data for the table, for ``--json`` and for the run folder."""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import isfinite, isnan
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from training_profiler.base.text import printable_data
from training_profiler.model.bounds import Count, Positive
from training_profiler.safety.files import OwnFile, lines_of, open_file
from training_profiler.trials.statistics import Effect

FILE: Final = "trials.jsonl"  # in the run folder
MOST_LINE_BYTES: Final = 1 << 20
MOST_BYTES: Final = 64 << 20  # of the file
_Few: Final = Meta(max_length=500)
SCHEMA: Final = 2
_NEW: Final = {"unchanged_s": "unchanged_step_s", "left": "remaining", "apart": "max_difference", "faster_p": "p_value"}

FASTER: Final = "faster"
SLOWER: Final = "slower"
NOT_SHOWN: Final = "no gain shown"
NOT_CONFIRMED: Final = "gain not confirmed"
UNDECIDED: Final = "undecided"
NO_VERDICT: Final = "no verdict"
NOT_TRIED: Final = "not tried"
FAILED: Final = "failed"
TOO_WIDE: Final = "the interval is too wide"
NOISY: Final = "no verdict: the unchanged training differs from itself; try again while the machine does less"


IDENTICAL, APART, DIFFERS = "identical", "apart", "differs"
NOT_REPEATABLE, UNKNOWN = "not repeatable", "unknown"
ROUNDING: Final = 1e-4  # relative; a first difference beyond it comes from no other order of the same additions
AFTER_FIRST: Final = 10  # steps after the first difference, before rounding has grown through the training

Losses = Sequence[Sequence[str]]  # of each step, in hexadecimal


@dataclass(frozen=True, slots=True)
class LossComparison:
    """How far the losses of a changed training are from those of the unchanged one."""

    kind: str
    max_difference: Positive | None = None  # the largest relative difference in the first steps that differ
    steps: Count = 0  # compared
    first_step: Count = 0  # that differs, from 1 on

    def __str__(self) -> str:
        if self.kind == APART:
            return f"{self._rounded} apart"
        if self.kind == DIFFERS:
            return "differs" if self.max_difference is None else f"differs ({self._rounded})"
        return "-" if self.kind == UNKNOWN else self.kind

    @property
    def _rounded(self) -> str:
        text = "" if self.max_difference is None else f"{self.max_difference:.0e}"
        return text.replace("e-0", "e-").replace("e+0", "e+")


def compare_losses(changed: Losses, unchanged: Losses, again: Losses) -> LossComparison:
    """Return how the losses of a changed training compare with those of two unchanged ones."""
    found = _compare(changed, unchanged)
    if found.kind in (APART, DIFFERS) and _compare(again, unchanged).kind in (APART, DIFFERS):
        return replace(found, kind=NOT_REPEATABLE, max_difference=None)
    return found


def _compare(changed: Losses, unchanged: Losses) -> LossComparison:
    steps = min(len(changed), len(unchanged))
    if not any(unchanged[:steps]) or not any(changed[:steps]):
        return LossComparison(UNKNOWN)
    if any(len(new) != len(old) for new, old in zip(changed, unchanged, strict=False)):
        return LossComparison(DIFFERS, steps=steps, first_step=1)
    apart = [max(map(_apart, new, old), default=0.0) for new, old in zip(changed, unchanged, strict=False)]
    first = next((at for at, each in enumerate(apart) if each > 0), steps)
    differing = apart[first : first + AFTER_FIRST]
    if not differing:
        return LossComparison(IDENTICAL, steps=steps)
    kind = APART if differing[0] <= ROUNDING else DIFFERS
    largest = max(differing)
    return LossComparison(kind, largest if isfinite(largest) else None, steps, first + 1)


def _apart(new: str, old: str) -> float:
    if new == old:
        return 0.0
    first, second = float.fromhex(new), float.fromhex(old)
    if isnan(first) or isnan(second):
        return float("inf")
    largest = max(abs(first), abs(second))
    return abs(first - second) / largest if isfinite(largest) else float("inf")


@dataclass(frozen=True, slots=True)
class Row:
    """A change and what it brings, or why it was not tried."""

    name: str
    family: str
    label: str
    verdict: str
    reason: str = ""  # why it was not tried, failed, or is undecided
    step_s: Positive | None = None
    effect: Effect | None = None
    losses: LossComparison | None = None
    where: str = ""  # line of the user's code: "train.py:41"
    is_ceiling: bool = False
    changes_numerics: bool = False
    warmup_s: Positive = 0.0  # that it takes longer to start, such as to compile
    memory_bytes: Count = 0  # at most, of its device or else of its process; 0 is unknown
    samples: Positive = 0.0  # of a step; 0 is unknown
    compile_s: Positive = 0.0  # that torch.compile took; 0 if nothing was compiled
    recompilations: Count = 0  # of the same code
    break_even_steps: Count = 0  # after which a gain has paid what compiling takes; 0 for neither


@dataclass(frozen=True, slots=True)
class Results:
    """A session of trials."""

    program: str
    seconds: Positive  # that the session took
    rows: Annotated[tuple[Row, ...], _Few]
    unchanged_step_s: Positive | None = None  # of a step
    control: Row | None = None
    together: Row | None = None
    together_names: Annotated[tuple[str, ...], _Few] = ()
    steps: Count = 0  # of each training
    total_steps: Count | None = None  # of the whole training
    part_in_steps: Positive | None = None  # of the training time
    is_interrupted: bool = False
    notes: Annotated[tuple[str, ...], _Few] = ()
    remaining: Annotated[tuple[str, ...], _Few] = ()  # changes without a last word, with which the session can go on

    @property
    def tried(self) -> list[Row]:
        """The changes that were tried."""
        return [row for row in self.rows if row.verdict != NOT_TRIED]

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """The changes of ``together`` that are not shown to help alone."""
        helped = {row.name for row in self.rows if row.verdict == FASTER}
        return tuple(name for name in self.together_names if name not in helped)

    @property
    def best(self) -> Row | None:
        """What helped most and can be had: all that helped together, or one change; None if nothing helped."""
        single = [row for row in self.rows if not row.is_ceiling and not row.changes_numerics]
        # Where one of them helped, the others are an edit for nothing.
        together = None if len(self.together_names) - len(self.unconfirmed) == 1 else self.together
        gains = [row for row in (*single, together) if row is not None and row.verdict == FASTER]
        return min(gains, key=_gain, default=None)

    @property
    def best_names(self) -> tuple[str, ...]:
        """The changes that ``best`` consists of; none if nothing helped."""
        best = self.best
        if best is None:
            return ()
        return self.together_names if best == self.together else (best.name,)


def as_data(results: Results) -> dict[str, Any]:
    """Return the results as plain data; seconds are floats, relative differences -0.4 for 40% less."""
    return {"schema": SCHEMA, **_finite(asdict(results))}


def _finite(value: Any) -> Any:
    """Return the same without numbers that JSON lacks: an interval without a bound has None there."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def from_data(data: Mapping[str, Any]) -> Results:
    """Return results from plain data, also of schema 1.

    Raises:
        KeyError, TypeError, ValueError: the data are not such results.
    """
    data = _renamed(data)
    others = {name: _bounded(data[name]) for name in ("control", "together") if data.get(name)}
    return msgspec.convert({**data, **others, "rows": [_bounded(row) for row in data["rows"]]}, Results)


def _renamed(value: Any) -> Any:
    """Return data of schema 1 with the keys of this one."""
    if isinstance(value, Mapping):
        return {_NEW.get(name, name): _renamed(each) for name, each in value.items()}
    return [_renamed(each) for each in value] if isinstance(value, list | tuple) else value


def _bounded(row: Mapping[str, Any]) -> dict[str, Any]:
    effect = row.get("effect")
    if effect and not _bound(effect["low"], -1) <= _bound(effect["high"], 1):
        raise ValueError("an interval is not one")
    bounds = {"low": _bound(effect["low"], -1), "high": _bound(effect["high"], 1)} if effect else {}
    return {**row, "effect": {**effect, **bounds} if effect else None}


def _bound(value: float | None, sign: int) -> float:
    return sign * float("inf") if value is None else value


def save(folder: Path, results: Results) -> None:
    """Add the results to the run folder as a line.

    Raises:
        OSError: it cannot be written.
    """
    line = json.dumps(as_data(results), allow_nan=False).encode() + b"\n"
    file = OwnFile(folder / FILE)
    try:
        file.append(line)
    finally:
        file.close()


def load(folder: Path) -> Results | None:
    """Return the newest results in a run folder; None without any that can be read."""
    found = None
    try:
        with open_file(folder / FILE) as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                return None
            for line in lines_of(file, MOST_LINE_BYTES):
                # A line may be torn, or of another version.
                with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    found = found if line is None else from_data(printable_data(msgspec.json.decode(line)))
    except OSError:
        return None
    return found


def best_of_each(rows: Iterable[Row], exclusive: Iterable[Collection[str]] = ()) -> list[Row]:
    """Return the rows with the largest gains that can be in effect together, the largest first.

    Two of a family, such as two numbers of workers, exclude each other, and so do families that are ``exclusive``.
    """
    chosen: list[Row] = []
    taken: set[str] = set()
    for row in sorted(rows, key=_gain):
        if row.family not in taken:
            chosen.append(row)
            taken |= {row.family}.union(*(families for families in exclusive if row.family in families))
    return chosen


def _gain(row: Row) -> float:
    return 0.0 if row.effect is None else row.effect.relative
