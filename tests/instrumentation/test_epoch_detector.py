"""Which passes over data loaders are epochs of a training that marks none."""

import pytest

from training_profiler.instrumentation.loop_detection.epoch_detector import EpochBoundary, EpochDetector
from training_profiler.instrumentation.loop_detection.phase_detector import LoaderPass, Phase


class Iterator:
    """What a pass is over; held weakly, as a loader's is."""


def a_pass(begin_ns: int, *, loader: int = 1, fetches: int = 10, samples: int | None = 40, has_ended: bool = True):
    iterator = Iterator()
    one = LoaderPass(iterator)
    one.kind, one.loader_id, one.begin_ns = Phase.TRAINING, loader, begin_ns
    one.fetches, one.samples, one.has_ended = fetches, samples, has_ended
    return one, iterator


def test_an_epoch_begins_with_its_pass_and_ends_with_the_next():
    (first, _), (second, _) = a_pass(100), a_pass(900)
    epochs = EpochDetector()
    assert epochs.next_boundary(first) == EpochBoundary(100, 1, None, None)
    assert epochs.next_boundary(second) == EpochBoundary(900, 2, 10, 40)
    assert epochs.last() == (10, 40, True)


def test_within_a_pass_there_is_nothing_to_ask():
    (first, _), epochs = a_pass(100), EpochDetector()
    assert not epochs.is_same(first)
    epochs.next_boundary(first)
    assert epochs.is_same(first)
    assert epochs.next_boundary(first) is None


@pytest.mark.parametrize("kind", [Phase.UNKNOWN, Phase.EVALUATION])
def test_a_pass_that_does_not_train_is_no_epoch(kind):
    (first, _), (other, _), (second, _) = a_pass(100), a_pass(500, loader=2), a_pass(900)
    other.kind = kind
    epochs = EpochDetector()
    assert [epochs.next_boundary(one) for one in (first, other, second)][1:] == [None, EpochBoundary(900, 2, 10, 40)]


def test_loaders_in_turn_have_no_epochs():
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


def test_loaders_side_by_side_have_no_epochs():
    (first, _), epochs = a_pass(100), EpochDetector()
    assert epochs.next_boundary(first, is_alone=False) is None
    assert epochs.is_off


def test_one_loader_after_the_other_has_no_epochs():
    (first, _), (other, _), epochs = a_pass(100), a_pass(900, loader=2), EpochDetector()
    epochs.next_boundary(first)
    assert epochs.next_boundary(other) is None
    assert epochs.is_off


def test_a_pass_that_was_left_early_is_an_epoch_where_its_iterator_is_gone():
    (first, iterator), (second, _), epochs = a_pass(100, has_ended=False), a_pass(900), EpochDetector()
    epochs.next_boundary(first)
    del iterator
    assert epochs.next_boundary(second) == EpochBoundary(900, 2, 10, 40)


def test_a_new_iterator_for_each_batch_makes_no_epochs():
    (first, iterator), (second, _) = a_pass(100, fetches=1, has_ended=False), a_pass(900, fetches=1, has_ended=False)
    epochs = EpochDetector()
    epochs.next_boundary(first)
    del iterator
    assert epochs.next_boundary(second) is None
    assert epochs.is_off


def test_batches_from_an_unknown_loader_make_no_epochs():
    (first, _), (second, _), epochs = a_pass(100, loader=0), a_pass(900, loader=0), EpochDetector()
    epochs.next_boundary(first)
    assert epochs.next_boundary(second) is None
    assert epochs.is_off


def test_a_first_pass_that_goes_on_to_the_end_of_the_run_is_no_epoch():
    (first, iterator), epochs = a_pass(100, has_ended=False), EpochDetector()
    epochs.next_boundary(first)
    assert epochs.last() is None
    del iterator


def test_a_later_pass_that_goes_on_to_the_end_of_the_run_is_an_epoch_cut_short():
    (first, _), (second, iterator), epochs = (
        a_pass(100),
        a_pass(900, fetches=3, samples=12, has_ended=False),
        EpochDetector(),
    )
    epochs.next_boundary(first)
    epochs.next_boundary(second)
    assert epochs.last() == (3, 12, False)
    del iterator
