import os
import signal
import subprocess
import sys
import types

import pytest

from training_profiler.model.ranks import RankId
from training_profiler.ranks.identity import Rank, cannot_answer, this_process
from training_profiler.ranks.stores import group_mark


class Distributed(types.ModuleType):
    """Stands in for ``torch.distributed``, with or without a process group."""

    def __init__(self, rank=None, is_available=True):
        super().__init__("torch.distributed")
        self.rank = rank
        self.is_built_in = is_available

    def is_available(self):
        return self.is_built_in

    def is_initialized(self):
        assert self.is_built_in, "a torch without it does not have this name"
        return self.rank is not None

    def get_world_size(self):
        return 4

    def get_rank(self):
        assert self.rank is not None
        return self.rank


@pytest.fixture
def put_in_place(monkeypatch):
    """Replace torch.distributed; None for not imported."""

    def put(distributed):
        if distributed is None:
            monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "torch.distributed", distributed)

    return put


@pytest.mark.parametrize(("of_group", "is_primary"), [(0, True), (3, False)])
def test_a_process_group_overrides_the_launcher(put_in_place, of_group, is_primary):
    put_in_place(Distributed(of_group))
    assert Rank(RankId(1)).is_primary() is is_primary
    assert Rank(RankId(0)).is_primary() is is_primary


class Going(Distributed):
    """Its group is destroyed on another thread between two calls."""

    def get_rank(self):
        raise ValueError("Default process group has not been initialized")


@pytest.mark.parametrize("distributed", [types.ModuleType("torch.distributed"), Going(1)])
def test_a_module_in_transition_is_ignored(put_in_place, distributed):
    put_in_place(distributed)
    rank = Rank(RankId(0, 2))
    rank.detect_process_group()
    assert (rank.who, rank.has_group) == (RankId(0, 2), False)
    assert group_mark() == 0


HERE = this_process()
pytestmark = pytest.mark.skipif(not HERE, reason="needs /proc")


def as_seen_from_here(pid: int) -> str:
    return HERE.replace(str(os.getpid()), str(pid), 1)


def test_a_stopped_and_an_ended_process_cannot_answer():
    assert HERE.startswith(f"{os.getpid()}@")
    assert not cannot_answer(HERE)
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
