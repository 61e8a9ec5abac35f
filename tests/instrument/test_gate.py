import threading

from training_profiler.instrument.gate import FETCH, FORWARD, FREE, Gate


def on_another_thread(work):
    """Return what ``work`` returns on a thread that is alive beside this one."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def test_the_first_thread_to_ask_is_the_training_s():
    gate = Gate()
    assert gate.is_mine()
    assert not on_another_thread(gate.is_mine)
    assert gate.is_mine()


def test_a_thread_that_trains_beyond_doubt_takes_the_place_of_one_that_only_asked():
    gate = Gate()
    gate.is_mine()
    gate.busy = FORWARD

    def train():
        return gate.claim(), gate.is_mine(), gate.busy

    assert on_another_thread(train) == (True, True, FREE)
    assert not gate.is_mine()


def test_the_main_thread_takes_over_where_it_is_likely_to_train():
    gate = Gate()
    assert on_another_thread(gate.is_mine)
    gate.busy = FETCH
    assert not gate.is_mine()
    assert gate.is_mine(is_likely=True)
    assert gate.busy == FREE
    assert not on_another_thread(gate.is_mine)


def test_no_other_thread_takes_over_for_being_likely_to_train():
    gate = Gate()
    gate.is_mine()
    assert not on_another_thread(lambda: gate.is_mine(is_likely=True))
    assert gate.is_mine()


def test_the_main_thread_does_not_take_over_from_one_that_has_trained():
    gate = Gate()
    assert on_another_thread(gate.claim)
    assert not gate.is_mine(is_likely=True)


def test_a_thread_that_has_trained_stays_the_training_s():
    gate = Gate()
    assert gate.claim()
    assert not on_another_thread(gate.claim)
    assert not on_another_thread(gate.is_mine)
    assert gate.claim()
    assert gate.is_mine()


def test_a_claim_of_the_same_thread_leaves_what_it_is_inside_of():
    gate = Gate()
    gate.is_mine()
    gate.busy = FETCH
    assert gate.claim()
    assert gate.busy == FETCH
    assert gate.is_proven


def test_asking_alone_proves_nothing():
    gate = Gate()
    gate.is_mine()
    assert not gate.is_proven
    assert on_another_thread(gate.claim)
