"""Long runs: what grows in simulated hours is what RESULTS.md says, and nothing else."""

import re

import pytest

from benchmarks.soak import Point, figures, growth, simulated
from tests.system.scripts import ROOT

pytestmark = pytest.mark.chaos


@pytest.mark.timeout(900)
def test_simulated_hours_grow_only_up_to_its_targets() -> None:
    points = simulated(hours=4)
    stats = figures("4 simulated hours", points)
    assert [stat.what for stat in stats if stat.verdict != "PASS"] == [], "\n".join(map(str, [*stats, *points]))
    assert points[-1].at_s > 3.9 * 3600


def test_limits_of_the_benchmark_are_those_of_its_results() -> None:
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    (promised,) = re.findall(r"^## Long runs: `soak`\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE)
    rows = [figure.cells()[2] for figure in figures("x", [point(0), point(1)])]
    missing = [target for target in rows if target.removeprefix("<= ") not in promised and target != "<= 0"]
    assert missing == []


def point(number: int) -> Point:
    return Point(3600.0 * (number + 1), 10, 10 + number, 3, 4, 5, 6, 7)


def test_growth_compares_the_last_fifth_with_the_second() -> None:
    assert growth([point(number) for number in range(10)], "traced_bytes") == 6
