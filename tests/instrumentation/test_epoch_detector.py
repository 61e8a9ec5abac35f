"""Which passes over data loaders are epochs if the training marks none."""

import pytest

from training_profiler.instrumentation.loop_detection.epoch_detector import EpochBoundary, EpochDetector
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, PassPhase


class Iterator:
    """An iterator, held weakly."""


def a_pass(begin_ns: int, *, loader: int = 1, fetches: int = 10, samples: int | None = 40, has_ended: bool = True):
    iterator = Iterator()
    one = LoaderPass(iterator)
    one.kind, one.loader_id, one.begin_ns = PassPhase.TRAINING, loader, begin_ns
    one.fetches, one.samples, one.has_ended = fetches, samples, has_ended
    return one, iterator


def test_epoch_lasts_from_its_pass_to_the_next():
    (first, _), (second, _) = a_pass(100), a_pass(900)
    epochs = EpochDetector()
    assert epochs.next_boundary(first) == EpochBoundary(100, 1, None, None)
    assert epochs.next_boundary(second) == EpochBoundary(900, 2, 10, 40)
    assert epochs.last() == (10, 40, True)


def test_same_pass_changes_nothing():
    (first, _), epochs = a_pass(100), EpochDetector()
    assert not epochs.is_same(first)
    epochs.next_boundary(first)
    assert epochs.is_same(first)
    assert epochs.next_boundary(first) is None


@pytest.mark.parametrize("kind", [PassPhase.UNKNOWN, PassPhase.EVALUATION])
def test_evaluation_pass_is_not_an_epoch(kind):
    (first, _), (other, _), (second, _) = a_pass(100), a_pass(500, loader=2), a_pass(900)
    other.kind = kind
    epochs = EpochDetector()
    assert [epochs.next_boundary(one) for one in (first, other, second)][1:] == [None, EpochBoundary(900, 2, 10, 40)]


def test_alternating_loaders_have_no_epochs():
    (main, kept), (aux, _), epochs = (
        a_pass(100, has_ended=False),
        a_pass(101, loader=2, has_ended=False),
        EpochDetector(),
    )
    assert epochs.next_boundary(main) is not None
    assert epochs.next_boundary(aux) is None
    assert epochs.is_off
    assert epochs.last() is None
    assert epochs.is_same(main)
    del kept


def test_a_training_that_goes_on_with_another_loader_has_clear_epochs_until_then():
    passes, epochs = [a_pass(100), a_pass(200), a_pass(300), a_pass(400, loader=2)], EpochDetector()
    found = [epochs.next_boundary(one) for one, _ in passes]
    assert [boundary is not None for boundary in found] == [True, True, True, False]
    assert epochs.unclear_after == 2  # what followed the third cannot be divided from the other loader's
    assert epochs.is_off


def test_concurrent_loaders_have_no_epochs():
    (first, _), epochs = a_pass(100), EpochDetector()
    assert epochs.next_boundary(first, is_alone=False) is None
    assert epochs.is_off


def test_successive_different_loaders_have_no_epochs():
    (first, _), (other, _), epochs = a_pass(100), a_pass(900, loader=2), EpochDetector()
    epochs.next_boundary(first)
    assert epochs.next_boundary(other) is None
    assert epochs.is_off


def test_aborted_pass_is_an_epoch_if_its_iterator_is_gone():
    (first, iterator), (second, _), epochs = a_pass(100, has_ended=False), a_pass(900), EpochDetector()
    epochs.next_boundary(first)
    del iterator
    assert epochs.next_boundary(second) == EpochBoundary(900, 2, 10, 40)


def test_new_iterator_per_batch_makes_no_epochs():
    (first, iterator), (second, _) = a_pass(100, fetches=1, has_ended=False), a_pass(900, fetches=1, has_ended=False)
    epochs = EpochDetector()
    epochs.next_boundary(first)
    del iterator
    assert epochs.next_boundary(second) is None
    assert epochs.is_off


def test_unknown_loader_makes_no_epochs():
    (first, _), (second, _), epochs = a_pass(100, loader=0), a_pass(900, loader=0), EpochDetector()
    epochs.next_boundary(first)
    assert epochs.next_boundary(second) is None
    assert epochs.is_off


def test_unfinished_first_pass_is_not_an_epoch():
    (first, iterator), epochs = a_pass(100, has_ended=False), EpochDetector()
    epochs.next_boundary(first)
    assert epochs.last() is None
    del iterator


def test_unfinished_later_pass_is_an_incomplete_epoch():
    (first, _), (second, iterator), epochs = (
        a_pass(100),
        a_pass(900, fetches=3, samples=12, has_ended=False),
        EpochDetector(),
    )
    epochs.next_boundary(first)
    epochs.next_boundary(second)
    assert epochs.last() == (3, 12, False)
    del iterator
