import os
import signal
import subprocess
import sys

import pytest

from training_profiler.ranks.identity import cannot_answer, this_process

HERE = this_process()
pytestmark = pytest.mark.skipif(not HERE, reason="needs /proc")


def as_seen_from_here(pid: int) -> str:
    return HERE.replace(str(os.getpid()), str(pid), 1)


def test_this_process_can_answer():
    assert HERE.startswith(f"{os.getpid()}@")
    assert not cannot_answer(HERE)


def test_a_stopped_and_an_ended_process_cannot_answer():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = as_seen_from_here(child.pid)
        assert not cannot_answer(process)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert cannot_answer(process)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert cannot_answer(process)  # a zombie
        child.wait()
        assert cannot_answer(process)


@pytest.mark.parametrize(
    "process",
    ["", "1", "x@y", f"{os.getpid()}@another machine", "99999999999999@x", "1@" + "x" * 999],
    ids=["nothing", "a number", "a word", "another machine", "no such process", "a long name"],
)
def test_nothing_is_known_of_processes_elsewhere(process):
    assert not cannot_answer(process)


def test_nothing_is_known_without_proc(tmp_path):
    assert this_process(tmp_path) == ""
    assert not cannot_answer(HERE, tmp_path)
