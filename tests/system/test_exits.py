"""However a script ends, it gets one final summary and keeps its own status and traceback."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.system.scripts import (
    SUMMARY,
    THREE_STEPS,
    Outcome,
    finish,
    report_command,
    run_without_torch,
    start_without_torch,
    wait_for,
)

# Fast sections and a report at each step, so a signal most likely arrives during work of the profiler.
BUSY = """
import training_profiler.runtime.health
training_profiler.runtime.health.REPORTS_FREE = 10**9  # or reports are thinned out
from training_profiler import *
start_training_profiling(log_every=1)
for _ in range(3):
    with profile_section("forward_pass"): pass
    profile_step()
print("ready", flush=True)
while True:
    with profile_section("forward_pass"):
        with profile_section("attention"): pass
    with profile_section("backward_pass"): pass
    profile_step()
"""
IDLE = THREE_STEPS + "print('ready', flush=True)\nimport time\nwhile True: time.sleep(1)\n"


def assert_summed_up_once(outcome: Outcome, steps: int | None = 3) -> None:
    """Check that terminal and run folder have the same single final summary."""
    assert outcome.summaries == 1
    if steps is not None:
        assert SUMMARY.findall(outcome.stdout) == [str(steps)]
    assert str(outcome.report["steps"]) == SUMMARY.findall(outcome.stdout)[0]
    assert len(SUMMARY.findall((outcome.folder / "report.txt").read_text())) == 1
    assert outcome.report["health"]["disabled"] == []
    lines = (outcome.folder / "rank0.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines].count("end") == 1


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("stop_training_profiling()", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('a message')", 1),
        ("raise SystemExit", 0),
        ("raise ValueError('the loss is nan')", 1),
        ("with profile_section('forward_pass'), profile_epoch(1): raise ValueError('inside a section')", 1),
        ("stop_training_profiling(); raise ValueError('after the end')", 1),
        ("import atexit; atexit.register(exec, '1 / 0')", 0),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import signal; signal.signal(signal.SIGTERM, lambda *_: exit(4)); signal.raise_signal(signal.SIGTERM)", 4),
        ("import threading; threading.Thread(target=stop_training_profiling).start()", 0),
        ("import threading; threading.Thread(target=lambda: 1 / 0).start()", 0),
    ],
)
def test_script_keeps_its_status_and_traceback_and_gets_one_summary(tmp_path: Path, ending: str, status: int) -> None:
    script = THREE_STEPS + ending + "\n"
    on, off = run_without_torch(tmp_path, script), run_without_torch(tmp_path, script, profile=None)
    assert (on.status, on.stderr) == (off.status, off.stderr)
    assert on.status == status
    assert_summed_up_once(on)


def test_report_names_the_exception_that_ended_the_run(tmp_path: Path) -> None:
    in_a_library = "import contextlib, json\nwith contextlib.nullcontext():\n    json.loads('{]')\n"
    outcome = run_without_torch(tmp_path, THREE_STEPS + in_a_library)
    line = THREE_STEPS.count("\n") + 3
    says = f"script.py:{line} <module>: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    assert (outcome.report["ended_by"], outcome.report["health"]["error"]) == ("JSONDecodeError", says)
    verdict = " ".join(outcome.stdout[outcome.stdout.index(" VERDICT") :].split())
    assert verdict.startswith(f"VERDICT ENDED BY JSONDecodeError after 3 steps {says}")
    assert report_command(tmp_path, str(outcome.folder)).stdout.count("Expecting property name") == 1


def test_hard_exit_leaves_a_journal_that_can_be_reported(tmp_path: Path) -> None:
    outcome = run_without_torch(tmp_path, THREE_STEPS + "snapshot()\nimport os\nos._exit(5)")
    assert (outcome.status, outcome.summaries, outcome.stderr) == (5, 0, "")
    from_files = report_command(tmp_path, str(outcome.folder))
    assert (from_files.status, from_files.stderr) == (0, "")
    assert SUMMARY.findall(from_files.stdout) == ["3"]
    assert "the run did not come to its end" in from_files.stdout


def test_ctrl_c_to_the_process_group_gives_one_summary(tmp_path: Path) -> None:
    outcomes = []
    for profile in ("1", None):
        # Both are past the fork when the child prints ready: Python can lose a signal right after a fork.
        forks = "import os\nends = os.pipe()\nif os.fork(): os.write(ends[1], b'.')\nelse: os.read(ends[0], 1); "
        script = IDLE.replace("print('ready'", f"{forks}print('ready'")
        process = start_without_torch(tmp_path, script, profile)
        read = wait_for(process, "ready")
        os.killpg(process.pid, signal.SIGINT)
        outcomes.append(finish(process, tmp_path, read))
    on, off = outcomes
    assert on.status == off.status == -signal.SIGINT
    assert on.stderr.count("KeyboardInterrupt") == off.stderr.count("KeyboardInterrupt")
    assert on.report["ended_by"] == "KeyboardInterrupt"
    assert_summed_up_once(on)


def test_sigterm_ends_an_idle_run_with_the_usual_status(tmp_path: Path) -> None:
    process = start_without_torch(tmp_path, IDLE)
    read = wait_for(process, "ready")
    process.send_signal(signal.SIGTERM)
    outcome = finish(process, tmp_path, read)
    assert (outcome.status, outcome.stderr) == (-signal.SIGTERM, "")
    assert outcome.report["ended_by"] == "SIGTERM"
    assert_summed_up_once(outcome)


def test_sigterm_handler_of_the_script_is_not_replaced(tmp_path: Path) -> None:
    script = """
        import signal, sys
        def mine(*_):
            print("mine")
            sys.exit(7)
        signal.signal(signal.SIGTERM, mine)
        from training_profiler import *
        start_training_profiling()
        profile_step()
        assert signal.getsignal(signal.SIGTERM) is mine
        stop_training_profiling()
        start_training_profiling()
        profile_step()
        signal.raise_signal(signal.SIGTERM)
    """
    outcome = run_without_torch(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (7, "", 2)
    assert "mine\n" in outcome.stdout


def test_stop_restores_sigterm_and_keeps_a_later_handler(tmp_path: Path) -> None:
    script = """
        import signal
        from training_profiler import *
        start_training_profiling(); stop_training_profiling()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        start_training_profiling()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop_training_profiling()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)
    """
    outcome = run_without_torch(tmp_path, script)
    assert [line for line in outcome.stdout.splitlines() if line in ("True", "False")] == ["True", "True"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.programs)])
def test_signal_at_a_random_moment_gives_one_summary(tmp_path: Path, signum: signal.Signals) -> None:
    for attempt in range(6):
        cwd = tmp_path / str(attempt)
        cwd.mkdir()
        process = start_without_torch(cwd, BUSY)
        read = wait_for(process, "ready")
        # Reads another number of reports each time, so the signal arrives at different moments.
        for _ in range(attempt * 40):
            assert process.stdout is not None
            read += process.stdout.readline()
        process.send_signal(signum)
        outcome = finish(process, cwd, read)
        assert outcome.status == -signum
        assert_summed_up_once(outcome, steps=None)
        assert not [line for line in outcome.stderr.splitlines() if "switched off" in line]


def test_sigterm_during_a_write_of_the_script_gives_one_summary(tmp_path: Path) -> None:
    # The pipe is full, so the write is certainly under way when the signal arrives.
    script = (
        THREE_STEPS
        + """
