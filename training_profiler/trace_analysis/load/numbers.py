"""Values as numbers: equal values have the same one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from training_profiler.trace_analysis.load.columns import Ints


class Numbers(dict[Any, int]):
    """Distinct values in order of first occurrence, each with its number."""

    def __missing__(self, value: Any) -> int:
        """Return the number of a value that is new."""
        number = self[value] = len(self)
        return number

    def of(self, values: Sequence[Any]) -> Ints:
        """Return the number of each value."""
        return np.fromiter(map(self.__getitem__, values), np.int64, len(values))


def numbered(values: Sequence[Any]) -> tuple[list[Any], Ints]:
    """Return the distinct values in order of first occurrence, and the index of each value among them."""
    numbers = Numbers()
    index = numbers.of(values)
    return list(numbers), index
