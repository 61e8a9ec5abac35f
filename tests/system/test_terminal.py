"""On a terminal, a status line stands between the reports, and never in a line of the program."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.support.terminal import shown
from tests.system.launching import execute_forked, through_run
from tests.system.scripts import TIMEOUT_S, environment

pytestmark = pytest.mark.programs
TRAINING = """
import sys, time, torch
import tests.chaos.programs.without_dynamo
from tqdm import tqdm
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.04)
for step in range(80):
    train()
    if step % 20 == 0:
        print("loss of step", step)
for step in tqdm(range(40), ascii=True, ncols=60):
    train()
for step in range(40):
    train()
    sys.stdout.write(f"\\rstep {step} of 40")
    sys.stdout.flush()
print()
"""
BEGIN = "Profiler: step "


def run_on_terminal(cwd: Path, *words: str, **variables: str) -> str:
    """Return what a program under ``run`` writes to its terminal."""
    (cwd / "train.py").write_text(TRAINING)
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))  # tqdm needs rows
    process = subprocess.Popen(
        through_run(*words, "train.py"),
        cwd=cwd,
        env=environment(None, **{"TERM": "xterm", "COLUMNS": "80", **variables}),
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    data = b""
    try:
        while part := os.read(outer, 65536):
            data += part
    except OSError:  # the end, where the last program has closed its side
        pass
    os.close(outer)
    assert process.wait(TIMEOUT_S) == 0
    return data.decode()


def test_status_line_is_rewritten_and_lines_of_the_program_stay(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    text = run_on_terminal(tmp_path)
    assert text.count(BEGIN) > 1
    assert "=== Profiling Report" not in text
    lines = shown(text)
    assert not any(BEGIN in line for line in lines)
    program = [line for line in lines[: lines.index("=== Final Profiling Summary (160 steps) ===")] if line]
    opening, *rest = [line for line in program if not line.startswith("loss of step 0")]
    assert opening.startswith("Profiler: on, run folder ")
    assert rest[:3] == [f"loss of step {step}" for step in (20, 40, 60)]
    assert rest[3].startswith("100%|")
    assert rest[4:] == ["step 39 of 40"]


@pytest.mark.parametrize(("words", "variables", "reports"), [(["--log-every", "50"], {}, 3), ([], {"TERM": "dumb"}, 0)])
def test_tables_where_they_were_asked_for_or_nothing(
    tmp_path: Path, words: list[str], variables: dict[str, str], reports: int
) -> None:
    text = run_on_terminal(tmp_path, *words, **variables)
    assert BEGIN not in text
    assert text.count("=== Profiling Report") == reports
    assert text.count("=== Final Profiling Summary (160 steps) ===") == 1


def test_a_short_run_has_no_reports_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    ended = execute_forked(tmp_path, "train.py")
    assert (ended.status, BEGIN in ended.stdout) == (0, False)
    assert "=== Profiling Report" not in ended.stdout  # none within 10 s, where the user did not ask for them
