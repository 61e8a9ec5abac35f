"""`training-profiler try` of a commit against another one: what is shown, and that nothing of the folder changes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.scripts import TIMEOUT_S, environment
from tests.system.test_try import SLEEPING, files_in, tried
from training_profiler.trials.results import UNDECIDED

pytestmark = pytest.mark.programs

GIT = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
READS = 'assert Path("data.txt").read_text() == "large"\n'


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, sleep_s: str) -> None:
    text = SLEEPING.read_text().replace("def main()", f"{READS}\n\ndef main()")
    (folder / "train.py").write_text(text.replace("SLEEP_S = 0.01", f"SLEEP_S = {sleep_s}"))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", sleep_s)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("data.txt\nruns\n")
    (tmp_path / "data.txt").write_text("large")
    return tmp_path


def test_a_slower_commit_ends_with_status_1_and_uncommitted_work_stays(repository: Path) -> None:
    for sleep_s in ("0.02", "0.01"):
        commit(repository, sleep_s)
    (repository / "train.py").write_text("raise SystemExit('uncommitted')")
    before, status = files_in(repository), git(repository, "status", "--porcelain")
    for _ in range(2):  # a busy machine may decide nothing
        words = "--json", "--budget", "2m", "--ref", "HEAD~1", "--base", "HEAD", "--fail-if-slower", "5%", "train.py"
        outcome = tried(repository, *words)
        results = json.loads(outcome.stdout)
        (row,) = results["rows"]
        if row["verdict"] != UNDECIDED:
            break
    assert (outcome.returncode, row["verdict"]) == (1, "slower"), results
    assert 0.3 < row["effect"]["relative"] < 1.2
    assert (results["change"], results["base"], row["losses"]["kind"]) == ("HEAD~1", "HEAD", "identical")
    assert results["statement"].startswith("SLOWER: a step takes ")
    assert row["memory_bytes"] > 2**26
    assert (files_in(repository), git(repository, "status", "--porcelain")) == (before, status)


def test_bisect_names_the_commit_that_is_slower_than_the_one_before(repository: Path) -> None:
    for sleep_s in ("0.01", "0.02", "0.020"):
        commit(repository, sleep_s)
    before = files_in(repository)
    for budget in ("1m", "5m"):  # on a busy machine the first one may end before the first step
        words = "bisect", "--budget", budget, "HEAD~2", "HEAD", "--", "train.py"
        command = [sys.executable, "-m", "training_profiler", *words]
        options = {"env": environment(None), "capture_output": True, "text": True, "timeout": 4 * TIMEOUT_S}
        outcome = subprocess.run(command, cwd=repository, **options)
        if outcome.returncode == 0:
            break
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    (found,) = [line for line in outcome.stdout.splitlines() if line.startswith("SINCE ")]
    assert " 0.02 (A, " in found
    assert "in no section: " in outcome.stdout
    assert files_in(repository) == before
