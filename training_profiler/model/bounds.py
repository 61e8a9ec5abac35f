"""The most that is read from a file. Each limit is well above what a training writes; docs/reference lists them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct, structs

from training_profiler.base.text import printable
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
MOST_ITEMS: Final = 10_000  # of a list in a record of the program's facts
MOST_SUM: Final = 2**62  # of any column over all lines; in ns 146 years

# 104 days in ns. Negative, infinite and unknown numbers are not in a journal.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Moment = Annotated[int, Meta(ge=0, le=2**62)]  # on a clock, in ns
Positive = Annotated[float, Meta(ge=0, le=1e15)]
Real = Annotated[float, Meta(ge=-1e60, le=1e60)]  # squares and sums of these are finite

T = TypeVar("T")


def fit(record: T, most_items: int = MOST_ITEMS) -> T:
    """Return a record of named tuples, structs, dataclasses and lists as reports may have it.

    Numbers are between 0 and 2^62, texts are escaped, and lists are cut.
    """
    value: Any = record
    if isinstance(value, str):
        value = printable(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = type(value)(min(MOST_SUM, max(0, value)))
    elif isinstance(value, Mapping):
        value = {fit(key): fit(each, most_items) for key, each in list(value.items())[:most_items]}
    elif hasattr(value, "_fields"):
        value = value._make(fit(each, most_items) for each in value)
    elif isinstance(value, (list, tuple)):
        value = type(value)(fit(each, most_items) for each in value[:most_items])
    elif isinstance(value, Struct):
        value = type(value)(*(fit(each, most_items) for each in structs.astuple(value)))
    elif hasattr(value, "__dataclass_fields__"):
        value = type(value)(**{name: fit(getattr(value, name), most_items) for name in value.__dataclass_fields__})
    return value  # type: ignore[no-any-return]
