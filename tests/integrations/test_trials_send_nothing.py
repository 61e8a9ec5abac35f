"""A trial of a program that logs to trackers sends nothing and leaves no file, whatever the program asks for."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trials.snapshots import snapshot
from training_profiler.trials.isolated_program import GUARDED, NAMESPACES
from training_profiler.trials.isolation import IsolationError, prepare

pytestmark = pytest.mark.integrations
PROGRAM = Path(__file__).parents[1] / "trials" / "programs" / "trackers.py"


@pytest.mark.parametrize("way", [NAMESPACES, GUARDED])
def test_trackers_send_nothing_and_leave_no_file(way: str, tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))  # connections wait in its queue
    server.setblocking(False)
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    for folder in ("home", "work"):
        (tmp_path / "user" / folder).mkdir(parents=True)
    before = snapshot(tmp_path / "user")
    try:
        isolation = prepare(tmp_path / "scratch", script=PROGRAM, ways=[way])
    except IsolationError:
        pytest.skip(f"this machine refuses {way}")

    done = subprocess.run(
        isolation.command([sys.executable, str(PROGRAM), url]),
        env=isolation.environ({**os.environ, "HOME": str(tmp_path / "user/home"), "OMP_NUM_THREADS": "1"}),
        cwd=tmp_path / "user/work",
        capture_output=True,
        text=True,
        timeout=280,
    )

    left = isolation.finish()
    assert done.returncode == 0, done.stderr
    with server, pytest.raises(BlockingIOError):
        server.accept()
    assert left == ()
    assert snapshot(tmp_path / "user") == before
    assert "Kept offline: W&B, MLflow." in isolation.promise.replace("\n", " ")
