"""`training-profiler try` of a commit against another one: what is shown, and that nothing of the folder changes."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.system.test_try import SLEEPING, files_in, tried
from training_profiler.trials.results import NO_VERDICT

pytestmark = pytest.mark.programs

GIT = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
READS = 'assert Path("data.txt").read_text() == "large"\n'


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_slower_commit_ends_with_status_1_and_uncommitted_work_stays(tmp_path: Path) -> None:
    text = SLEEPING.read_text().replace("def main()", f"{READS}\n\ndef main()")
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("data.txt\nruns\n")
    (tmp_path / "data.txt").write_text("large")
    for sleep_s in ("0.02", "0.01"):
        (tmp_path / "train.py").write_text(text.replace("SLEEP_S = 0.01", f"SLEEP_S = {sleep_s}"))
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "-m", sleep_s)
    (tmp_path / "train.py").write_text("raise SystemExit('uncommitted')")
    before, status = files_in(tmp_path), git(tmp_path, "status", "--porcelain")
    for _ in range(2):  # a busy machine may decide nothing
        words = "--json", "--budget", "2m", "--ref", "HEAD~1", "--base", "HEAD", "--fail-if-slower", "5%", "train.py"
        outcome = tried(tmp_path, *words)
        results = json.loads(outcome.stdout)
        (row,) = results["rows"]
        if row["verdict"] != NO_VERDICT:
            break
    assert (outcome.returncode, row["verdict"]) == (1, "slower"), results
    assert 0.3 < row["effect"]["relative"] < 1.2
    assert (results["change"], results["base"], row["losses"]["kind"]) == ("HEAD~1", "HEAD", "identical")
    assert results["statement"].startswith("SLOWER: a step takes ")
    assert row["memory_bytes"] > 2**26
    assert (files_in(tmp_path), git(tmp_path, "status", "--porcelain")) == (before, status)
