"""Types of the arrays that sums are made of."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers: TypeAlias = Sequence[int] | Ints  # an array where they are many
