"""The most that is read from a file. Each limit is well above what a training writes; docs/reference lists them."""

from typing import Annotated, Final

from msgspec import Meta

from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB

MOST_JOURNAL_BYTES: Final = 4 * BYTES_PER_GIB
MOST_LINE_BYTES: Final = 16 * BYTES_PER_MIB
MOST_META_BYTES: Final = 4 * BYTES_PER_MIB
MOST_NAMES: Final = 600  # of sections; a run has at most 500, the rest is summed up under "(other names)"
MOST_LOADERS: Final = 1_000
MOST_EPOCHS: Final = 10_000
MOST_SPANS: Final = 50_000  # of steps that were recorded with their spans; a run has some 10,000
MOST_NOTES: Final = 100
MOST_SOURCES: Final = 1_000  # files of the user's source code
MOST_DEVICES: Final = 256
MOST_SUM: Final = 2**62  # of any column over all lines; in ns 146 years

# 104 days in ns. Negative, infinite and unknown numbers are not in a journal.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Moment = Annotated[int, Meta(ge=0, le=2**62)]  # on a clock, in ns
Real = Annotated[float, Meta(ge=-1e60, le=1e60)]  # squares and sums of these are finite
