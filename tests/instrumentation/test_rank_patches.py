"""Patches of a manually instrumented training: undone exactly, and without importing torch."""

import subprocess
import sys

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.support.instrumented import changed_since, state_of_torch
from tests.support.one_rank import one_rank
from training_profiler.instrumentation.rank_patches import RankPatches
from training_profiler.recording.recorder import Recorder

# The end of a DDP module waits, with the GIL, for Gloo's thread. That may just drop the work of the last backward pass,
# with which torch keeps an object of Python, and so wait for the GIL: the test would never end.
KEPT = []


@pytest.fixture
def rank_patches(clock):
    before = state_of_torch()
    patches = RankPatches(Recorder(clock))
    patches.install()
    yield patches
    patches.uninstall()
    assert changed_since(before) == []


def test_ddp_modules_and_sync_points_are_recorded(rank_patches, clock):
    with one_rank():
        torch.distributed.barrier()
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        KEPT.append(model)
        for step in range(3):
            model(torch.ones(1)).sum().backward()
            rank_patches.context.gradient_sync.step_ended(step, clock())
    assert "all:0" in [key for key, _, _ in rank_patches.context.sync_points.kept]
    assert rank_patches.context.gradient_sync.drain().exchanges == 2
    assert rank_patches.notes() == []


def test_patches_are_installed_once(rank_patches):
    barrier = torch.distributed.barrier
    rank_patches.install()
    assert torch.distributed.barrier is barrier


def test_forked_child_has_no_patches_and_no_data(rank_patches):
    before, points = torch.distributed.barrier, rank_patches.context.sync_points
    rank_patches.after_fork_in_child()
    assert torch.distributed.barrier is not before
    assert rank_patches.context.sync_points is not points
    rank_patches.uninstall()


def test_unexpected_torch_is_noted(clock, monkeypatch):
    monkeypatch.delattr(torch.distributed.distributed_c10d, "destroy_process_group")
    before = state_of_torch()
    rank_patches = RankPatches(Recorder(clock))
    rank_patches.install()
    assert changed_since(before) == []
    assert "destroy_process_group" in rank_patches.notes()[0]


def test_automatic_instrumentation_replaces_rank_patches(clock, monkeypatch):
    class TorchFinder:
        def find_spec(self, name, path, target=None):
            return None

    monkeypatch.setattr(sys, "meta_path", [TorchFinder(), *sys.meta_path])
    before = state_of_torch()
    rank_patches = RankPatches(Recorder(clock))
    rank_patches.install()
    assert changed_since(before) == ["excepthook"]
    rank_patches.uninstall()
    assert changed_since(before) == []


SCRIPT = """
import sys
from training_profiler.instrumentation.rank_patches import RankPatches
from training_profiler.recording.recorder import Recorder
finders = list(sys.meta_path)
rank_patches = RankPatches(Recorder(lambda: 0))
rank_patches.install()
assert "torch" not in sys.modules
if {removes}:
    rank_patches.uninstall()
    assert sys.meta_path == finders
import torch
print(torch.distributed.barrier.__code__.co_filename.endswith("sync_points.py"))
rank_patches.uninstall()
assert [one for one in sys.meta_path if one in finders] == finders
print(torch.distributed.barrier.__code__.co_filename.endswith("sync_points.py"))
"""


@pytest.mark.parametrize(("removes", "is_in_place"), [(False, "True"), (True, "False")])
def test_patches_wait_for_the_import_of_torch(removes, is_in_place):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(removes=removes)], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split() == [is_in_place, "False"], done.stderr
