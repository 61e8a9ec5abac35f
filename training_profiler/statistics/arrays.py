"""Types of the arrays that sums are made of, and sums by a key."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers: TypeAlias = Sequence[int] | Ints  # an array where they are many


def sums_by(keys: Ints, values: Ints, count: int) -> Ints:
    """Return the sum of the values of each key from 0 to ``count`` - 1."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, keys, values)  # ``bincount`` takes floats, and seven times as long where a key follows itself
    return sums
