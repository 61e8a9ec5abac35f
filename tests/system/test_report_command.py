"""``training-profiler report RUN``: the figures of a run from its files alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.scripts import THREE_STEPS, Outcome, environment, report_command, run, write_script


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    script = THREE_STEPS + "with profile_epoch(1):\n    profile_step()\n"
    return run(tmp_path_factory.mktemp("trained"), script)


def test_text_is_the_final_summary_that_was_printed(trained: Outcome) -> None:
    told = report_command(trained.cwd, str(trained.folder))
    assert (told.status, told.stderr) == (0, "")
    printed = trained.stdout[trained.stdout.index("=== Final") :]
    assert without_own_cost(told.stdout) == without_own_cost(printed)


def without_own_cost(text: str) -> list[str]:
    """Leave out what goes on while the report is made, and where the folder is said to be."""
    return [line for line in text.splitlines() if not line.startswith(("- cost of", "Run folder", "(profiler)"))]


def test_json_is_the_report_in_the_folder(trained: Outcome) -> None:
    told = report_command(trained.cwd, str(trained.folder), "--json")
    assert (told.status, told.stderr) == (0, "")
    from_journal, kept = json.loads(told.stdout), trained.report
    assert from_journal.pop("health").keys() == kept.pop("health").keys()
    assert from_journal == kept
    assert kept["schema"] == 1
    assert {"schema", "steps", "wall_s", "sections", "epochs", "insights"} <= kept.keys()


def test_every_section_has_the_keys_of_the_contract(trained: Outcome) -> None:
    keys = {"count", "total_s", "self_s", "avg_s", "min_s", "max_s", "std_s", "p50_s", "p95_s", "p99_s", "share"}
    assert "other" in trained.report["sections"]
    for section in trained.report["sections"].values():
        assert keys | {"parent"} <= section.keys()
    assert {"dropped", "disabled", "overhead_s"} <= trained.report["health"].keys()


def test_format_lines_has_one_greppable_line_a_section(trained: Outcome) -> None:
    told = report_command(trained.cwd, str(trained.folder), "--format", "lines")
    assert told.status == 0
    (line,) = [line for line in told.stdout.splitlines() if line.startswith("forward_pass: count=")]
    assert line.startswith("forward_pass: count=3, total=0.00")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_folder", "no_such_folder does not exist; example: training-profiler report runs/20261121-142530"),
        ("script.py", "script.py is a file; give the run folder around it, e.g. ."),
        ("runs", "runs holds a run; give that folder itself, e.g. runs/"),
        (".", ". is no run folder: rank0.jsonl cannot be read (No such file or directory)"),
    ],
)
def test_wrong_path_is_one_clear_line_and_status_2(trained: Outcome, path: str, said: str) -> None:
    told = report_command(trained.cwd, path)
    assert (told.status, told.stdout) == (2, "")
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"training-profiler: {said}")


@pytest.mark.parametrize(
    "journal",
    [b"", b"\n", b"not json\n", b"[1]\n", b'{"kind":"begin","schema":99}\n', b'{"kind":"begin","schema":1}\n'],
)
def test_journal_that_is_none_is_one_clear_line_and_status_2(tmp_path: Path, journal: bytes) -> None:
    (tmp_path / "rank0.jsonl").write_bytes(journal)
    told = report_command(tmp_path, str(tmp_path))
    assert (told.status, told.stdout) == (2, "")
    assert len(told.stderr.splitlines()) == 1


def test_journal_torn_anywhere_in_its_last_line_gives_the_rest(trained: Outcome, tmp_path: Path) -> None:
    whole = (trained.folder / "rank0.jsonl").read_bytes()
    for kept in (len(whole) - 2, len(whole) - 30):
        (tmp_path / "rank0.jsonl").write_bytes(whole[:kept])
        told = report_command(tmp_path, str(tmp_path), "--json")
        assert json.loads(told.stdout)["steps"] == 4


def test_reader_that_has_read_enough_is_no_error(trained: Outcome) -> None:
    command = f"{sys.executable} -m training_profiler report {trained.folder} | true"
    done = subprocess.run(
        ["bash", "-c", command + "; exit ${PIPESTATUS[0]}"], env=environment(None), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_secrets_of_the_command_line_are_masked(tmp_path: Path) -> None:
    script = write_script(tmp_path, THREE_STEPS)
    command = [
        sys.executable,
        str(script),
        "--lr",
        "0.1",
        "--token",
        "hunter2",
        "--api-key=hunter3",
        "https://u:hunter4@h/",
    ]
    subprocess.run(command, cwd=tmp_path, env=environment("1"), capture_output=True, timeout=60, check=True)
    (folder,) = (tmp_path / "runs").iterdir()
    meta = (folder / "meta.json").read_text()
    assert "--lr 0.1" in meta
    assert "hunter" not in meta


# Ranks that never meet: no process group, so that nobody tells them the name of the run's folder.
STARTED_ANEW = """
import os, sys, time, torch
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if attempt == 0 and rank == 0:
    open("rank0_is_through", "w").close()
    time.sleep(60)
