import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from training_profiler.instrumentation.training_thread import FETCH, FORWARD, FREE, TrainingThread


def on_another_thread(work):
    """Return what ``work`` returns on a thread that is alive beside this one."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def test_the_first_thread_to_ask_is_the_training_s():
    training_thread = TrainingThread()
    assert training_thread.is_current()
    assert not on_another_thread(training_thread.is_current)
    assert training_thread.is_current()


@pytest.fixture
def other():
    """A thread that lives as long as the test."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda work: thread.submit(work).result()


def test_a_thread_that_trains_beyond_doubt_takes_the_place_of_one_that_only_asked(other):
    training_thread = TrainingThread()
    training_thread.is_current()
    training_thread.busy_with = FORWARD

    def train():
        return training_thread.claim(), training_thread.is_current(), training_thread.busy_with

    assert other(train) == (True, True, FREE)
    assert not training_thread.is_current()


def test_the_main_thread_takes_over_where_it_is_likely_to_train():
    training_thread = TrainingThread()
    assert on_another_thread(training_thread.is_current)
    training_thread.busy_with = FETCH
    assert not training_thread.is_current()
    assert training_thread.is_current(is_module_call=True)
    assert training_thread.busy_with == FREE
    assert not on_another_thread(training_thread.is_current)


def test_no_other_thread_takes_over_from_one_as_likely_to_train():
    training_thread = TrainingThread()
    training_thread.is_current(is_module_call=True)
    assert not on_another_thread(lambda: training_thread.is_current(is_module_call=True))
    assert training_thread.is_current()


def test_another_thread_takes_over_where_the_first_only_fetched():
    training_thread = TrainingThread()
    training_thread.is_current()
    assert on_another_thread(lambda: training_thread.is_current(is_module_call=True))
    assert not training_thread.is_current()


def test_a_thread_inside_of_a_fetch_keeps_no_other_from_training():
    training_thread = TrainingThread()
    training_thread.is_current()
    fetch = training_thread.fetch_begins()

    def train():
        return training_thread.busy_with, training_thread.claim()

    assert on_another_thread(train) == (FREE, True)
    assert not training_thread.is_current(is_module_call=True)
    training_thread.busy_with = FORWARD
    training_thread.fetch_ends(fetch)
    assert training_thread.busy_with == FORWARD


def test_what_runs_inside_of_a_fetch_is_not_looked_at():
    training_thread = TrainingThread()
    training_thread.is_current()
    fetch = training_thread.fetch_begins()
    assert not training_thread.is_current(is_module_call=True)
    assert not training_thread.claim()
    training_thread.fetch_ends(fetch)
    assert training_thread.claim()
    fetch = training_thread.fetch_begins()
    assert training_thread.busy_with == FETCH
    training_thread.fetch_ends(fetch)
    assert training_thread.busy_with == FREE


def test_a_forked_child_begins_anew():
    training_thread = TrainingThread()
    training_thread.claim()
    training_thread.busy_with = FETCH
    training_thread.reset()
    assert on_another_thread(training_thread.claim)
    assert training_thread.busy_with == FREE


def test_the_main_thread_does_not_take_over_from_one_that_has_trained(other):
    training_thread = TrainingThread()
    assert other(training_thread.claim)
    assert not training_thread.is_current(is_module_call=True)


def test_once_the_thread_that_has_trained_is_gone_another_may_train():
    training_thread = TrainingThread()
    assert on_another_thread(training_thread.claim)
    assert training_thread.is_current()
    assert not training_thread.is_confirmed
    assert training_thread.claim()
    assert not on_another_thread(training_thread.claim)


def test_a_thread_that_has_trained_stays_the_training_s():
    training_thread = TrainingThread()
    assert training_thread.claim()
    assert not on_another_thread(training_thread.claim)
    assert not on_another_thread(training_thread.is_current)
    assert training_thread.claim()
    assert training_thread.is_current()


def test_a_claim_of_the_same_thread_leaves_what_it_is_inside_of():
    training_thread = TrainingThread()
    training_thread.is_current()
    training_thread.busy_with = FETCH
    assert training_thread.claim()
    assert training_thread.busy_with == FETCH
    assert training_thread.is_confirmed


def test_asking_alone_proves_nothing():
    training_thread = TrainingThread()
    training_thread.is_current()
    assert not training_thread.is_confirmed
    assert on_another_thread(training_thread.claim)
