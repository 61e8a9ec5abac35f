"""Replays of graphs: no late launch is behind a gap inside of one, and a gap between two is what the host did."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_server import Server, served
from tests.support.traces import QUICK
from training_profiler.trace_analysis.critical_path import TimeChange, critical_path, outcome
from training_profiler.trace_analysis.rules_findings import recommendations
from training_profiler.trace_analysis.trace import analyse

US = 1000
INSIDE, BETWEEN = Server(pause_us=60, python_us=50), Server()
SERVERS = st.builds(
    Server,
    tokens=st.integers(1, 4),
    kernels=st.integers(1, 12),
    kernel_us=st.sampled_from([4, 50, 300]),
    pause_us=st.sampled_from([0, 5, 60, 2000]),
    launch_us=st.sampled_from([20, 300, 3000]),
    python_us=st.sampled_from([400, 1500, 7000]),
    reads=st.booleans(),
    streams=st.integers(1, 2),
    is_marked=st.booleans(),
)


def analysed(server, tmp_path):
    return analyse(served(server)[0].write(tmp_path))


def sums_of(found):
    sums = {}
    for place in found.gaps:
        sums[place.cause] = sums.get(place.cause, 0) + place.length_ns
    return sums


def by_code(found):
    return {finding.code: finding for finding in recommendations(found)}


def kinds(server, tmp_path):
    path = critical_path(analysed(server, tmp_path).graph)
    return {kind: ns / path.wall_ns for kind, ns in path.kinds_ns.items()}


def test_the_launch_of_a_graph_is_named_on_the_path(tmp_path):
    found = kinds(Server(launch_us=3000, kernels=20, python_us=50), tmp_path)
    assert found["launch of a graph"] > 0.6
    assert "launch delay" not in found


@QUICK
@given(SERVERS)
def test_gaps_and_path_add_up_for_any_server(tmp_path, server):
    trace, answer = served(server)
    found = analyse(trace.write(tmp_path))
    assert not found.doubts
    assert sum(found.gap_lengths_ns) == sum(answer.idle_us.values()) * US
    inside = server.pause_us * (server.kernels - 1) * server.tokens if server.pause_us >= 30 else 0
    assert sums_of(found).get("inside a graph", 0) == inside * US
    path = critical_path(found.graph)
    assert sum(link.ns for link in path.links) == path.wall_ns
    # Only the kernels that choose a token are launched one by one.
    assert path.kinds_ns.get("launch delay", 0) <= server.tokens * 4 * 10 * US


OF_KERNELS = TimeChange("kernels", "ampere_sgemm_128x64_tn", device_saved=0.5, device_kind="kernel")
OF_LAUNCHES = TimeChange("launches", host_saved=0.5, host_kind="call of the runtime")


@pytest.mark.parametrize(("what", "change"), [("kernel_us", OF_KERNELS), ("launch_us", OF_LAUNCHES)])
@QUICK
@given(server=SERVERS)
def test_faster_kernels_and_launches_of_graphs_are_predicted(tmp_path, what, change, server):
    graph = analysed(server, tmp_path).graph
    truth = served(replace(server, **{what: getattr(server, what) / 2}))[1].end_us
    assert outcome(graph, change) == pytest.approx(truth * US, rel=0.01, abs=40 * US)


def test_graphs_are_not_advised_where_most_work_is_replayed(tmp_path):
    found = analysed(replace(BETWEEN, reads=False, kernels=10), tmp_path)
    assert found.replayed_share > 0.9
    fix = by_code(found)["launch-bound"].fix
    assert fix.startswith("Most work is replayed as graphs already: do what the host does between replays while")
    assert analysed(replace(BETWEEN, kernels=0), tmp_path).replayed_share == 0
