import pytest

from training_profiler.trials.losses import APART, DIFFERS, IDENTICAL, NOT_REPEATABLE, UNKNOWN, compare_losses


def losses(*values):
    return [[float(value).hex()] for value in values]


def test_equal_losses_are_identical_as_far_as_both_ran():
    found = compare_losses(losses(1, 2), losses(1, 2, 3), losses(1, 2, 3))
    assert (found.kind, found.steps, str(found)) == (IDENTICAL, 2, "identical")


@pytest.mark.parametrize(("change", "text"), [(1e-7, "1e-7 apart"), (3e-2, "differs (3e-2)"), (2e-16, "2e-16 apart")])
def test_a_small_first_difference_is_rounding(change, text):
    assert str(compare_losses(losses(1, 2 * (1 - change)), losses(1, 2), losses(1, 2))) == text


def test_rounding_that_grows_through_the_training_stays_rounding():
    found = compare_losses(losses(*[1 + 1e-7 * 2**i for i in range(30)]), losses(*[1] * 30), losses(*[1] * 30))
    assert found.kind == APART
    assert found.apart == pytest.approx(1e-7 * 2**9, rel=1e-3)


def test_a_large_difference_after_an_equal_first_epoch_differs():
    assert compare_losses(losses(1, 1, 1, 1.5), losses(1, 1, 1, 1), losses(1, 1, 1, 1)).kind == DIFFERS


def test_two_unchanged_trainings_that_differ_leave_no_comparison():
    found = compare_losses(losses(1, 2.1), losses(1, 2), losses(1, 2.2))
    assert (found.kind, str(found)) == (NOT_REPEATABLE, "not repeatable")


def test_the_same_nan_is_identical_and_a_new_one_differs():
    nan = float("nan")
    assert compare_losses(losses(nan), losses(nan), losses(nan)).kind == IDENTICAL
    assert str(compare_losses(losses(nan), losses(1), losses(1))) == "differs"
    assert str(compare_losses(losses(float("inf")), losses(1), losses(1))) == "differs"


def test_another_number_of_losses_differs():
    assert compare_losses([["0x1p+0", "0x1p+0"]], losses(1), losses(1)).kind == DIFFERS


def test_a_training_without_losses_is_unknown():
    assert compare_losses([[], []], [[], []], [[], []]).kind == UNKNOWN
