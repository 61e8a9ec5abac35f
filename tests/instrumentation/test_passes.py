import gc

from training_profiler.instrumentation.loop_detection.phase_detector import MAX_PASSES, Passes, Phase


class Iterator:
    pass


def test_an_iterator_goes_on_with_its_pass():
    passes, iterator = Passes(), Iterator()
    begun = passes.of(iterator, True)
    assert passes.of(iterator, False) is begun
    assert passes.latest is begun


def test_an_iterator_seen_first_in_the_middle_has_a_pass_all_the_same():
    passes, iterator = Passes(), Iterator()
    begun = passes.of(iterator, False)
    assert passes.of(iterator, False) is begun


def test_an_iterator_that_begins_anew_begins_another_pass():
    passes, iterator = Passes(), Iterator()
    begun = passes.of(iterator, True)
    begun.kind = Phase.TRAINING
    again = passes.of(iterator, True)
    assert again is not begun
    assert again.kind is Phase.UNKNOWN
    assert passes.of(iterator, False) is again


def test_two_iterators_in_turn_keep_their_passes():
    passes, one, other = Passes(), Iterator(), Iterator()
    first, second = passes.of(one, True), passes.of(other, True)
    assert passes.of(one, False) is first
    assert passes.of(other, False) is second
    assert passes.latest is second


def test_an_iterator_at_the_address_of_one_that_is_gone_begins_a_pass():
    passes, iterator = Passes(), Iterator()
    begun = passes.of(iterator, True)
    begun.iterator = lambda: None  # as a weak reference of one that is gone
    assert passes.of(iterator, False) is not begun


def test_an_iterator_lives_no_longer_for_its_pass():
    passes, iterator = Passes(), Iterator()
    begun = passes.of(iterator, True)
    del iterator
    gc.collect()
    assert begun.iterator() is None


def test_of_too_many_passes_the_oldest_are_forgotten():
    passes = Passes()
    iterators = [Iterator() for _ in range(MAX_PASSES + 1)]
    begun = [passes.of(iterator, True) for iterator in iterators]
    assert passes.of(iterators[1], False) is begun[1]
    assert passes.of(iterators[0], False) is not begun[0]


def test_of_too_many_passes_that_are_to_be_settled_the_oldest_are_forgotten():
    passes = Passes()
    iterators = [Iterator() for _ in range(MAX_PASSES + 1)]
    for iterator in iterators:
        passes.add_unknown(passes.of(iterator, True))
    assert len(passes.unknown) == MAX_PASSES
    assert passes.unknown[-1].iterator() is iterators[-1]


def test_a_pass_that_is_settled_is_waited_for_no_longer():
    passes, iterator = Passes(), Iterator()
    begun = passes.of(iterator, True)
    passes.add_unknown(begun)
    passes.resolve(begun, Phase.EVALUATION)
    passes.resolve(begun, Phase.EVALUATION)
    assert passes.unknown == []
    assert begun.kind is Phase.EVALUATION
