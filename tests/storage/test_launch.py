import os
import socket
import time

import psutil
import pytest

from training_profiler.settings.settings import Launch
from training_profiler.storage.launch import (
    LaunchId,
    is_running,
    is_same_launch,
    is_surely_another,
    launch_from_data,
    this_launch,
)

HERE = LaunchId("a", parent_pid=7, parent_start_s=100.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (LaunchId("a", torchrun="x"), LaunchId("b", torchrun="x"), True),
        (LaunchId("a", torchrun="x"), LaunchId("a", torchrun="y"), False),
        (HERE, HERE._replace(parent_start_s=101.5), True),
        (HERE, HERE._replace(parent_start_s=103.0), False),  # another process has that id now
        (HERE, HERE._replace(parent_pid=8), False),
        (HERE, HERE._replace(host="b"), None),
        (HERE._replace(job="1.0"), HERE._replace(host="b", job="1.0"), True),
        (HERE._replace(job="1.0"), HERE._replace(host="b", job="1.1"), False),
        (HERE._replace(job="1.0"), HERE._replace(parent_pid=8, job="1.0"), False),  # two launches in one job
        (LaunchId("a"), LaunchId("a"), None),
        (LaunchId(), LaunchId(), None),
    ],
)
def test_run_id_parent_or_job_identify_a_launch(one, other, same):
    assert is_same_launch(one, other) is same
    assert is_same_launch(other, one) is same


def test_different_parents_do_not_prove_another_launch():
    assert not is_surely_another(HERE, HERE._replace(parent_pid=8))
    assert is_surely_another(LaunchId(torchrun="x"), LaunchId(torchrun="y"))
    assert is_surely_another(LaunchId(job="1.0"), LaunchId(job="2.0"))
    assert not is_surely_another(LaunchId(torchrun="x"), LaunchId())


def test_a_launch_survives_json():
    launch = LaunchId("a", "x", "1.0", 7, 100.5)
    assert launch_from_data(launch._asdict()) == launch


@pytest.mark.parametrize("data", [None, [], "x", 3, {}, {"host": 3, "torchrun": [], "parent_pid": "7"}])
def test_garbage_gives_an_unknown_launch(data):
    assert launch_from_data(data) == LaunchId()


def test_this_process_has_its_parent_s_launch():
    launch = this_launch(Launch(run_id="x", job="1.0"))
    assert (launch.host, launch.torchrun, launch.job) == (socket.gethostname(), "x", "1.0")
    assert launch.parent_pid == os.getppid()
    assert launch.parent_start_s == psutil.Process(os.getppid()).create_time()


def test_a_process_still_runs_if_its_id_existed_then():
    host = socket.gethostname()
    assert is_running(host, os.getpid(), time.time()) is True
    assert is_running(host, os.getpid(), 1000.0) is False  # this one is younger
    assert is_running(host, 2**22 + 1, time.time()) is False  # Linux has no such id
    assert is_running("elsewhere", os.getpid(), time.time()) is None
    assert is_running(host, "7", time.time()) is None
    assert is_running(None, None, 0.0) is None
