"""A measured figure with its target, and the tables that benchmarks print."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median, quantiles

from tabulate import tabulate


@dataclass(frozen=True, slots=True)
class Figure:
    """One number to reach: ``measured`` (None: could not be) must not exceed ``target``."""

    what: str
    measured: float | None
    target: float
    unit: str = ""
    decimals: int = 0

    @property
    def verdict(self) -> str:
        """PASS or FAIL, by the number as measured and not as printed."""
        if self.measured is None:
            return "NOT MEASURED"
        return "PASS" if self.measured <= self.target else "FAIL"

    def cells(self) -> list[str]:
        """Return the figure's row: what, measured, target, verdict."""
        measured = "-" if self.measured is None else f"{self.measured:.{self.decimals}f} {self.unit}".strip()
        return [self.what, measured, f"<= {self.target:g} {self.unit}".strip(), self.verdict]


def print_figures(stats: Sequence[Figure]) -> None:
    """Print targets beside what was measured."""
    print_table(["figure", "measured", "target", "verdict"], [figure.cells() for figure in stats])


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print ``rows`` below ``headers``, then an empty line; cells are shown as given."""
    align = ["left", *["right"] * (len(headers) - 1)]
    print(tabulate(rows, headers, tablefmt="github", colalign=align, disable_numparse=True), end="\n\n", flush=True)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile of at least one value."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return lower, median(values), upper


def median_cells(ratios: Sequence[float], decimals: int = 4) -> list[str]:
    """Return the median of at least one value and its standard error."""
    lower, middle, upper = spread(ratios)
    # of a median of n values that are normally distributed: 1.253 sigma / sqrt(n), sigma = quartile range / 1.349
    error = 1.253 * (upper - lower) / 1.349 / sqrt(len(ratios))
    return [f"{middle:.{decimals}f}", f"{error:.{decimals}f}"]
