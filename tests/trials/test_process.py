"""The processes here speak to the session as a training does, without torch."""

import os
import signal
import sys
import textwrap
import time
from types import SimpleNamespace

import psutil
import pytest

from training_profiler.sampling.host import CpuReading
from training_profiler.trials.child import ChildPlan
from training_profiler.trials.process import (
    EndedError,
    InapplicableError,
    ReadsStdinError,
    TrialError,
    TrialProcess,
)
from training_profiler.trials.statistics import CpuUse

TIMEOUT_S = 240
TALK = """
import json, os, socket, subprocess, sys, time
plan = json.load(open(sys.argv[1]))
def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(plan["socket"])
    return connection
def send(connection, **message):
    connection.sendall(json.dumps(message).encode() + b"\\n")
def block(connection, step_s=None, warmup_s=None, rank=0, world_size=1):
    send(connection, event="block", step_s=step_s, warmup_s=warmup_s, losses=[["0x1p+0"]], seed=7, rank=rank,
         world_size=world_size, samples=8 + rank, prints=[rank], memory_bytes=1000 + rank,
         compiled=[2.0 + rank, 3 - rank])
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def start(code):
        process = TrialProcess(tmp_path, ChildPlan("", "no table", [], 3))
        started.append(process)
        script = TALK + textwrap.dedent(code)
        process.start([sys.executable, "-c", script, str(process.plan_path)], dict(os.environ))
        return process

    yield start
    for process in started:
        process.close()


def states(process):
    return {each.status() for each in process._tree()}


def test_a_training_runs_its_blocks_and_is_stopped_between_them_with_its_children(start):
    process = start(
        """
        worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        connection = connect()
        block(connection, warmup_s=2.5)
        for line in connection.makefile():
            block(connection, step_s=float(json.loads(line)["steps"]))
        """
    )
    warmup = process.wait_for_block(TIMEOUT_S)
    assert (warmup.step_s, warmup.warmup_s, warmup.losses, warmup.seed) == (None, 2.5, (("0x1p+0",),), 7)
    assert len(process._tree()) == 2
    assert wait_until(lambda: states(process) == {psutil.STATUS_STOPPED})
    ran = process.run_block(11, TIMEOUT_S)
    assert ran.step_s == 11.0
    assert 0 < ran.cpu.wall_s < TIMEOUT_S
    assert wait_until(lambda: states(process) == {psutil.STATUS_STOPPED})
    tree = process._tree()
    process.close()
    assert wait_until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in tree))


def test_what_others_took_is_what_was_busy_beside_the_own_processes():
    before = CpuReading(100.0, 50.0, 7.0, {1: 5_000_000_000})
    after = CpuReading(102.0, 53.5, 9.0, {1: 5_500_000_000, 2: 250_000_000})  # a thread has begun since
    assert before.until(after) == (2.0, 2.0, 1.5, 0.5)
    assert before.until(CpuReading(102.0, 50.5, 8.0, {})) == (2.0, 1.0, 0.0, 0.0)  # the clocks are coarse
    assert CpuUse(2.0, 2.0, 1.5, 0.5) + CpuUse(1.0, 1.0, 0.5, 0.25) == CpuUse(3.0, 3.0, 2.0, 0.75)


def test_a_training_that_stops_its_children_lets_them_go_on_itself(start):
    process = start(
        """
        worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        connection, lines = connect(), None
        send(connection, event="block", step_s=None, warmup_s=1.0, losses=[], seed=7, rank=0, world_size=1, holds=True,
             samples=8, prints=[], memory_bytes=1, compiled=[0.0, 0])
        connection.makefile().readline()
        block(connection, step_s=1.0)
        time.sleep(1000)
        """
    )
    process.wait_for_block(TIMEOUT_S)
    assert wait_until(lambda: states(process) == {psutil.STATUS_STOPPED})
    worker = process._tree()[0]
    process.run_block(2, TIMEOUT_S)
    assert worker.status() == psutil.STATUS_STOPPED


def wait_until(is_so):
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return is_so()


def test_the_slowest_rank_decides_and_a_step_has_the_losses_of_all(start):
    process = start(
        """
        ranks = [connect(), connect()]
        message = {"event": "block", "warmup_s": None, "seed": 7, "world_size": 2, "samples": 8, "prints": [5]}
        message["compiled"] = [0.5, 1]
        send(ranks[1], **message, step_s=0.3, rank=1, memory_bytes=2, losses=[["c"], []])
        send(ranks[0], **message, step_s=0.1, rank=0, memory_bytes=3, losses=[["a", "b"], ["d"]])
        time.sleep(1000)
        """
    )
    block = process.wait_for_block(TIMEOUT_S)
    assert (block.step_s, block.losses) == (0.3, (("a", "b", "c"), ("d",)))
    process.close()
    assert process.poll() == -signal.SIGKILL  # although it was stopped


FIRST_RANK_TO_FAIL = """
print("[rank1]: ValueError: no such shard")
print("[rank0]: RuntimeError: Connection closed by peer")
print("Traceback (most recent call last):")
print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
print("Failures:\\n  rank      : 0 (local_rank: 0)\\nRoot Cause (first observed failure):")
print("[0]:\\n  time      : now\\n  rank      : 1 (local_rank: 1)")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (FIRST_RANK_TO_FAIL, TrialError, "^rank 1: ValueError: no such shard$"),
        ("print('a.b.DoesNotApplyError: no convolutions'); sys.exit(1)", InapplicableError, "^no convolutions$"),
        ("raise ValueError('no such file')", TrialError, "ValueError: no such file"),
        ("raise RuntimeError('CUDA error: out of memory')", TrialError, "out of memory"),
        ("raise OSError('[Errno 98] Address already in use')", TrialError, "in use; trainings run .* port 0"),
        ("open('/dev/tty\\0'[:8] + '/')", TrialError, "/dev/tty/'; a trial has no terminal"),
        ("print('bye'); sys.exit(3)", TrialError, "exit status 3: bye"),
        ("os.kill(os.getpid(), 9)", TrialError, "killed, perhaps for want of memory"),
        ("", EndedError, "it came to its end"),
        ("send(connect(), event='stdin'); time.sleep(1000)", ReadsStdinError, "reads standard input"),
        ("send(connect(), event='failed', reason='ValueError: x'); time.sleep(1000)", TrialError, "ValueError: x"),
    ],
)
def test_the_end_of_a_training_has_a_reason(start, code, kind, reason):
    with pytest.raises(kind, match=reason):
        start(code).wait_for_block(TIMEOUT_S)


def test_a_training_that_takes_too_long_is_given_up(start):
    with pytest.raises(TrialError, match="no end after 0 s"):
        start("time.sleep(1000)").wait_for_block(0.05)


def test_a_training_that_computes_is_waited_for_longer(start, monkeypatch):
    used_s = [1.0, 2.0, 2.0]
    monkeypatch.setattr(CpuReading, "of", lambda tree: SimpleNamespace(own_s=used_s.pop(0)))
    with pytest.raises(TrialError, match="no end after 0 s"):
        start("time.sleep(1000)").wait_for_block(0.05)
    assert not used_s
