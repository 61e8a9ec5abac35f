"""Values as numbers: equal values have the same one."""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from training_profiler.trace_analysis.load.columns import Ints


class Numbers(dict[Any, int]):
    """Distinct values in order of first occurrence, each with its number."""

    def __missing__(self, value: Any) -> int:
        """Return the number of a value that is new."""
        number = self[value] = len(self)
        return number

    def of(self, values: Iterable[Any]) -> Ints:
        """Return the number of each value."""
        return packed(*map(self.__getitem__, values))


def packed(*values: int) -> Ints:
    """Return whole numbers as an array. It takes half the time of ``numpy.fromiter``.

    Raises:
        struct.error: A value is not a whole number, or does not fit into 64 bits.
    """
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)


def numbered(values: Sequence[Any]) -> tuple[list[Any], Ints]:
    """Return the distinct values in order of first occurrence, and the index of each value among them."""
    numbers = Numbers()
    index = numbers.of(values)
    return list(numbers), index
