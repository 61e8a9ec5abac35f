"""Invalid input is reported under "Profiler health"; the training goes on and nothing else is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.scripts import (
    TIMEOUT_S,
    Outcome,
    environment,
    report_command,
    run,
    run_without_torch,
    small_files,
    write_script,
)

LOOP = """
for step in range(3):
    with profile_section("forward_pass"): pass
    profile_step()
print("trained")
"""
START = "from training_profiler import *\nstart_training_profiling(log_every=1)\n"


def assert_trained(outcome: Outcome) -> None:
    assert outcome.status == 0
    assert "trained\n" in outcome.stdout
    assert outcome.summaries == 1


def test_unusable_names_harm_nothing_share_a_row_and_are_counted(tmp_path: Path) -> None:
    script = (
        START
        + """
class NoHash:
    __hash__ = None
    def __repr__(self): raise RuntimeError
for name in ("", "  ", None, 3, 2.5, b"x", [], {}, NoHash()):
    for _ in range(2):
        with profile_section(name): pass
@profile_section("")
def f(): return 1
assert f() == 1
for number in (None, "x", object, float("inf"), [1]):
    with profile_epoch(number): pass
with profile_epoch("2"): profile_step()
with profile_phase(None), profile_phase([1]), profile_phase("test"): pass
assert list(profile_dataloader([1, 2], name=3)) == [1, 2]
profile_section("a").__exit__(None, None, None)
"""
    )
    outcome = run_without_torch(tmp_path, script + LOOP)
    assert_trained(outcome)
    assert outcome.stderr == ""
    sections = outcome.report["sections"]
    assert sections["(invalid name)"]["count"] == 19
    assert sections["forward_pass"]["count"] == 3
    assert "sections had no usable name (first: '')" in outcome.stdout
    assert [epoch["number"] for epoch in outcome.report["epochs"]] == [2]


@pytest.mark.parametrize("folder", ["a_file", "a_file/below", "/proc/no_such_place"])
def test_unwritable_run_folder_is_reported_and_all_else_works(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a_file").write_text("kept")
    outcome = run_without_torch(
        tmp_path, f"from training_profiler import *\nstart_training_profiling(1, dir={folder!r})\n" + LOOP
    )
    assert_trained(outcome)
    assert "=== Profiling Report (Step 3) ===" in outcome.stdout
    assert "- switched off: run folder (" in outcome.stdout
    assert len(outcome.stderr.splitlines()) == 1
    why = f"OSError: RECTIFIED_FLOW_PROFILE_DIR is {folder!r}, and no folder can be made there ("
    assert outcome.stderr.startswith(f"Profiler: run folder switched off, the training goes on: {why}")
    assert outcome.stderr.endswith("); example: RECTIFIED_FLOW_PROFILE_DIR=/tmp/runs\n")
    assert (tmp_path / "a_file").read_text() == "kept"


@pytest.mark.parametrize("room", [0, 8000])
def test_a_full_disk_is_reported_and_the_journal_stays_readable(tmp_path: Path, room: int) -> None:
    loop = LOOP.replace("range(3)", "range(60)")
    outcome = run_without_torch(tmp_path, f"{small_files(room)}\n{START}{loop}")
    assert_trained(outcome)
    assert "=== Final Profiling Summary (60 steps) ===" in outcome.stdout
    assert "- switched off: run folder (OSError: " in outcome.stdout
    if room:
        assert "[Errno 27] File too large)" in outcome.stdout
        assert len(outcome.stderr.splitlines()) == 1
        from_files = report_command(tmp_path, str(outcome.folder))
        assert (from_files.status, from_files.stderr) == (0, "")
        assert "torn line" in from_files.stdout


CLOSED = {
    "closed": "import sys\nsys.stdout.close()\n",
    "none": "import sys\nsys.stdout = None\n",
    "descriptor": "import os\nos.close(1)\n",
    "no file": "import sys\nclass Out:\n    def write(self, text): raise RuntimeError('no')\nsys.stdout = Out()\n",
}


@pytest.mark.parametrize("how", CLOSED)
def test_unwritable_stdout_disables_only_the_console(tmp_path: Path, how: str) -> None:
    script = CLOSED[how] + START + LOOP.replace("print", "str")
    on, off = run_without_torch(tmp_path, script), run_without_torch(tmp_path, script, profile=None)
    assert on.status == off.status
    assert on.report["steps"] == 3
    if how != "descriptor":  # the journal may have this descriptor number by now
        assert on.report["health"]["disabled"][0].startswith("console (")
        assert on.stderr.count("console switched off") == 1


@pytest.mark.parametrize("text", ["", "print('x', flush=True)\n", "print('x')\n"])
def test_a_closed_reader_and_closed_output_keep_the_exit_status(tmp_path: Path, text: str) -> None:
    script = write_script(tmp_path, START + "import sys\nsys.stdin.read()\n" + text + LOOP.replace("print", "str"))
    statuses = []
    for profile in ("1", None):
        options = {"cwd": tmp_path, "env": environment(profile), "stderr": -1}
        process = subprocess.Popen([sys.executable, script], stdin=-1, stdout=-1, **options)
        assert process.stdout is not None
        process.stdout.close()
        process.communicate(b"", TIMEOUT_S)
        statuses.append(process.returncode)
        if not text:
            closed = subprocess.run(
                ["sh", "-c", f"{sys.executable} {script} >&-"], stdin=-3, timeout=TIMEOUT_S, **options
            )
            statuses.append(closed.returncode)
    assert statuses[: len(statuses) // 2] == statuses[len(statuses) // 2 :]


@pytest.mark.parametrize("left_open", [5, 50_000])  # memory is bounded
def test_unpaired_enters_and_exits_are_dropped_and_counted(tmp_path: Path, left_open: int) -> None:
    script = f"""
for _ in range(4):
    profile_section("forward_pass").__exit__(None, None, None)
for _ in range({left_open}):
    profile_section("left open").__enter__()
"""
    outcome = run_without_torch(tmp_path, START + script + LOOP)
    assert_trained(outcome)
    report = outcome.report
    assert report["sections"]["forward_pass"]["count"] == 3
    assert report["health"]["dropped"] == 4 if left_open == 5 else report["health"]["dropped"] > 4
    assert report["health"]["disabled"] == []
    assert sum(section["share"] for section in report["sections"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("clock", ["lambda: 10**9", "lambda s=[10**9]: s.__setitem__(0, s[0] - 5) or s[0]"])
def test_clock_that_stops_or_steps_back_harms_nothing(tmp_path: Path, clock: str) -> None:
    script = f"import time\ntime.perf_counter_ns = {clock}\n" + START + LOOP
    outcome = run(tmp_path, script)
    assert_trained(outcome)
    assert outcome.stderr == ""
    assert outcome.report["steps"] == 3
    assert outcome.report["sections"]["forward_pass"]["count"] == 3
    health = outcome.stdout.split("Profiler health:")[1]
    assert "- the clock has not moved forward: counts are right, times are not known\n" in health
    assert any("the clock has not moved" in note for note in outcome.report["health"]["notes"])
