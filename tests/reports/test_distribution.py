import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import section_stats, snapshot_of
from training_profiler.reports.distribution import distribution, in_tree_order, percentages
from training_profiler.snapshot.snapshot import Snapshot


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any))
def test_percentages_add_up_to_one_hundred(parts):
    shown = percentages([part / sum(parts) for part in parts])
    assert sum(round(share * 10) for share in shown) == 1000


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any))
def test_a_percentage_is_less_than_a_tenth_off(parts):
    shares = [part / sum(parts) for part in parts]
    for shown, share in zip(percentages(shares), shares, strict=True):
        assert abs(shown - 100 * share) < 0.1 + 1e-9


def test_what_rounding_leaves_over_goes_to_those_it_treated_worst():
    assert percentages([0.3337, 0.3336, 0.3327]) == [33.4, 33.3, 33.3]


def test_shares_of_less_than_all_are_not_filled_up():
    assert percentages([0.25, 0.25]) == [25.0, 25.0]


@pytest.mark.parametrize("shares", [[], [0.0]])
def test_nothing_is_no_percentage(shares):
    assert percentages(shares) == shares


def test_sections_follow_the_one_they_are_nested_in_and_the_largest_comes_first():
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


def test_a_section_whose_parent_has_no_row_stands_for_itself():
    sections = {"a": section_stats("a", parent="gone")}
    assert [depth for depth, _ in in_tree_order(sections)] == [0]


def test_time_of_no_section_closes_the_distribution():
    rows = distribution(snapshot_of({"forward_pass": 0.25, "backward_pass": 0.5}))
    assert [(section.name, share) for _, section, share in rows] == [
        ("backward_pass", 50.0),
        ("forward_pass", 25.0),
        ("other", 25.0),
    ]


def test_a_clock_that_stands_still_has_no_distribution():
    assert distribution(Snapshot()) == []