import os, signal, sys, threading
def kill_when_stuck():
    where = ""
    while "pipe" not in where:
        with open(f"/proc/self/task/{main}/wchan") as file: where = file.read()
    print("stuck", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
main = threading.get_native_id()
threading.Thread(target=kill_when_stuck, daemon=True).start()
print("." * 1_000_000)
"""
    )
    process = start_without_torch(tmp_path, script)
    assert process.stderr is not None
    line = process.stderr.readline()
    outcome = finish(process, tmp_path)
    assert line == "stuck\n"
    assert (outcome.status, outcome.stderr) == (-signal.SIGTERM, "")
    assert outcome.stdout.count("=== Final Profiling Summary (3 steps) ===") == 1
    assert outcome.report["health"]["disabled"] == []


def test_killed_run_is_reported_except_its_last_interval(tmp_path: Path) -> None:
    script = """
        from training_profiler import *
        start_training_profiling(log_every=10)
        for step in range(1, 26):
            with profile_section("forward_pass"): pass
            profile_step()
        print("ready", flush=True)
        import time
        while True: time.sleep(1)
    """
    process = start_without_torch(tmp_path, script)
    read = wait_for(process, "ready")
    process.kill()
    outcome = finish(process, tmp_path, read)
    assert outcome.status == -signal.SIGKILL
    from_files = report_command(tmp_path, str(outcome.folder), "--json")
    assert (from_files.status, from_files.stderr) == (0, "")
    report = json.loads(from_files.stdout)
    assert report["steps"] == 20
    assert report["sections"]["forward_pass"]["count"] == 20
    assert sum(section["share"] for section in report["sections"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "attempt", [0, *(pytest.param(attempt, marks=pytest.mark.programs) for attempt in range(1, 4))]
)
def test_run_killed_at_a_random_moment_can_be_reported(tmp_path: Path, attempt: int) -> None:
    process = start_without_torch(tmp_path, BUSY)
    read = wait_for(process, "ready")
    for _ in range(attempt * 60):
        assert process.stdout is not None
        read += process.stdout.readline()
    process.kill()
    outcome = finish(process, tmp_path, read)
    last_seen = max(int(line.split()[-2].rstrip(")")) for line in read.splitlines() if "(Step" in line)
    from_files = report_command(tmp_path, str(outcome.folder), "--json")
    assert from_files.status == 0
    assert json.loads(from_files.stdout)["steps"] >= last_seen


# Sends itself a signal in one of the profiler's methods: once in place of its work, or before it, each time.
DURING_WORK = """
import os, signal
from training_profiler import *
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.pipeline import Pipeline
from training_profiler.runtime.session import Session
from training_profiler.sinks.console import Console

def limit(signum, frame):
    raise TimeoutError

def late(*arguments, original={moment}):
    if not {goes_on}:
        {moment} = original
    os.kill(os.getpid(), signal.{signal})
    return original(*arguments) if {goes_on} else None

signal.signal(signal.SIGUSR1, limit)
start_training_profiling(log_every=2)
profile_step()  # the opening line is printed
{moment} = late
seen = 0
for _ in range({steps}):
    try:
        with profile_section("forward_pass"): pass
        profile_step()
    except TimeoutError:
        seen += 1
print("limits:", seen)
"""
MOMENTS = ["Recorder.drain", "Session._report", "Console.print_now"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_timeout_during_profiler_work_is_raised_in_the_script(tmp_path: Path, moment: str) -> None:
    script = DURING_WORK.format(moment=moment, signal="SIGUSR1", goes_on=False, steps=8)
    outcome = run_without_torch(tmp_path, script)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "limits: 1\n" in outcome.stdout
    assert_summed_up_once(outcome, steps=9)


@pytest.mark.parametrize("moment", [*MOMENTS, "Pipeline._close"])
def test_sigterm_during_profiler_work_waits_for_its_end(tmp_path: Path, moment: str) -> None:
    outcome = run_without_torch(tmp_path, DURING_WORK.format(moment=moment, signal="SIGTERM", goes_on=True, steps=1))
    assert (outcome.status, outcome.stderr) == (-signal.SIGTERM, "")
    assert_summed_up_once(outcome, steps=2)


def test_ctrl_c_right_after_profiler_work_gives_one_summary(tmp_path: Path) -> None:
    script = """
        import sys
        from training_profiler import *
        from training_profiler.recording.recorder import Recorder

        def interrupting(*arguments, original=Recorder.thread_id):
            if sys._getframe(1).f_code.co_name == "_exclusively":
                raise KeyboardInterrupt
            return original(*arguments)

        start_training_profiling(log_every=2)
        Recorder.thread_id = interrupting
        for _ in range(2):
            with profile_section("forward_pass"): pass
            profile_step()
    """
    outcome = run_without_torch(tmp_path, script)
    assert outcome.status == -signal.SIGINT
    assert outcome.stderr.endswith("KeyboardInterrupt\n")
    assert_summed_up_once(outcome, steps=2)


def test_the_page_is_written_at_the_end_of_the_run_if_it_was_asked_for(tmp_path: Path) -> None:
    outcome = run_without_torch(tmp_path, THREE_STEPS, variables={"RECTIFIED_FLOW_PROFILE_HTML": "1"})
    page = (outcome.folder / "report.html").read_text()
    assert "<title>" in page
    assert "did not come to its end" not in page
    assert outcome.stdout.endswith(f"Profiler: page runs/{outcome.folder.name}/report.html\n")
