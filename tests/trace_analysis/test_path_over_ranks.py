"""The critical path over ranks, against simulated jobs in which the change was really made."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_ranks import COLLECTIVE, KERNEL, Job, Rank, simulated_job
from tests.support.traces import QUICK
from training_profiler.trace_analysis.critical_path import TimeChange, changes_for, critical_path, outcome
from training_profiler.trace_analysis.path_graph import Graph
from training_profiler.trace_analysis.path_over_ranks import joined_graph
from training_profiler.trace_analysis.trace import analyse

US = 1000
TOLERANCE = 0.01
LATE = Job([Rank(), Rank(), Rank(kernel_us=500), Rank()])
NOTHING = TimeChange("nothing")
RANKS = st.lists(
    st.builds(
        Rank,
        kernel_us=st.sampled_from([40, 200, 600]),
        backward_us=st.sampled_from([60, 300]),
        host_us=st.sampled_from([8, 60, 160]),
        loader_us=st.sampled_from([0, 0, 1500]),
        slow_steps=st.sampled_from([(), (0,), (1,)]),
        clock_us=st.sampled_from([0, 70_000]),
    ),
    min_size=2,
    max_size=4,
)


def traces_of(job, tmp_path):
    traces, end_us = simulated_job(job)
    paths = (trace.write(tmp_path, f"rank{rank}.pt.trace.json") for rank, trace in enumerate(traces))
    return [analyse(path) for path in paths], end_us * US


def joined(job, tmp_path):
    traces, end_ns = traces_of(job, tmp_path)
    graph = joined_graph(
        {trace.rank: trace.graph for trace in traces}, {trace.rank: trace.collective_runs for trace in traces}
    )
    assert isinstance(graph, Graph), graph
    return graph, end_ns


def changed(job, rank, **changes):
    return replace(job, ranks=[replace(of, **changes) if i == rank else of for i, of in enumerate(job.ranks)])


def truth_ns(job):
    return simulated_job(job)[1] * US


def predicted(job, change, tmp_path):
    return outcome(joined(job, tmp_path)[0], change)


def forward_of(rank):
    return TimeChange("", "", 0.5, "", 0.5, "kernel", phase="forward", rank=rank)


@pytest.mark.parametrize("with_groups", [True, False])
@pytest.mark.parametrize("clock_us", [0, -30_000, 4_000_000])
def test_the_path_leads_through_the_rank_that_arrives_last(with_groups, clock_us, tmp_path):
    job = changed(replace(LATE, with_groups=with_groups), 2, clock_us=clock_us)
    graph, end_ns = joined(job, tmp_path)
    path = critical_path(graph)
    assert path.wall_ns == pytest.approx(end_ns, rel=TOLERANCE)
    assert sum(link.ns for link in path.links) == path.wall_ns
    assert path.ranks_ns[2] > 0.9 * path.wall_ns
    late = next(link for link in path.links if link.name == KERNEL)
    assert (late.rank, late.kind, late.ns) == (2, "kernel", 3 * 5 * 500 * US)
    assert path.kinds_ns["communication"] == 3 * 100 * US  # without the waiting


def test_the_path_jumps_from_rank_to_rank_where_another_is_late_in_each_step(tmp_path):
    job = Job([Rank(slow_steps=(0,)), Rank(slow_steps=(1,)), Rank(slow_steps=(2,))])
    path = critical_path(joined(job, tmp_path)[0])
    assert {rank: round(ns / path.wall_ns, 1) for rank, ns in path.ranks_ns.items()} == {0: 0.3, 1: 0.3, 2: 0.3}
    assert {(jump.name, jump.waited_for) for jump in path.jumps} >= {(COLLECTIVE, 0), (COLLECTIVE, 1)}


def test_a_late_rank_delays_ranks_that_it_never_meets(tmp_path):
    """Rank 0 holds up 1 after the forward pass, and 1 holds up all in the end."""
    ranks = [Rank(kernel_us=900, backward_us=10), Rank(backward_us=900), Rank()]
    path = critical_path(joined(Job(ranks, groups=[(0, 1)], steps=1), tmp_path)[0])
    assert {(jump.waiting, jump.waited_for) for jump in path.jumps} >= {(1, 0)}
    names = {(link.rank, link.name): link.ns for link in path.links if link.kind == "kernel"}
    assert names[0, KERNEL] == 5 * 900 * US
    assert path.wall_ns == pytest.approx(truth_ns(Job(ranks, groups=[(0, 1)], steps=1)), rel=TOLERANCE)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_faster_forward_pass_of_one_rank(rank, tmp_path):
    of = LATE.ranks[rank]
    truth = truth_ns(changed(LATE, rank, kernel_us=of.kernel_us / 2, host_us=of.host_us))
    assert predicted(LATE, forward_of(rank), tmp_path) == pytest.approx(truth, rel=TOLERANCE)


def test_perfect_balance(tmp_path):
    mean = sum(of.kernel_us for of in LATE.ranks) / len(LATE.ranks)
    truth = truth_ns(replace(LATE, ranks=[replace(of, kernel_us=mean) for of in LATE.ranks]))
    assert predicted(LATE, TimeChange("", is_balanced=True), tmp_path) == pytest.approx(truth, rel=TOLERANCE)
    by_turns = Job([Rank(slow_steps=(0,)), Rank(slow_steps=(1,)), Rank(slow_steps=(2,))])
    truth = truth_ns(Job([Rank(kernel_us=(200 * 5) / 3)] * 3))
    assert predicted(by_turns, TimeChange("", is_balanced=True), tmp_path) == pytest.approx(truth, rel=TOLERANCE)


def test_data_loading_of_the_late_rank(tmp_path):
    job = changed(Job([Rank()] * 3), 1, loader_us=4000)
    found = predicted(job, TimeChange("", host_saved=1.0, host_kind="data loading", rank=1), tmp_path)
    assert found == pytest.approx(truth_ns(Job([Rank()] * 3)), rel=TOLERANCE)


@QUICK
@given(RANKS, st.sampled_from([(), ((0, 1),)]), st.booleans())
def test_any_job(tmp_path, ranks, groups, with_groups):
    job = Job(ranks, steps=2, groups=groups, with_groups=with_groups or bool(groups))
    graph, end_ns = joined(job, tmp_path)
    path = critical_path(graph)
    assert path.wall_ns == pytest.approx(end_ns, rel=TOLERANCE, abs=10 * US)
    assert sum(link.ns for link in path.links) == path.wall_ns
    assert outcome(graph, NOTHING) == path.wall_ns
    assert outcome(graph, TimeChange("", is_balanced=True)) <= path.wall_ns
    assert outcome(graph, TimeChange("", device_saved=1.0, device_kind="communication")) == pytest.approx(
        truth_ns(replace(job, transfer_us=0)), rel=TOLERANCE, abs=10 * US
    )
    for change in changes_for(graph, path):
        assert outcome(graph, change) <= path.wall_ns


def test_changes_are_offered_for_the_ranks_of_the_path(tmp_path):
    graph, _ = joined(changed(LATE, 2, loader_us=500), tmp_path)
    offered = [change.name or change.what for change in changes_for(graph, critical_path(graph))]
    of_late = {"forward of rank 2", "backward of rank 2", "data loading of rank 2 takes no time"}
    assert of_late | {"the ranks are in perfect balance"} <= {*offered}
    assert "forward of rank 0" not in offered
    assert len(offered) == len(set(offered))


def why_not(traces):
    why = joined_graph(
        {trace.rank: trace.graph for trace in traces}, {trace.rank: trace.collective_runs for trace in traces}
    )
    assert isinstance(why, str)
    return why


def test_ranks_that_do_not_fit_together_say_why(tmp_path):
    traces, _ = traces_of(LATE, tmp_path)
    without_runs = SimpleNamespace(rank=0, graph=traces[0].graph, collective_runs={})
    assert why_not([without_runs, *traces[1:]]).startswith("the collectives of some ranks")
    without_graph = SimpleNamespace(rank=0, graph="it has no events of the host", collective_runs={})
    assert why_not([without_graph, *traces[1:]]) == "of rank 0, it has no events of the host"
    others, _ = traces_of(replace(LATE, steps=2), tmp_path)
    assert why_not([traces[0], *others[1:]]) == "the ranks recorded different numbers of steps"
    early, late = (Job([Rank(slow_steps=(step,))] * 3, with_groups=False) for step in (0, 2))
    mixed = [traces_of(early, tmp_path)[0][0], *traces_of(late, tmp_path)[0][1:]]
    assert "collectives ended on one rank before another had reached them" in why_not(mixed)
