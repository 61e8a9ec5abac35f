"""Times of a trace as whole nanoseconds, exactly as the file has them, and events that are written in two halves."""

import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np

from training_profiler.trace_analysis.load.columns import Bools, Ints, packed

NS_PER_US: Final = 1000
# A float of so many microseconds still distinguishes nanoseconds: 2**42 us is 51 days.
EXACT_BELOW_US: Final = float(2**42)
MOST_NS: Final = 2**62  # 146 years; sums and differences of two still fit into 64 bits


class TimeProblemError(ValueError):
    """An invalid time; ``index`` is its place in the list."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class InexactTimeError(ValueError):
    """A time is a float that may not be exact to the nanosecond, and has to be read as the file has it."""


def times_ns(times_us: Sequence[Any]) -> Ints:
    """Return times in whole ns. Given are us as numbers, as strings or as the bytes of the file.

    Raises:
        TimeProblemError: A time is missing, is not a finite number or exceeds 64 bits of ns.
        InexactTimeError: A time is too large a float.
    """
    try:
        return _in_ns(packed(*times_us))
    except struct.error:  # they are not all whole numbers
        kinds = set(map(type, times_us))
    if kinds == {msgspec.Raw}:
        written = [bytes(time) for time in times_us]
        if all(time[-4:-3] == b"." for time in written):  # as Kineto writes times: 1234567.890
            try:
                return _checked([int(time.replace(b".", b"")) for time in written])
            except ValueError:  # a time with an exponent, in quotes, ...
                pass
        times_us = [time.decode() for time in written]
    elif kinds <= {int, float}:
        with suppress(OverflowError):  # of a whole number that no float can be
            array = np.array(times_us, np.float64)  # JSON has neither NaN nor infinity
            if (np.abs(array) < EXACT_BELOW_US).all():
                return np.rint(array * NS_PER_US).astype(np.int64)
    if any(type(time) is float and EXACT_BELOW_US <= abs(time) < math.inf for time in times_us):
        raise InexactTimeError
    return _checked([_ns_of(time, index) for index, time in enumerate(times_us)])


def _in_ns(times_us: Ints) -> Ints:
    most_us = MOST_NS // NS_PER_US
    if len(times_us) and (times_us.max() > most_us or times_us.min() < -most_us):
        return _checked([time * NS_PER_US for time in times_us.tolist()])
    return times_us * NS_PER_US


def _checked(times: list[int]) -> Ints:
    try:
        array = np.array(times, np.int64)
        if not len(array) or (array.max() < MOST_NS and array.min() > -MOST_NS):
            return array
    except OverflowError:
        pass
    raise TimeProblemError(next(i for i, time in enumerate(times) if not -MOST_NS < time < MOST_NS))


def _ns_of(time: Any, index: int) -> int:
    """Return a time in us as ns. Text is read digit by digit and rounds half up to the nanosecond."""
    try:
        if isinstance(time, int):
            return time * NS_PER_US
        if isinstance(time, float):
            return round(time * NS_PER_US)
        if isinstance(time, str):
            return _ns_of_text(time.strip().strip('"').strip())
    except (ValueError, OverflowError):
        pass
    raise TimeProblemError(index)


def _ns_of_text(text: str) -> int:
    is_negative = text.startswith("-")
    whole, _, fraction = text.lstrip("+-").partition(".")
    if not (whole + fraction).isdecimal():
        return round(float(text) * NS_PER_US)  # with an exponent; raises if it is NaN, infinity or not a number
    ns = int(whole or 0) * NS_PER_US + int((fraction + "000")[:3]) + (fraction[3:4] >= "5")
    return -ns if is_negative else ns


def pairs_of(at_ns: Ints, is_begin: Bools, thread: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the indices of begins, those of their ends, and those of halves without a counterpart.

    An end closes the newest open event of its thread. The recording began or ended during an event that has one half.
    """
    begins, threads = is_begin.tolist(), thread.tolist()
    open_of: dict[int, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    alone: list[int] = []
    for i in np.argsort(at_ns, kind="stable").tolist():
        open_halves = open_of.setdefault(threads[i], [])
        if begins[i]:
            open_halves.append(i)
        elif open_halves:
            pairs.append((open_halves.pop(), i))
        else:
            alone.append(i)
    alone += [i for open_halves in open_of.values() for i in open_halves]
    pairs.sort()
    firsts, lasts = np.array(pairs, np.int64).reshape(-1, 2).T
    return firsts, lasts, np.array(alone, np.int64)
