"""``training-profiler report RUN``: the figures of a run from its files alone."""

import json
import os
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


def test_lines_format_has_one_greppable_line_per_section(trained: Outcome) -> None:
    outcome = report_command(trained.cwd, str(trained.folder), "--format", "lines")
    assert outcome.status == 0
    (line,) = [line for line in outcome.stdout.splitlines() if line.startswith("forward_pass: count=")]
    assert line.startswith("forward_pass: count=3, total=0.00")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_folder", "no_such_folder does not exist; example: training-profiler report runs/20261121-142530"),
        ("script.py", "script.py is a file; give the run folder around it, e.g. ."),
        (".", ". is not a run folder: rank0.jsonl cannot be read (No such file or directory)"),
    ],
)
def test_wrong_path_is_one_clear_line_and_status_2(trained: Outcome, path: str, message: str) -> None:
    outcome = report_command(trained.cwd, path)
    assert (outcome.status, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"training-profiler: {message}")


@pytest.mark.parametrize("words", [["runs"], []])
def test_newest_run_of_a_folder_is_reported(trained: Outcome, words: list[str]) -> None:
    outcome = report_command(trained.cwd, *words)
    assert outcome.status == 0
    assert outcome.stderr == f"training-profiler: reporting the newest run in runs: runs/{trained.folder.name}\n"
    assert f"training-profiler html runs/{trained.folder.name}\n" in outcome.stdout
    assert outcome.stdout.splitlines()[1].startswith("script.py - ")


def test_report_has_color_only_where_it_is_forced(trained: Outcome) -> None:
    words = [sys.executable, "-m", "training_profiler", "report", str(trained.folder)]
    texts = [
        subprocess.run(
            words, env=environment(None, **variables), capture_output=True, text=True, timeout=TIMEOUT_S
        ).stdout
        for variables in ({}, {"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"})
    ]
    assert ["\x1b[" in text for text in texts] == [False, True, False]


@pytest.mark.parametrize(
    "journal",
    [b"", b"\n", b"not json\n", b"[1]\n", b'{"kind":"begin","schema":99}\n', b'{"kind":"begin","schema":1}\n'],
)
def test_invalid_journal_is_one_clear_line_and_status_2(tmp_path: Path, journal: bytes) -> None:
    (tmp_path / "rank0.jsonl").write_bytes(journal)
    outcome = report_command(tmp_path, str(tmp_path))
    assert (outcome.status, outcome.stdout) == (2, "")
    assert len(outcome.stderr.splitlines()) == 1


def test_torn_last_line_of_the_journal_is_ignored(trained: Outcome, tmp_path: Path) -> None:
    whole = (trained.folder / "rank0.jsonl").read_bytes()
    for kept in (len(whole) - 2, len(whole) - 30):
        (tmp_path / "rank0.jsonl").write_bytes(whole[:kept])
        outcome = report_command(tmp_path, str(tmp_path), "--json")
        assert json.loads(outcome.stdout)["steps"] == 4


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


# Ranks without a process group do not learn the name of the run folder.
RESTARTED = """
import os, sys, time, torch
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if attempt == 0 and rank == 0:
    open("rank0_is_done", "w").close()
    time.sleep(60)
if attempt == 0:
    while not os.path.exists("rank0_is_done"):
        time.sleep(0.01)
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a two-rank training that failed once."""
    cwd = tmp_path_factory.mktemp("restarted")
    words = ["--nproc_per_node=2", "--max-restarts=1", "--monitor-interval=0.1", str(write_script(cwd, RESTARTED))]
    command = [sys.executable, "-m", "training_profiler", "run", "torchrun", "--standalone", *words]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # torchrun is this environment's
    variables = environment(None, PATH=path)
    subprocess.run(command, cwd=cwd, env=variables, capture_output=True, timeout=TIMEOUT_S, check=True)
    return min((cwd / "runs").glob("2*"), key=lambda folder: len(folder.name))  # beside it may be a rank's own


@pytest.mark.programs
def test_attempts_share_one_folder(restarted: Path) -> None:
    reports = {"report.txt", "report.json", "report-attempt0.txt", "report-attempt0.json"}
    names = {path.name for path in restarted.iterdir()}
    assert {"meta.json", "rank0.jsonl", "rank0-attempt1.jsonl", *reports} <= names
    assert len(list(restarted.parent.rglob("rank1*.jsonl"))) == 2
    report, before = (json.loads((restarted / f"report{of}.json").read_text()) for of in ("", "-attempt0"))
    assert (report["steps"], report["ended_by"]) == (20, None)
    assert (before["steps"], before["ended_by"]) == (20, "SIGTERM")
    for words, ended_by in (((), None), (("--attempt", "0"), "SIGTERM")):
        found = json.loads(report_command(restarted, str(restarted), "--json", *words).stdout)
        assert (found["steps"], found["ended_by"]) == (20, ended_by)


@pytest.mark.programs
def test_one_ranks_journal_is_enough_for_a_report(restarted: Path, tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (journal,) = restarted.parent.rglob("rank1.jsonl")
    (tmp_path / "node1" / "rank1.jsonl").write_bytes(journal.read_bytes())
    outcome = report_command(tmp_path, str(tmp_path))
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "the figures above are rank 1's: rank 0's journal is missing" in outcome.stdout


@pytest.mark.programs
@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        ("2", "has no attempt 2; it has attempts 0, 1; example: training-profiler report"),
        ("-1", "'-1' is not an attempt number (0, 1, ...); example: 1"),
        ("last", "'last' is not an attempt number (0, 1, ...); example: 1"),
        ("", "'' is not an attempt number (0, 1, ...); example: 1"),
    ],
)
def test_missing_attempt_is_one_clear_line_and_status_2(restarted: Path, attempt: str, message: str) -> None:
    outcome = report_command(restarted, str(restarted), f"--attempt={attempt}")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
