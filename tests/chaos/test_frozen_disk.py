"""A disk that stops responding holds no step, and the end of the program only for a bounded time."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from tests.chaos.neighbours import train
from tests.system.scripts import report_command

pytestmark = pytest.mark.chaos

FOR_EVER_S = 3600
STEPS = 60


class Ended(NamedTuple):
    """How the program ended."""

    said: str
    result: dict[str, Any]
    took_s: float


def freeze(folder: Path, freeze_at: str, frozen_s: float, *more: str, stdout: IO[str] | int = subprocess.PIPE) -> Ended:
    """Run the program to its end."""
    result = folder / "result.json"
    begin_s = time.monotonic()
    words = (freeze_at, str(frozen_s), str(STEPS), str(result), *more)
    said = train(folder, "frozen_disk.py", *words, stdout=stdout, RECTIFIED_FLOW_PROFILE_SAMPLE_HZ="0")
    return Ended(said, json.loads(result.read_text()), time.monotonic() - begin_s)


def test_reports_to_a_file_on_the_frozen_disk_hold_no_step(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    output = tmp_path / "runs" / "output.txt"
    with output.open("w") as stdout:
        ended = freeze(tmp_path, "21", 3.0, "wait for the disk", stdout=stdout)
    assert ended.result["while_frozen"] == STEPS - 20
    assert "MainThread" not in ended.result["waited_on"]
    assert any("console" in thread for thread in ended.result["waited_on"])
    titles = re.findall(r"^=== .*\((?:Step )?(\d+)", output.read_text(), re.MULTILINE)
    assert titles == [*map(str, range(5, STEPS + 1, 5)), str(STEPS)]


@pytest.mark.parametrize("freeze_at", ["start", "21"])
def test_steps_go_on_while_the_disk_is_frozen(tmp_path: Path, freeze_at: str) -> None:
    ended = freeze(tmp_path, freeze_at, FOR_EVER_S)
    assert ended.result["while_frozen"] == STEPS - (0 if freeze_at == "start" else 20)
    assert "MainThread" not in ended.result["waited_on"]
    assert ended.result["waited_on"]  # or nothing was frozen
    assert f"Final Profiling Summary ({STEPS} steps)" in ended.said
    assert "the disk did not respond" in ended.said
    assert ended.took_s < FOR_EVER_S / 10


def test_a_disk_that_comes_back_gets_everything(tmp_path: Path) -> None:
    freeze(tmp_path, "21", 1.0, "wait for the disk")
    (folder,) = (tmp_path / "runs").glob("2*")
    assert json.loads((folder / "report.json").read_text())["steps"] == STEPS
    assert f"({STEPS} steps)" in report_command(tmp_path, str(folder)).stdout
    kinds = [json.loads(line)["kind"] for line in (folder / "rank0.jsonl").read_text().splitlines()]
    assert (kinds[-1], kinds.count("lost")) == ("end", 0)
