"""Bus bandwidth: the formulas of nccl-tests, the link, and what is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import QUICK
from tests.trace_analysis.test_figures import collectives
from training_profiler.base.peaks import link_of


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
    trace = collectives()
    for name, elements, size, dur in runs:
        trace.events += collectives((name, elements, elements, dur), size=2, **{"Group size": size}).events
    found = trace.analysed(tmp_path).bus_bandwidths
    assert sum(row.total_ns for row in found) == sum(dur for *_, dur in runs) * 1000
    assert sum(row.count for row in found) == len(runs)
    assert all(row.best_gb_s >= row.mean_gb_s for row in found if row.mean_gb_s is not None)
