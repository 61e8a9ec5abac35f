"""Every conversion factor of the project, and how durations and amounts of memory are written."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000
MS_PER_S = 1_000
US_PER_S = 1_000_000
S_PER_HOUR = 3600
S_PER_MINUTE = 60
BYTES_PER_GIB = 2**30
BYTES_PER_MIB = 2**20
FLOPS_PER_TFLOP = 1e12
BYTES_PER_GB = 10**9
SLOW_STEP_S = 10.0  # longer steps are shown in seconds
UNITS_OF_TIME = {"s": 1, "sec": 1, "m": S_PER_MINUTE, "min": S_PER_MINUTE, "h": S_PER_HOUR}  # as users write them


def ms_number(seconds: float) -> str:
    """Return a duration in ms, without the unit, in three digits or more: 0.065, 7.62, 18.5, 1631."""
    return three_digits(seconds * MS_PER_S)


def ms_text(seconds: float) -> str:
    """Return a duration in ms: 7.62 ms."""
    return f"{ms_number(seconds)} ms"


def unit_of_steps(seconds: float) -> tuple[str, Callable[[float], str]]:
    """Return the unit for steps of about this duration, and the function that writes a number of it."""
    return ("s", three_digits) if seconds >= SLOW_STEP_S else ("ms", ms_number)


def ms_column(seconds: Sequence[float | None], digits: int = 4) -> list[str]:
    """Return durations in ms for one column: all with the same decimals, "" for unknown ones.

    The longest has ``digits`` significant digits, and all have at least one decimal.
    """
    largest_ms = max((value for value in seconds if value is not None), default=0.0) * MS_PER_S
    before_point = 0 if largest_ms < 1 else 1 if largest_ms < 10 else 2 if largest_ms < 100 else 3
    decimals = min(3, max(1, digits - before_point))
    return ["" if value is None else rounded(value * MS_PER_S, decimals) for value in seconds]


def rounded(value: float, decimals: int) -> str:
    """Return a number with so many decimals; one that is not zero never becomes zero: <0.001."""
    text = f"{value:.{decimals}f}"
    return f"<{10**-decimals:.{decimals}f}" if value > 0 and not float(text) else text


def duration_text(seconds: float) -> str:
    """Return how long something lasted, to be read at a glance: 24.3 s, 4 min 11 s, 2 h 05 min."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), S_PER_MINUTE)
    if minutes < 60:
        return f"{minutes} min {rest_s:02} s"
    hours, minutes = divmod(round(seconds / S_PER_MINUTE), 60)
    return f"{hours} h {minutes:02} min"


def of_training(share: float, seconds: float, run: str = "this run") -> str:
    """Return a saving in the words of the verdict: "12% of the training time (5.20 s of this run)"."""
    return f"{share:.0%} of the training time ({duration_text(seconds)} of {run})"


def read_seconds(text: str) -> float | None:
    """Return the seconds that 90s, 10m or 1h30m stand for; None for any other text."""
    number, units = r"(\d{1,9}(?:\.\d+)?)", "|".join(sorted(UNITS_OF_TIME, key=len, reverse=True))
    if not re.fullmatch(rf"(?: *{number} *(?:{units}))+ *", text):
        return None
    return sum(float(count) * UNITS_OF_TIME[unit] for count, unit in re.findall(f"{number} *({units})", text))


def time_text(seconds: float) -> str:
    """Return a duration in ms below a second, and as ``duration_text`` writes it from there on."""
    return ms_text(seconds) if seconds < 1 else duration_text(seconds)


def three_digits(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point: 0.0521, 1.67, 85.4, 3944."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3g}"


def counted(count: int, what: str) -> str:
    """Return a number of things: "1 gap", "2 gaps"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def bytes_text(count: float) -> str:
    """Return an amount of memory with its unit: GiB, and below a tenth of one MiB."""
    return (
        f"{count / BYTES_PER_GIB:.1f} GiB" if abs(count) >= BYTES_PER_GIB / 10 else f"{count / BYTES_PER_MIB:.1f} MiB"
    )


class Price(NamedTuple):
    """What one accelerator costs for an hour."""

    amount: float
    currency: str = ""  # as the user wrote it

    def amount_of(self, seconds: float, devices: int) -> float:
        """Return what that many accelerators cost for this time."""
        return self.amount * seconds / S_PER_HOUR * devices

    def of(self, seconds: float, devices: int) -> str:
        """Return the same as "1.25 EUR"."""
        cost = self.amount_of(seconds, devices)
        digits = 2 if cost >= 1 else 4
        return f"{cost:,.{digits}f} {self.currency}".rstrip()

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}".rstrip()
