"""Seams of a training that writes its sections itself: few, exactly undone, and torch is not imported for them."""

import subprocess
import sys

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.support.instrumented import changed_since, state_of_torch
from tests.support.one_rank import one_rank
from training_profiler.instrumentation.rank_patches import RankPatches


@pytest.fixture
def seams(clock):
    before = state_of_torch()
    one = RankPatches(clock)
    one.install()
    yield one
    one.uninstall()
    assert changed_since(before) == []


def test_modules_and_meetings_are_seen(seams, clock):
    with one_rank():
        torch.distributed.barrier()
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        for step in range(3):
            model(torch.ones(1)).sum().backward()
            seams.exchange.step_ended(step, clock())
    assert "all:0" in [key for key, _, _ in seams.meetings.seen]
    assert seams.exchange.take().exchanges == 2
    assert seams.notes() == []


def test_they_are_put_in_place_once(seams):
    barrier = torch.distributed.barrier
    seams.install()
    assert torch.distributed.barrier is barrier


def test_in_a_forked_child_they_are_out_and_nothing_was_seen(seams):
    before, meetings = torch.distributed.barrier, seams.meetings
    seams.in_child()
    assert torch.distributed.barrier is not before
    assert seams.meetings is not meetings
    seams.uninstall()


def test_a_torch_that_is_different_leaves_them_out_and_says_so(clock, monkeypatch):
    monkeypatch.delattr(torch.distributed.distributed_c10d, "destroy_process_group")
    before = state_of_torch()
    seams = RankPatches(clock)
    seams.install()
    assert changed_since(before) == []
    assert "destroy_process_group" in seams.notes()[0]


def test_where_seams_for_all_are_to_come_these_stay_out(clock, monkeypatch):
    class TorchFinder:
        def find_spec(self, name, path, target=None):
            return None

    monkeypatch.setattr(sys, "meta_path", [TorchFinder(), *sys.meta_path])
    before = state_of_torch()
    RankPatches(clock).install()
    assert changed_since(before) == []


SCRIPT = """
import sys
from training_profiler.instrumentation.rank_patches import RankPatches
finders = list(sys.meta_path)
seams = RankPatches(lambda: 0)
seams.install()
assert "torch" not in sys.modules
if {removes}:
    seams.uninstall()
    assert sys.meta_path == finders
import torch
print(torch.distributed.barrier.__code__.co_filename.endswith("sync_points.py"))
seams.uninstall()
assert [one for one in sys.meta_path if one in finders] == finders
print(torch.distributed.barrier.__code__.co_filename.endswith("sync_points.py"))
"""


@pytest.mark.parametrize(("removes", "is_in_place"), [(False, "True"), (True, "False")])
def test_they_wait_for_the_program_to_import_torch(removes, is_in_place):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(removes=removes)], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split() == [is_in_place, "False"], done.stderr
