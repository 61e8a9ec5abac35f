"""Programs that close descriptors of others: their files hold what they wrote, and the run is whole."""

import json
from pathlib import Path

import pytest

from tests.chaos.neighbours import train
from tests.system.scripts import report_command, wait_until

pytestmark = pytest.mark.chaos

OF_PROGRAM = b"of the program\n" * 2


def files_of_program(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.glob("theirs*")}


@pytest.mark.parametrize("first", ["3", "0"])
@pytest.mark.parametrize(("end", "are_ours_closed"), [("256", False), ("4096", True)])
def test_files_of_a_program_that_closed_our_descriptors(
    tmp_path: Path, first: str, end: str, are_ours_closed: bool
) -> None:
    train(tmp_path, "closed_descriptors.py", first, end)
    assert files_of_program(tmp_path) == {OF_PROGRAM}
    (folder,) = (tmp_path / "runs").glob("2*")
    report = json.loads((folder / "report.json").read_text())
    assert report["steps"] == 60
    is_noted = any("closed the journal's descriptor" in note for note in report["health"]["notes"])
    assert is_noted == are_ours_closed
    rows = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(rows) == 60
    assert "60," in (folder / "metrics.csv").read_text()
    assert "Final Profiling Summary (60 steps)" in report_command(tmp_path, str(folder)).stdout


@pytest.mark.parametrize(("when", "steps"), [("before", 30), ("after", None)])
def test_daemons(tmp_path: Path, when: str, steps: int | None) -> None:
    train(tmp_path, "daemon.py", when)
    wait_until((tmp_path / "done").exists)
    assert files_of_program(tmp_path) == {OF_PROGRAM}
    if steps is not None:  # a child of a process that began a run is silent
        (folder,) = (tmp_path / "runs").glob("2*")
        assert json.loads((folder / "report.json").read_text())["steps"] == steps
