import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from training_profiler.instrumentation.training_thread import FETCH, FORWARD, FREE, Gate


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


@pytest.fixture
def other():
    """A thread that lives as long as the test."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda work: thread.submit(work).result()


def test_a_thread_that_trains_beyond_doubt_takes_the_place_of_one_that_only_asked(other):
    gate = Gate()
    gate.is_mine()
    gate.busy = FORWARD

    def train():
        return gate.claim(), gate.is_mine(), gate.busy

    assert other(train) == (True, True, FREE)
    assert not gate.is_mine()


def test_the_main_thread_takes_over_where_it_is_likely_to_train():
    gate = Gate()
    assert on_another_thread(gate.is_mine)
    gate.busy = FETCH
    assert not gate.is_mine()
    assert gate.is_mine(is_likely=True)
    assert gate.busy == FREE
    assert not on_another_thread(gate.is_mine)


def test_no_other_thread_takes_over_from_one_as_likely_to_train():
    gate = Gate()
    gate.is_mine(is_likely=True)
    assert not on_another_thread(lambda: gate.is_mine(is_likely=True))
    assert gate.is_mine()


def test_another_thread_takes_over_where_the_first_only_fetched():
    gate = Gate()
    gate.is_mine()
    assert on_another_thread(lambda: gate.is_mine(is_likely=True))
    assert not gate.is_mine()


def test_a_thread_inside_of_a_fetch_keeps_no_other_from_training():
    gate = Gate()
    gate.is_mine()
    fetch = gate.fetch_begins()

    def train():
        return gate.busy, gate.claim()

    assert on_another_thread(train) == (FREE, True)
    assert not gate.is_mine(is_likely=True)
    gate.busy = FORWARD
    gate.fetch_ends(fetch)
    assert gate.busy == FORWARD


def test_what_runs_inside_of_a_fetch_is_not_looked_at():
    gate = Gate()
    gate.is_mine()
    fetch = gate.fetch_begins()
    assert not gate.is_mine(is_likely=True)
    assert not gate.claim()
    gate.fetch_ends(fetch)
    assert gate.claim()
    fetch = gate.fetch_begins()
    assert gate.busy == FETCH
    gate.fetch_ends(fetch)
    assert gate.busy == FREE


def test_a_forked_child_begins_anew():
    gate = Gate()
    gate.claim()
    gate.busy = FETCH
    gate.begin_anew()
    assert on_another_thread(gate.claim)
    assert gate.busy == FREE


def test_the_main_thread_does_not_take_over_from_one_that_has_trained(other):
    gate = Gate()
    assert other(gate.claim)
    assert not gate.is_mine(is_likely=True)


def test_once_the_thread_that_has_trained_is_gone_another_may_train():
    gate = Gate()
    assert on_another_thread(gate.claim)
    assert gate.is_mine()
    assert not gate.is_proven
    assert gate.claim()
    assert not on_another_thread(gate.claim)


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
