from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.instrumented import on_another_thread
from training_profiler.instrumentation.context import FETCH, FORWARD, FREE, TrainingThread


def test_first_thread_to_ask_is_the_training_thread():
    training_thread = TrainingThread()
    assert training_thread.is_current()
    assert not on_another_thread(training_thread.is_current)
    assert training_thread.is_current()


@pytest.fixture
def other():
    """A thread that lives as long as the test."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda work: thread.submit(work).result()


def test_confirmed_thread_takes_over(other):
    training_thread = TrainingThread()
    training_thread.is_current()
    training_thread.busy_with = FORWARD

    def train():
        return training_thread.claim(), training_thread.is_current(), training_thread.busy_with

    assert other(train) == (True, True, FREE)
    assert not training_thread.is_current()


def test_main_thread_takes_over_with_a_module_call():
    training_thread = TrainingThread()
    assert on_another_thread(training_thread.is_current)
    training_thread.busy_with = FETCH
    assert not training_thread.is_current()
    assert training_thread.is_current(is_module_call=True)
    assert training_thread.busy_with == FREE
    assert not on_another_thread(training_thread.is_current)


def test_other_thread_does_not_take_over_from_an_equal():
    training_thread = TrainingThread()
    training_thread.is_current(is_module_call=True)
    assert not on_another_thread(lambda: training_thread.is_current(is_module_call=True))
    assert training_thread.is_current()


def test_other_thread_takes_over_from_one_that_only_fetched():
    training_thread = TrainingThread()
    training_thread.is_current()
    assert on_another_thread(lambda: training_thread.is_current(is_module_call=True))
    assert not training_thread.is_current()


def test_fetching_thread_does_not_block_training_on_another():
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


def test_calls_inside_a_fetch_are_ignored():
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


def test_reset_after_fork():
    training_thread = TrainingThread()
    training_thread.claim()
    training_thread.busy_with = FETCH
    training_thread.reset()
    assert on_another_thread(training_thread.claim)
    assert training_thread.busy_with == FREE


def test_main_thread_does_not_take_over_from_confirmed_thread(other):
    training_thread = TrainingThread()
    assert other(training_thread.claim)
    assert not training_thread.is_current(is_module_call=True)


def test_other_thread_may_train_after_the_end_of_the_confirmed_one():
    training_thread = TrainingThread()
    assert on_another_thread(training_thread.claim)
    assert training_thread.is_current()
    assert not training_thread.is_confirmed
    assert training_thread.claim()
    assert not on_another_thread(training_thread.claim)


def test_confirmed_thread_stays_the_training_thread():
    training_thread = TrainingThread()
    assert training_thread.claim()
    assert not on_another_thread(training_thread.claim)
    assert not on_another_thread(training_thread.is_current)
    assert training_thread.claim()
    assert training_thread.is_current()


def test_claim_of_the_same_thread_keeps_busy_with():
    training_thread = TrainingThread()
    training_thread.is_current()
    training_thread.busy_with = FETCH
    assert training_thread.claim()
    assert training_thread.busy_with == FETCH
    assert training_thread.is_confirmed


def test_asking_does_not_confirm():
    training_thread = TrainingThread()
    training_thread.is_current()
    assert not training_thread.is_confirmed
    assert on_another_thread(training_thread.claim)
