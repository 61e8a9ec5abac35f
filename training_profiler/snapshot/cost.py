"""The price of accelerators, as the user gave it."""

from typing import NamedTuple

from training_profiler.base.units import S_PER_HOUR


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
