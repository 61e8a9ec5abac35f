"""Which passes over data loaders are epochs if the training marks none."""

import pytest

from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, PassPhase
from training_profiler.instrumentation.loop_detection.step_detector import EpochBoundary, EpochDetector


class Iterator:
    """An iterator, held weakly."""


class Passes:
    """Passes over loaders; ``boundaries`` are what each of them began, and their iterators are kept."""

    def __init__(self):
        self.epochs, self.boundaries, self.iterators = EpochDetector(), [], []

    def begin(self, begin_ns, *, loader=1, fetches=10, samples=40, has_ended=True, kind=PassPhase.TRAINING, **named):
        self.iterators.append(Iterator())
        one = LoaderPass(self.iterators[-1])
        one.kind, one.loader_id, one.begin_ns = kind, loader, begin_ns
        one.fetches, one.samples, one.has_ended = fetches, samples, has_ended
        self.boundaries.append(self.epochs.next_boundary(one, **named))
        return one


@pytest.fixture
def passes():
    return Passes()


FIRST, SECOND = EpochBoundary(100, 1, None, None), EpochBoundary(900, 2, 10, 40)


@pytest.mark.parametrize(
    "two",
    [
        ({"has_ended": False}, {"has_ended": False, "loader": 2}),  # in turns
        ({}, {"loader": 2}),  # one after the other
        ({"loader": 0}, {"loader": 0}),  # unknown ones
    ],
)
def test_passes_of_two_loaders_make_no_epochs(passes, two):
    first = passes.begin(100, **two[0])
    passes.begin(900, **two[1])
    assert passes.boundaries[1] is None
    assert passes.epochs.is_off
    assert passes.epochs.last() is None
    assert passes.epochs.is_same(first)


def test_concurrent_loaders_have_no_epochs(passes):
    passes.begin(100, is_alone=False)
    assert passes.boundaries == [None]
    assert passes.epochs.is_off


@pytest.mark.parametrize(("fetches", "boundary"), [(10, SECOND), (1, None)])
def test_aborted_pass_is_an_epoch_if_its_iterator_is_gone_after_several_batches(passes, fetches, boundary):
    passes.begin(100, has_ended=False, fetches=fetches)
    passes.iterators.clear()
    passes.begin(900, fetches=fetches)
    assert passes.boundaries[1] == boundary
    assert passes.epochs.is_off == (boundary is None)


def test_unfinished_last_pass_is_an_incomplete_epoch_unless_it_is_the_first(passes):
    passes.begin(50, has_ended=False)
    assert passes.epochs.last() is None
    passes = Passes()
    passes.begin(100)
    passes.begin(900, fetches=3, samples=12, has_ended=False)
    assert passes.epochs.last() == (3, 12, False)
