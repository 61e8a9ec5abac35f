from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.loader_workers import waiting_run
from tests.support.recording import section_stats, snapshot_of
from training_profiler.reports.distribution import distribution, in_tree_order, lines_under, percentages
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any))
def test_percentages_add_up_to_100(parts):
    shown = percentages([part / sum(parts) for part in parts])
    assert sum(round(share * 10) for share in shown) == 1000


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any))
def test_percentages_are_less_than_a_tenth_off(parts):
    shares = [part / sum(parts) for part in parts]
    for shown, share in zip(percentages(shares), shares, strict=True):
        assert abs(shown - 100 * share) < 0.1 + 1e-9


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ([0.3337, 0.3336, 0.3327], [33.4, 33.3, 33.3]),  # the largest remainders
        ([0.25, 0.25], [25.0, 25.0]),  # not all of it: only rounded
        ([], []),
        ([0.0], [0.0]),
    ],
)
def test_what_rounding_leaves_goes_to_the_largest_remainders(shares, shown):
    assert percentages(shares) == shown


def test_largest_section_first_nested_ones_below_it():
    sections = {
        section.name: section
        for section in (
            section_stats("small", avg_s=0.1),
            section_stats("mlp", avg_s=0.2, parent="forward"),
            section_stats("attention", avg_s=0.3, parent="forward"),
            section_stats("softmax", avg_s=0.1, parent="attention"),
            section_stats("forward", avg_s=0.6),
        )
    }
    assert [(depth, section.name) for depth, section in in_tree_order(sections)] == [
        (0, "forward"),
        (1, "attention"),
        (2, "softmax"),
        (1, "mlp"),
        (0, "small"),
    ]


def test_section_without_its_parents_row_is_not_indented():
    sections = {"a": section_stats("a", parent="gone")}
    assert [depth for depth, _ in in_tree_order(sections)] == [0]


def test_unattributed_time_completes_the_distribution():
    rows = distribution(snapshot_of({"forward_pass": 0.25, "backward_pass": 0.5}))
    assert [(section.name, share) for _, section, share in rows] == [
        ("backward_pass", 50.0),
        ("forward_pass", 25.0),
        ("other", 25.0),
    ]


def test_no_elapsed_time_no_distribution():
    assert distribution(Snapshot()) == []


def test_data_loading_is_divided_as_the_work_of_its_workers():
    run = waiting_run()
    section = run.sections["data_loading"]
    assert lines_under(run, section, 75.0) == [
        ("worker: data.py:31", "Blur.__call__", 45.0),
        ("worker: data.py:20", "Pictures.__getitem__", 22.5),
    ]


def test_a_loader_without_workers_keeps_the_lines_of_the_training():
    run = waiting_run()
    both = replace(run, loaders=(*run.loaders, LoaderStats("1", 5, None, 0.1, num_workers=0)))
    assert lines_under(both, run.sections["data_loading"], 75.0) == []
