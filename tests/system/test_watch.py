"""A training is watched from another process on a real terminal, until it ends."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.system.launching import through_run
from tests.system.scripts import TIMEOUT_S, environment

pytestmark = pytest.mark.programs
TRAINING = """
import time, torch
import tests.chaos.programs.without_dynamo
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
from pathlib import Path
step = 0
while not Path("stop").exists() or step < 40:
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    step += 1
Path("steps").write_text(str(step))
"""


ENTERS, LEAVES = b"\x1b[?1049h", b"\x1b[?1049l"  # the other screen of a terminal


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Terminal:
    """A terminal that is read all the time, as a real one is; a program that draws would wait otherwise."""

    def __init__(self, rows: int, columns: int) -> None:
        self._outer, self.inner = pty.openpty()
        self.resize(rows, columns)
        self._seen = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Close the terminal, which no program may have open any more."""
        os.close(self.inner)
        self._reader.join(TIMEOUT_S)
        os.close(self._outer)

    def _read(self) -> None:
        with suppress(OSError):  # its end
            while data := os.read(self._outer, 65536):
                self._seen += data

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, word: bytes) -> bytes:
        """Wait for ``word``, and return and forget all that came up to it."""
        end_s = time.monotonic() + TIMEOUT_S
        while word not in self._seen:
            assert time.monotonic() < end_s, self._seen[-2000:]
            time.sleep(0.02)
        before, _, self._seen = self._seen.partition(word)
        return before + word


def test_a_training_is_watched_on_a_terminal_until_it_ends(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "training_profiler", "watch", "--interval", "0.3"]
    variables = environment(None, TERM="xterm", NO_COLOR="1", PYTHONIOENCODING="utf-8")
    terminal = Terminal(24, 80)
    with ExitStack() as started:
        started.callback(terminal.close)

        def start(words: list[str], output: int = terminal.inner) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(words, cwd=tmp_path, env=variables, stdout=output, stderr=output)
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        training = start(through_run("--flush-s", "0.2", "--quiet", "train.py"), subprocess.DEVNULL)
        watcher = start(command)  # before the run has a folder
        assert ENTERS in terminal.until(b"last steps:")
        (folder,) = (path for path in (tmp_path / "runs").glob("2*") if path.is_dir())
        before = files_of(folder)
        watcher.send_signal(signal.SIGINT)
        assert b"Traceback" not in terminal.until(LEAVES)
        assert watcher.wait(TIMEOUT_S) == 130
        assert (training.poll(), files_of(folder)) == (None, before)

        watcher = start(command)
        terminal.until(b"last steps:")
        terminal.resize(30, 100)
        terminal.until(b" " * 100)  # an empty line of the picture is as wide as the terminal
        (tmp_path / "stop").touch()
        assert b"\x1b[3" not in terminal.until(LEAVES)  # no color
        assert (watcher.wait(TIMEOUT_S), training.wait(TIMEOUT_S)) == (0, 0)
        steps = (tmp_path / "steps").read_text()
        assert f"train.py - {steps} steps".encode() in terminal.until(b"the run has ended")
