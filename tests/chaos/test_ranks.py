"""One rank is killed, stopped, or loses its disk: the others end as without the profiler, and the report names it."""

from pathlib import Path

import pytest

from benchmarks.rank_faults import FAULTS, MOST_LATER_S, Fault, attempt, compared

pytestmark = pytest.mark.chaos

# Two trainings each. `python -m benchmarks.rank_faults` makes 200 tries, with all kinds of faults.
FEW = [fault for fault in FAULTS if fault.of_rank == 0 or fault.is_planted_at_start or "SIGCONT" in fault.name]
SEED = 13  # rank 1 unless the fault names another, early in the training


@pytest.mark.parametrize("fault", FEW, ids=lambda fault: fault.name)
def test_fault_of_one_rank_harms_no_other(tmp_path: Path, fault: Fault) -> None:
    off = attempt(fault, 2, SEED, False, tmp_path / "off")
    on = attempt(fault, 2, SEED, True, tmp_path / "on")
    assert compared(off, on) == []
    # Generous: the machine may be busy in one of the two trainings.
    assert on.longest_s < 2 * off.longest_s + 10 * MOST_LATER_S
