import pytest

from training_profiler.trials.results import APART, DIFFERS, IDENTICAL, NOT_REPEATABLE, UNKNOWN, compare_losses


def losses(*values):
    return [[float(value).hex()] for value in values]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changed", "unchanged", "kind", "text"),
    [
        ([1, 2], [1, 2, 3], IDENTICAL, "identical"),  # as far as both ran
        ([1, 2 * (1 - 1e-7)], [1, 2], APART, "1e-7 apart"),
        ([1, 2 * (1 - 2e-16)], [1, 2], APART, "2e-16 apart"),
        ([1, 2 * (1 - 3e-2)], [1, 2], DIFFERS, "differs (3e-2)"),
        ([1 + 1e-7 * 2**i for i in range(30)], [1] * 30, APART, "5e-5 apart"),  # rounding that grows
        ([1, 1, 1, 1.5], [1, 1, 1, 1], DIFFERS, "differs (3e-1)"),  # after an equal first epoch
        ([NAN], [NAN], IDENTICAL, "identical"),
        ([NAN], [1], DIFFERS, "differs"),
        ([INF], [1], DIFFERS, "differs"),
    ],
)
def test_a_small_first_difference_is_rounding_and_any_other_differs(changed, unchanged, kind, text):
    found = compare_losses(losses(*changed), losses(*unchanged), losses(*unchanged))
    assert (found.kind, str(found)) == (kind, text)


def test_two_unchanged_trainings_that_differ_leave_no_comparison():
    found = compare_losses(losses(1, 2.1), losses(1, 2), losses(1, 2.2))
    assert (found.kind, str(found), found.steps) == (NOT_REPEATABLE, "not repeatable", 2)


def test_another_number_of_losses_differs_and_none_is_unknown():
    assert compare_losses([["0x1p+0", "0x1p+0"]], losses(1), losses(1)).kind == DIFFERS
    assert compare_losses([[], []], [[], []], [[], []]).kind == UNKNOWN
