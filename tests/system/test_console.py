"""A report is one write, and leaves progress bars and other users of the stream alone."""

import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.system.scripts import TIMEOUT_S, environment, run_without_torch, write_script

LOOP = """
from training_profiler import *
start_training_profiling(log_every=2)
with profile_epoch(1):
    for _ in range(4):
        with profile_section("forward_pass"): pass
        profile_step()
stop_training_profiling()
"""
TITLES = [
    "=== Profiling Report (Step 2) ===",
    "=== Profiling Report (Step 4) ===",
    "=== Epoch 1 Profiling Summary ===",
    "=== Final Profiling Summary (4 steps) ===",
]


OPENING = r"Profiler: on, run folder runs/\d{8}-\d{6}(-\d+)?\n"


def title_of(report: str) -> str:
    return report.splitlines()[1]


def test_report_is_one_system_call(tmp_path: Path) -> None:
    # This kind of socket keeps writes apart.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        command = [sys.executable, str(write_script(tmp_path, LOOP))]
        subprocess.run(
            command, cwd=tmp_path, env=environment("1"), stdout=theirs.fileno(), check=True, timeout=TIMEOUT_S
        )
        theirs.close()
        packets = list(iter(lambda: ours.recv(1 << 20).decode(), ""))
    opening, *reports = packets
    assert re.fullmatch(OPENING, opening)
    assert [title_of(report) for report in reports] == TITLES


def test_report_is_one_write_to_a_replaced_stdout(tmp_path: Path) -> None:
    script = """
import sys
class Tee:
    def __init__(self): self.writes = []
    def write(self, text): self.writes.append(text)
    def flush(self): pass
real, sys.stdout = sys.stdout, Tee()
"""
    rest = "\nprint([text.splitlines()[1] for text in sys.stdout.writes[1:]], sys.stdout.writes[0], file=real)"
    outcome = run_without_torch(tmp_path, script + LOOP + rest)
    assert re.fullmatch(re.escape(f"{TITLES} ") + OPENING + r"\n", outcome.stdout)


def test_report_keeps_its_place_in_the_scripts_output(tmp_path: Path) -> None:
    script = LOOP.replace("    for _", "    print('before', end='')\n    for _") + "print('after')\n"
    outcome = run_without_torch(tmp_path, script)
    assert re.match(OPENING + re.escape("before\n=== Profiling Report (Step 2) ==="), outcome.stdout)
    assert outcome.stdout.endswith("\nafter\n")


def test_progress_bar_survives_a_report(tmp_path: Path) -> None:
    script = """
        import sys
        from tqdm import tqdm
        from training_profiler import *
        from training_profiler.api import _process
        start_training_profiling(log_every=2)
        for i in tqdm(range(4), mininterval=0, file=sys.stderr):
            with profile_section("forward_pass"): pass
            profile_step()
            _process.session.run.terminal.thread.wait(240)  # else the bar may end before its reports
        stop_training_profiling()
    """
    command = [sys.executable, str(write_script(tmp_path, script))]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=tmp_path, env=environment("1"), timeout=TIMEOUT_S, check=True, **streams)
    text = done.stdout.decode()  # unchanged: text mode would turn carriage returns into new lines
    for title in TITLES[:2]:
        before, after = text.split(title)
        # The bar is cleared, and the report begins on a new line.
        assert re.search(r"\r *\r\n$", before)
        assert re.search(r"\r +\d+%\|", after)
    assert text.index("100%") < text.index(TITLES[3])
    assert not re.search(r"\|.*===", text)
