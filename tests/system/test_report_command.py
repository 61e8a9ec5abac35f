"""``training-profiler report RUN``: the figures of a run from its files alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.scripts import (
    THREE_STEPS,
    TIMEOUT_S,
    Outcome,
    environment,
    report_command,
    run_without_torch,
    write_script,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    script = THREE_STEPS + "with profile_epoch(1):\n    profile_step()\n"
    return run_without_torch(tmp_path_factory.mktemp("trained"), script)


def test_text_equals_the_printed_summary(trained: Outcome) -> None:
    outcome = report_command(trained.cwd, str(trained.folder))
    assert (outcome.status, outcome.stderr) == (0, "")
    printed = trained.stdout[trained.stdout.index("=== Final") :]
    assert without_own_cost(outcome.stdout) == without_own_cost(printed)


def without_own_cost(text: str) -> list[str]:
    """Leave out the profiler's own time, which goes on while the report is made, and the path of the folder."""
    own = "- cost of", "- CPU time of the profiler", "Run folder", "profiler overhead", "   profiler overhead"
    return [line for line in text.splitlines() if not line.startswith(own)]


def test_json_equals_the_report_in_the_folder(trained: Outcome) -> None:
    outcome = report_command(trained.cwd, str(trained.folder), "--json")
    assert (outcome.status, outcome.stderr) == (0, "")
    from_journal, kept = json.loads(outcome.stdout), trained.report
    assert from_journal.pop("health").keys() == kept.pop("health").keys()
    assert from_journal == kept
    assert kept["schema"] == 2
    assert {"schema", "steps", "wall_s", "sections", "epochs", "findings"} <= kept.keys()
    keys = {"count", "total_s", "self_s", "avg_s", "min_s", "max_s", "std_s", "p50_s", "p95_s", "p99_s", "share"}
    assert "other" in kept["sections"]
    for section in kept["sections"].values():
        assert keys | {"parent"} <= section.keys()
    assert {"dropped", "disabled", "overhead_s"} <= trained.report["health"].keys()


@pytest.mark.parametrize("words", [["runs"], []])
def test_newest_run_of_a_folder_is_reported(trained: Outcome, words: list[str]) -> None:
    outcome = report_command(trained.cwd, *words)
    assert outcome.status == 0
    assert outcome.stderr == f"training-profiler: reporting the newest run in runs: runs/{trained.folder.name}\n"
    assert f"training-profiler html runs/{trained.folder.name}\n" in outcome.stdout
    assert outcome.stdout.splitlines()[1].startswith("script.py - ")


@pytest.mark.parametrize("attempt", ["-1", "last", ""])
def test_a_wrong_attempt_is_one_clear_line_and_status_2(trained: Outcome, attempt: str) -> None:
    outcome = report_command(trained.cwd, str(trained.folder), f"--attempt={attempt}")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert f"{attempt!r} is not an attempt number (0, 1, ...); example: 1" in outcome.stderr


def test_report_has_color_only_where_it_is_forced(trained: Outcome) -> None:
    words = [sys.executable, "-m", "training_profiler", "report", str(trained.folder)]
    texts = [
        subprocess.run(
            words, env=environment(None, **variables), capture_output=True, text=True, timeout=TIMEOUT_S
        ).stdout
        for variables in ({}, {"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"})
    ]
    assert ["\x1b[" in text for text in texts] == [False, True, False]


CLOSED = b"training-profiler: standard output is closed\n"


@pytest.mark.parametrize(("output", "status", "stderr"), [("| true", 0, b""), (">&-", 2, CLOSED), (">&- 2>&-", 2, b"")])
def test_closed_output_is_one_line_and_a_closed_pipe_none(
    trained: Outcome, output: str, status: int, stderr: bytes
) -> None:
    command = f"{sys.executable} -m training_profiler report {trained.folder} {output}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment(None), capture_output=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (status, stderr)


def test_secrets_in_the_command_line_are_masked(tmp_path: Path) -> None:
    script = write_script(tmp_path, THREE_STEPS)
    words = "--lr 0.1 --token hunter2 --api-key=hunter3 https://u:hunter4@h/"
    command = [sys.executable, str(script), *words.split()]
    subprocess.run(command, cwd=tmp_path, env=environment("1"), capture_output=True, timeout=TIMEOUT_S, check=True)
    (folder,) = (tmp_path / "runs").glob("2*")
    meta = (folder / "meta.json").read_text()
    assert "--lr 0.1" in meta
    assert "hunter" not in meta
