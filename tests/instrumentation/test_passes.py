import gc

import pytest

from training_profiler.base.units import NS_PER_MS
from training_profiler.instrumentation.loop_detection.loader_passes import MAX_PASSES, LoaderPass, Passes, PassPhase
from training_profiler.model.loader_workers import MadeBatches
from training_profiler.recording.data_loader import LoaderArguments, LoaderCounts


class Iterator:
    pass


def test_iterators_keep_their_passes_until_they_begin_again():
    passes, one, other = Passes(), Iterator(), Iterator()
    first, second = passes.of(one, True), passes.of(other, False)  # the other is found midway
    assert passes.latest is second
    assert (passes.of(other, False), passes.of(one, False)) == (second, first)
    assert passes.latest is first
    first.kind = PassPhase.TRAINING
    again = passes.of(one, True)
    assert again is not first
    assert again.kind is PassPhase.UNKNOWN
    assert passes.of(one, False) is again


def test_pass_does_not_keep_its_iterator_alive_whose_address_may_begin_another():
    passes, iterator, other = Passes(), Iterator(), Iterator()
    begun, gone = passes.of(iterator, True), passes.of(other, True)
    del other
    gc.collect()
    assert gone.iterator() is None
    begun.iterator = gone.iterator
    assert passes.of(iterator, False) is not begun


def test_oldest_passes_are_dropped_beyond_the_limit():
    passes = Passes()
    iterators = [Iterator() for _ in range(MAX_PASSES + 1)]
    begun = [passes.of(iterator, True) for iterator in iterators]
    assert passes.of(iterators[1], False) is begun[1]
    assert passes.of(iterators[0], False) is not begun[0]


def measured_batches(workers, batches, step_ms=10.0, counts=None):
    """Return which batches of a pass are measured, counted from 0, as the patch of fetches does."""
    counts, loader_pass, measured = counts or LoaderCounts("0"), LoaderPass(Iterator()), []
    counts.use_arguments(LoaderArguments(workers))
    loader_pass.use_counts(counts)
    loader_pass.kind = PassPhase.TRAINING
    for number in range(batches):
        if loader_pass.fetches >= loader_pass.measured_at:
            measured.append(number)
            loader_pass.add_made(cpu_ns=10, now_ns=int(number * step_ms * NS_PER_MS))
        loader_pass.fetches += 1
    assert loader_pass.made == MadeBatches(len(measured), 10 * len(measured))
    return measured


def test_a_third_of_the_first_batches_and_few_later_ones_are_measured():
    first = [1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31]
    assert measured_batches(0, 110) == [*first, 54, 77, 100]


@pytest.mark.parametrize(
    ("step_ms", "later"), [(2.2, [54, 77]), (2.1, [78, 125]), (0.3, [228, 425]), (0.01, [428, 825])]
)
def test_in_short_steps_the_measured_batches_are_some_time_apart(step_ms, later):
    assert measured_batches(0, 1000, step_ms)[11:13] == later


def test_a_loader_of_which_batches_were_measured_is_measured_seldom_in_its_next_pass():
    counts = LoaderCounts("0")
    measured_batches(0, 28, counts=counts)
    assert measured_batches(0, 60, counts=counts) == [1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 54]
    assert measured_batches(0, 60, counts=counts) == [23, 46]


def test_batches_of_workers_are_not_measured():
    assert measured_batches(2, 110) == []
