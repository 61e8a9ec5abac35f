"""Bus bandwidth: the formulas of nccl-tests, the link, and what is unknown."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.traces import Trace, gpu
from training_profiler.tables.peaks import link_of
from training_profiler.trace_analysis.report.views import render_view

H100 = "NVIDIA H100 80GB HBM3"
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)


def collective(trace, name, sent, received, dur, size=8, ranks=None, dtype="BFloat16", **args):
    given = {"In msg nelems": sent, "Out msg nelems": received, "Group size": size, "dtype": dtype}
    given["Process Group Ranks"] = str(list(range(size)) if ranks is None else ranks)
    return trace.kernel("ncclDevKernel_X", 0, dur, stream=9, **{"Collective name": name}, **(given | args))


def node(devices=8, name=H100):
    return Trace(deviceProperties=[gpu(name)] * devices)


# 64 MiB of bfloat16 on 8 devices in 1 ms: 67.1 GB/s of the message.
@pytest.mark.parametrize(
    ("name", "sent", "received", "expected"),
    [
        ("allreduce", 2**25, 2**25, 2 * 7 / 8),
        ("_allgather_base", 2**22, 2**25, 7 / 8),
        ("_allgather_base", 2**22, 0, 7 / 8),
        ("_reduce_scatter_base", 2**25, 2**22, 7 / 8),
        ("all_to_allv", 2**25, 2**25, 7 / 8),
        ("broadcast", 2**25, 2**25, 1),
        ("recv", 0, 2**25, 1),
    ],
)
def test_bus_bandwidth_is_the_message_by_time_and_the_factor_of_the_collective(
    name, sent, received, expected, tmp_path
):
    (found,) = collective(node(), name, sent, received, 1000).analysed(tmp_path).bus_bandwidths
    assert found.message_bytes == 2**26
    assert found.mean_gb_s == pytest.approx(expected * 2**26 / 1e9 / 1e-3)
    assert found.share_of_link == pytest.approx(found.mean_gb_s / 450)


def test_the_shortest_run_waited_least_and_is_compared_with_the_link(tmp_path):
    trace = node()
    for dur in (1000, 3000):
        collective(trace, "allreduce", 2**25, 2**25, dur)
    (found,) = trace.analysed(tmp_path).bus_bandwidths
    assert found.count == 2
    assert found.best_gb_s == pytest.approx(2 * found.mean_gb_s)
    assert found.share_of_link == pytest.approx(found.best_gb_s / 450)


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"dtype": None}, "message size"),
        ({"In msg nelems": None}, "message size"),
        ({"In msg nelems": 2**62}, "message size"),
        ({"Group size": None, "Process Group Ranks": None}, "group size"),
        ({"Collective name": "wait"}, "kind of collective"),
    ],
)
def test_what_is_missing_makes_the_rate_unknown(change, lacks, tmp_path):
    trace = collective(node(), "allreduce", 2**25, 2**25, 1000)
    trace.events[-1]["args"] |= change
    (found,) = trace.analysed(tmp_path).bus_bandwidths
    assert (found.mean_gb_s, found.best_gb_s, found.share_of_link) == (None, None, None)
    assert lacks in found.lacks


@pytest.mark.parametrize(
    ("ranks", "devices", "name", "is_known"),
    [
        ([0, 1, 2, 3], 8, H100, True),
        ([8, 9], 8, H100, True),
        ([7, 8], 8, H100, False),  # on two nodes
        ([0, 8], 8, H100, False),
        ([0, 1], 1, H100, False),
        ([0, 1], 8, "NVIDIA A10", False),
        ("[0, 1, ..., 15]", 8, H100, False),
    ],
)
def test_the_link_is_known_for_groups_within_a_node(ranks, devices, name, is_known, tmp_path):
    (found,) = collective(node(devices, name), "allreduce", 64, 64, 10, 2, ranks).analysed(tmp_path).bus_bandwidths
    assert (found.link is not None) == is_known
    assert ("link between the devices" in found.lacks) == (not is_known)
    assert found.mean_gb_s is not None


def test_the_link_is_known_of_a_device_that_the_trace_lists_by_another_number(tmp_path):
    trace = collective(node(), "allreduce", 64, 64, 10, 2, [0, 1])
    trace.events[-1]["args"]["device"] = 8  # as ROCm does
    (found,) = trace.analysed(tmp_path).bus_bandwidths
    assert found.link == link_of(H100)


@pytest.mark.parametrize(
    ("name", "gb_s"),
    [
        ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H200", 450),
        ("Tesla V100-SXM2-16GB", 150),
        ("Tesla V100-DGXS-32GB", None),
        ("AMD Instinct MI300X OAM", 448),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("", None),
    ],
)
def test_links_are_known_by_the_name_of_the_device(name, gb_s):
    link = link_of(name)
    assert (link and link.gb_s) == gb_s


@QUICK
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["allreduce", "_allgather_base", "broadcast", "new"]),
            st.one_of(st.none(), st.integers(0, 2**40)),
            st.one_of(st.none(), st.integers(0, 9)),
            st.integers(1, 500),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_rows_add_up_to_all_communication_and_no_mean_exceeds_the_best(tmp_path, runs):
    trace = node()
    for name, elements, size, dur in runs:
        collective(trace, name, elements, elements, dur, 2, **{"Group size": size})
    found = trace.analysed(tmp_path).bus_bandwidths
    assert sum(row.total_ns for row in found) == sum(dur for *_, dur in runs) * 1000
    assert sum(row.count for row in found) == len(runs)
    assert all(row.best_gb_s >= row.mean_gb_s for row in found if row.mean_gb_s is not None)


def test_an_all_reduce_in_the_switch_has_no_share_above_100_percent(tmp_path):
    trace = collective(node(), "allreduce", 2**25, 2**25, 250)
    found = trace.analysed(tmp_path)
    (row,) = found.bus_bandwidths
    assert (row.share_of_link, row.is_above_link) == (None, True)
    assert "over 100%" in render_view("communication", found, "host_self")


def test_view_names_the_link_and_what_is_unknown_in_80_columns(tmp_path):
    trace = collective(node(), "allreduce", 2**25, 2**25, 1000)
    trace.kernel("ncclDevKernel_Generic", 2000, 500, stream=9)
    text = render_view("communication", trace.analysed(tmp_path), "host_self")
    assert "The link: 450 GB/s in each direction (NVIDIA H100 data sheet, NVLink)" in text
    assert "kind of collective (0.500 ms)" in text
    assert max(map(len, text.splitlines())) <= 80
