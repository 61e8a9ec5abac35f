"""Which calls are sync points, and which of them are kept."""

import threading

import pytest
import torch
import torch.distributed

from tests.support.one_rank import one_rank
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.ddp_statistics import SyncPoints
from training_profiler.instrumentation.patches import collectives
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.recorder import Recorder

distributed = torch.distributed


@pytest.fixture
def recorded():
    """The sync points of a process group of one rank."""
    patches, context = Patches(), PatchContext(Recorder(), lambda: None, lambda error: None)
    collectives.install(patches, context, torch)
    with one_rank():
        yield context.sync_points
    patches.undo()


def keys(points):
    return [key for key, _, _ in points.kept]


def test_blocking_collectives_are_sync_points_in_order(recorded):
    distributed.barrier()
    distributed.all_reduce(torch.ones(2))
    distributed.all_gather([torch.ones(2)], torch.ones(2), group=distributed.group.WORLD)
    distributed.all_gather_object([None], "words")
    distributed.monitored_barrier()
    assert keys(recorded) == ["all:0", "all:1", "all:2", "all:3", "all:4"]
    assert all(enter_ns <= leave_ns for _, enter_ns, leave_ns in recorded.kept)


def test_non_blocking_collectives_are_not_sync_points(recorded):
    some = distributed.new_group([0])
    before = keys(recorded)  # creating a group may synchronize
    distributed.broadcast(torch.ones(2), 0)
    distributed.all_reduce(torch.ones(0))
    distributed.all_reduce(torch.ones(2), group=some)
    distributed.all_reduce(torch.ones(2), distributed.ReduceOp.SUM, some)
    distributed.all_reduce(torch.ones(2), async_op=True).wait()
    distributed.all_reduce(torch.ones(2), distributed.ReduceOp.SUM, None, True).wait()
    assert keys(recorded) == before


def test_failed_collective_is_counted_but_not_kept(recorded):
    with pytest.raises(ValueError, match="different dtypes"):
        distributed.all_gather([torch.ones(2), torch.ones(2, dtype=torch.int64)], torch.ones(2))
    distributed.barrier()
    assert keys(recorded) == ["all:1"]


@pytest.mark.parametrize("arguments", [(), (None,), ("words",), ([],)])
def test_invalid_arguments_raise_the_error_of_torch(recorded, arguments):
    with pytest.raises((TypeError, ValueError, AttributeError)) as ours:
        distributed.all_reduce(*arguments)
    with pytest.raises(type(ours.value)) as torchs:
        distributed.all_reduce.__wrapped__(*arguments)
    assert str(ours.value) == str(torchs.value)
    assert keys(recorded) == []


def test_calls_of_other_threads_are_not_sync_points(recorded):
    distributed.barrier()
    other = threading.Thread(target=distributed.barrier)
    other.start()
    other.join()
    distributed.barrier()
    assert keys(recorded) == ["all:0", "all:1"]


def kept(count):
    """Return the numbers kept of so many sync points."""
    points = SyncPoints()
    for number in range(count):
        points.add("all", number, f"all:{number}", number, number + 1)
    return [enter_ns for _, enter_ns, _ in points.kept]


def test_first_16_and_at_most_16_spread_over_all_are_kept():
    assert kept(16) == list(range(16))
    assert kept(32) == [*range(16), *range(16, 32, 2)]
    assert kept(33) == [*range(16), *range(16, 33, 4)]
    assert kept(1000) == [*range(16), *range(64, 1000, 64)]


@pytest.mark.parametrize("count", [100, 5_000])
def test_rank_ahead_keeps_the_points_of_the_others(count):
    behind, ahead = set(kept(count)), set(kept(count * 2 - 1))
    assert len(ahead) <= 32
    assert {number for number in ahead if number < count} <= behind


def test_gaps_in_numbers_do_not_change_what_is_kept():
    points = SyncPoints()
    for number in (0, 15, 17, 18, 40, 1024):
        points.add("ddp", number, f"ddp0:{number}", 0, 1)
    assert keys(points) == ["ddp0:0", "ddp0:15", "ddp0:1024"]
