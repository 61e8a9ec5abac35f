"""A training that is killed at any moment leaves a folder that says where it was and loses little."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kills import FLUSH_S, run_kills
from tests.system.scripts import environment, report_command, wait_until

pytestmark = pytest.mark.chaos

TRIES = 30
BUSY_MACHINE = 10.0  # times ``flush_s``; benchmarks.kills compares with flush_s itself
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "programs" / "killed_training.py"


def test_kills_at_random_moments_lose_little() -> None:
    kills = [kill for kill in run_kills(TRIES, at_once=3) if kill.lived_s is not None]
    assert len(kills) > TRIES // 2
    assert max(kill.lost_s for kill in kills) < BUSY_MACHINE * FLUSH_S
    assert all(kill.has_folder for kill in kills if kill.lived_s > FLUSH_S)


def test_a_kill_in_one_long_section_shows_where_it_was(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "one long section", str(tmp_path / "truth")],
        cwd=tmp_path,
        env=environment("1"),
    )
    wait_until(lambda: any(is_flushed(path) for path in tmp_path.glob("runs/*/rank0.jsonl")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    reported = report_command(tmp_path, "runs")
    assert reported.status == 0
    assert "Still inside: forward_pass > attention" in reported.stdout


def is_flushed(journal: Path) -> bool:
    """Return whether an interval in a journal names open sections."""
    records = [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return any(record.get("open_sections") for record in records)
