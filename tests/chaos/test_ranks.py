"""One rank is killed, stopped, or loses its disk: the others end as without the profiler, and the report names it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rank_faults import BOOTSTRAP, FAULTS, MOST_LATER_S, Fault, attempt, compared, started
from tests.system.scripts import fork_server

pytestmark = pytest.mark.chaos

# Two trainings each. `python -m benchmarks.rank_faults` makes 200 tries, with all kinds of faults.
FEW = [fault for fault in FAULTS if fault.of_rank == 0 or fault.is_planted_at_start or "SIGCONT" in fault.name]
SEED = 13  # rank 1 unless the fault names another, early in the training


def forked(words: list[str], variables: dict[str, str], folder: Path, log: Any) -> Any:
    """Start a rank in a fork of a process that has torch."""
    is_on = variables["PYTHONPATH"].startswith(BOOTSTRAP)
    return fork_server().start(words[1:], folder, variables, is_on, stdout=log, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("fault", FEW, ids=lambda fault: fault.name)
def test_fault_of_one_rank_harms_no_other(tmp_path: Path, fault: Fault) -> None:
    start = started if fault.is_planted_at_start else forked  # those need the start of the interpreter
    off = attempt(fault, 2, SEED, False, tmp_path / "off", start=start)
    on = attempt(fault, 2, SEED, True, tmp_path / "on", start=start)
    assert compared(off, on) == []
    # Generous: the machine may be busy in one of the two trainings.
    assert on.longest_s < 2 * off.longest_s + 10 * MOST_LATER_S