if attempt == 0:
    while not os.path.exists("rank0_is_through"):
        time.sleep(0.01)
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def started_anew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a training of two ranks that failed once."""
    cwd = tmp_path_factory.mktemp("started_anew")
    words = ["--nproc_per_node=2", "--max-restarts=1", "--monitor-interval=0.1", str(write_script(cwd, STARTED_ANEW))]
    command = [sys.executable, "-m", "training_profiler", "run", "torchrun", "--standalone", *words]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # torchrun is this environment's
    variables = environment(None, PATH=path)
    subprocess.run(command, cwd=cwd, env=variables, capture_output=True, timeout=120, check=True)
    return min((cwd / "runs").iterdir(), key=lambda folder: len(folder.name))  # beside it may be a rank's own


@pytest.mark.programs
def test_attempts_of_a_training_are_in_one_folder(started_anew: Path) -> None:
    reports = {"report.txt", "report.json", "report-attempt0.txt", "report-attempt0.json"}
    names = {path.name for path in started_anew.iterdir()}
    assert {"meta.json", "rank0.jsonl", "rank0-attempt1.jsonl", *reports} <= names
    assert len(list(started_anew.parent.rglob("rank1*.jsonl"))) == 2
    report, before = (json.loads((started_anew / f"report{of}.json").read_text()) for of in ("", "-attempt0"))
    assert (report["steps"], report["ended_by"]) == (20, None)
    assert (before["steps"], before["ended_by"]) == (20, "SIGTERM")


@pytest.mark.programs
def test_each_attempt_has_its_report(started_anew: Path) -> None:
    last, first = (
        json.loads(report_command(started_anew, str(started_anew), "--json", *words).stdout)
        for words in ((), ("--attempt", "0"))
    )
    assert (last["steps"], last["ended_by"]) == (20, None)
    assert (first["steps"], first["ended_by"]) == (20, "SIGTERM")


@pytest.mark.programs
def test_the_last_rank_s_journal_is_enough_for_a_report(started_anew: Path, tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (journal,) = started_anew.parent.rglob("rank1.jsonl")
    (tmp_path / "node1" / "rank1.jsonl").write_bytes(journal.read_bytes())
    told = report_command(tmp_path, str(tmp_path))
    assert (told.status, told.stderr) == (0, "")
    assert "the figures above are rank 1's: rank 0's journal is missing" in told.stdout


@pytest.mark.programs
@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        ("2", "has no attempt 2; it has attempts 0, 1; example: training-profiler report"),
        ("-1", "'-1' is no number of an attempt, which are counted from 0; example: 1"),
        ("last", "'last' is no number of an attempt, which are counted from 0; example: 1"),
        ("", "'' is no number of an attempt, which are counted from 0; example: 1"),
    ],
)
def test_an_attempt_that_is_not_there_is_told_and_status_2(started_anew: Path, attempt: str, said: str) -> None:
    told = report_command(started_anew, str(started_anew), f"--attempt={attempt}")
    assert (told.status, told.stdout) == (2, "")
    assert said in told.stderr
    assert "Traceback" not in told.stderr
