"""Standard output is not read: the training goes on, and its end waits for a bounded time."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.system.scripts import TIMEOUT_S, environment, wait_until

pytestmark = pytest.mark.chaos

PROGRAM = Path(__file__).parent / "programs" / "silent_training.py"
STEPS = 100  # their reports are more than a pipe holds
PIPE_BYTES = 65536
TITLE = re.compile(r"^=== (?:Profiling Report \(Step (\d+)\)|Final Profiling Summary \(\d+ steps\)) ===$", re.MULTILINE)


def start(folder: Path, stdout: int, program: Path = PROGRAM, *more: str) -> "subprocess.Popen[bytes]":
    """Start the training with a descriptor as its standard output."""
    command = [sys.executable, str(program), str(STEPS), str(folder / "result"), *more]
    return subprocess.Popen(
        command, cwd=folder, env=environment("1"), stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE
    )


def wait(process: "subprocess.Popen[bytes]") -> str:
    """Return what the program wrote to stderr, after a successful end."""
    stderr = process.communicate(timeout=TIMEOUT_S)[1].decode()
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert "Fatal" not in stderr
    return stderr


def report_of(folder: Path) -> dict[str, object]:
    (run,) = (folder / "runs").glob("2*")
    return dict(json.loads((run / "report.json").read_text()))


@pytest.mark.parametrize("is_full", [False, True])
def test_output_that_is_not_read(tmp_path: Path, is_full: bool) -> None:
    reads, writes = os.pipe()
    if is_full:
        os.set_blocking(writes, False)
        os.write(writes, b"x" * PIPE_BYTES)
        os.set_blocking(writes, True)
    stderr = wait(start(tmp_path, writes))
    assert (tmp_path / "result").read_text() == "trained"
    assert f"{STEPS}/{STEPS}" in stderr  # the progress bar went on
    report = report_of(tmp_path)
    assert report["steps"] == STEPS
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        printed = pipe.read()
    if is_full:
        assert printed == b"x" * PIPE_BYTES
    else:
        shown = [int(step) for step in TITLE.findall(printed.decode()) if step]
        assert shown == list(range(1, len(shown) + 1))  # in order
        assert 0 < len(printed) <= PIPE_BYTES // 2  # the program finds room for its own text


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_terminal_that_is_stopped_or_not_read(tmp_path: Path, is_stopped: bool) -> None:
    screen, terminal = os.openpty()
    if is_stopped:
        termios.tcflow(terminal, termios.TCOOFF)  # as Ctrl-S does
    stderr = wait(start(tmp_path, terminal))
    assert f"{STEPS}/{STEPS}" in stderr
    assert report_of(tmp_path)["steps"] == STEPS
    os.close(screen)
    os.close(terminal)


def test_a_reader_that_was_stopped_gets_all_texts_whole_and_in_order(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 8192)
    with (tmp_path / "printed").open("wb") as file:
        reader = subprocess.Popen(["cat"], stdin=reads, stdout=file)
    os.close(reads)
    reader.send_signal(signal.SIGSTOP)
    process = start(tmp_path, writes, PROGRAM, str(tmp_path / "go on"))
    os.close(writes)
    wait_until(lambda: (tmp_path / "result").exists())  # all steps were made without the reader
    reader.send_signal(signal.SIGCONT)
    wait_until(lambda: f"(Step {STEPS})" in (tmp_path / "printed").read_text())
    (tmp_path / "go on").touch()
    wait(process)
    reader.wait(timeout=TIMEOUT_S)
    printed = (tmp_path / "printed").read_text()
    steps = [int(step) for step in TITLE.findall(printed) if step]
    assert steps == list(range(1, STEPS + 1))
    assert printed.count("Detailed Breakdown:") == STEPS + 1


def test_the_program_flushes_its_own_text_at_its_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text() + "print('the loss is nan')\n")
    reads, writes = os.pipe()
    wait(start(tmp_path, writes, program))
    os.close(writes)
    with os.fdopen(reads) as pipe:
        assert pipe.read().endswith("the loss is nan\n")


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    head = subprocess.Popen(["head", "-1"], stdin=reads, stdout=subprocess.DEVNULL)
    os.close(reads)
    process = start(tmp_path, writes)
    os.close(writes)
    stderr = wait(process)
    head.wait(timeout=TIMEOUT_S)
    assert "Profiler: console switched off, the training goes on: BrokenPipeError" in stderr
    assert report_of(tmp_path)["steps"] == STEPS
