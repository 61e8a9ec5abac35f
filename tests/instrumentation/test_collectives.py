"""Collectives of real torch: each is one span of ``synchronization``, synchronous or not."""

import sys

import pytest
import torch
import torch.distributed as distributed
from torch import nn

from tests.support.instrumented import FUNCTIONAL
from tests.support.one_rank import one_rank
from training_profiler.instrumentation.patches.collectives import restore_dynamo_table
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.instrumentation import Instrumentation

ONES = torch.ones(2)


@pytest.fixture
def group(instrumented):
    with one_rank():
        instrumented.context.current_detector()
        yield instrumented


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_nested_collectives_count_once(group):
    distributed.all_gather_object([None], "words")
    objects = [None]
    distributed.broadcast_object_list(objects, 0)
    for name in ("all_gather_into_tensor", "all_gather_single"):
        if hasattr(distributed, name):
            getattr(distributed, name)(torch.empty(2), ONES)
    distributed.monitored_barrier()
    assert group.counts() == {"synchronization": 4 + hasattr(distributed, "all_gather_single")}


@pytest.mark.parametrize("waits", [0, 2])
@pytest.mark.parametrize("is_by_place", [True, False])
def test_async_collective_counts_where_it_is_waited_for(group, is_by_place, waits):
    arguments = (distributed.ReduceOp.SUM, None, True) if is_by_place else ()
    keywords = {} if is_by_place else {"async_op": True}
    works = [distributed.all_reduce(ONES.clone(), *arguments, **keywords) for _ in range(3)]
    for work in works[:waits]:
        work.wait()
    assert group.counts() == ({"synchronization": waits} if waits else {})
    assert group.run.totals().sections.self_ns[group.run.names.id_of("synchronization")] > 0  # also of starting one


def test_functional_collective_counts_where_its_result_is_used(group):
    result = FUNCTIONAL.all_reduce(ONES, "sum", distributed.group.WORLD)
    assert torch.equal(result + 1, torch.tensor([2.0, 2.0]))
    assert group.counts() == {"synchronization": 1}


def test_failing_collective_raises_and_ends_its_span(group):
    with pytest.raises(ValueError, match="scatter_list"):
        distributed.scatter(ONES.clone(), None, src=0)
    counts = group.counts()
    assert counts == {"synchronization": 1}
    assert group.run.totals().unended == 0


def test_collective_in_backward_pass_counts(group):
    model = nn.Linear(2, 1)
    model.weight.register_hook(lambda gradient: distributed.all_reduce(gradient) or gradient)
    model(ONES).sum().backward()
    assert group.counts() == {"forward_pass": 1, "backward_pass": 1, "synchronization": 1}
    edges = {
        (group.run.names.names[parent], group.run.names.names[id])
        for parent, id in group.run.accumulator.totals.sections.parents
    }
    assert ("backward_pass", "synchronization") in edges


def test_buffers_that_a_rank_sends_count_in_the_forward_pass(group):
    model = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(2))
    model(torch.ones(2, 2)).sum().backward()
    assert group.counts() == {"forward_pass": 1, "backward_pass": 1, "synchronization": 1}


def test_dynamo_table_filled_meanwhile_names_torch_functions():
    """Otherwise dynamo would not recognize the functions after the patches are removed."""
    before = distributed.all_reduce
    instrumentation = Instrumentation(Recorder(), lambda: None)
    instrumentation.install(torch)
    ours = distributed.all_reduce
    module = type(sys)("functional")
    module.legacy_allreduce, module.unhashable = ours, []
    module.traceable_collective_remaps = {ours: "in place", len: "length"}
    restore_dynamo_table(module, {ours: before})
    instrumentation.uninstall()
    assert distributed.all_reduce is before is not ours
    assert module.legacy_allreduce is before
    assert module.traceable_collective_remaps == {before: "in place", len: "length"}


@pytest.mark.parametrize("name", ["all_reduce", "isend", "Work"])
def test_missing_collective_is_skipped(monkeypatch, name):
    monkeypatch.delattr(distributed.distributed_c10d, name)
    instrumentation = Instrumentation(Recorder(), lambda: None)
    barrier = distributed.barrier
    instrumentation.install(torch)
    is_replaced = distributed.barrier is not barrier
    instrumentation.uninstall()
    assert instrumentation.missing == {}
    assert is_replaced
