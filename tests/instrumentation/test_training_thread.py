"""Which thread is the training thread, after what the main thread, one that lives on, and ended ones have asked."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.instrumented import on_another_thread
from training_profiler.instrumentation.context import FETCH, FORWARD, FREE, TrainingThread

YES, NO = True, False
# A letter for the thread (main, other, ended) and one for what it asks: is it current, is it with a module call, does
# it claim; and the answer.
QUESTIONS = {
    "the first thread to ask": [("m?", YES), ("e?", NO), ("m?", YES)],
    "a claim is stronger than a question": [("m?", YES), ("o!", YES), ("o?", YES), ("m?", NO)],
    "the main thread wins with a module call": [("e?", YES), ("m?", NO), ("m(", YES), ("e?", NO)],
    "between equals nothing changes": [("m(", YES), ("e(", NO), ("m?", YES)],
    "a module call is stronger than a fetch": [("m?", YES), ("e(", YES), ("m?", NO)],
    "the main thread is not stronger than a claim": [("o!", YES), ("m(", NO), ("m!", NO)],
    "another thread follows one that has ended": [("e!", YES), ("m?", YES), ("e(", YES), ("m!", YES), ("e!", NO)],
    "a claim is for good": [("m!", YES), ("e!", NO), ("e?", NO), ("m!", YES), ("m?", YES)],
    "a question claims nothing": [("m?", YES), ("e!", YES)],
}


@pytest.fixture
def thread() -> TrainingThread:
    return TrainingThread()


@pytest.fixture
def other() -> Iterator[Any]:
    """A thread that lives as long as the test."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda work: pool.submit(work).result()


@pytest.mark.parametrize("questions", QUESTIONS.values(), ids=QUESTIONS)
def test_the_training_thread_is_the_one_with_the_strongest_sign(
    thread: TrainingThread, other: Any, questions: list[tuple[str, bool]]
) -> None:
    on = {"m": lambda work: work(), "o": other, "e": on_another_thread}
    ask = {"?": thread.is_current, "(": lambda: thread.is_current(is_module_call=True), "!": thread.claim}
    is_confirmed = False
    for (who, what), answer in questions:
        assert on[who](ask[what]) is answer
        is_confirmed |= what == "!"
        assert thread.is_confirmed or not is_confirmed or answer


def test_what_a_thread_was_in_is_forgotten_with_it_alone(thread: TrainingThread, other: Any) -> None:
    thread.is_current()
    thread.busy_with = FORWARD
    assert thread.claim()
    assert thread.busy_with == FORWARD
    thread.reset()
    assert (thread.busy_with, thread.is_confirmed) == (FREE, False)
    thread.busy_with = FETCH
    assert other(thread.claim)
    assert thread.busy_with == FREE


def test_a_fetch_hides_what_is_called_in_it_and_blocks_no_training_elsewhere(thread: TrainingThread) -> None:
    thread.is_current()
    fetch = thread.fetch_begins()
    assert not thread.is_current(is_module_call=True)
    assert not thread.claim()
    assert on_another_thread(lambda: (thread.busy_with, thread.claim())) == (FREE, True)
    thread.busy_with = FORWARD
    thread.fetch_ends(fetch)
    assert thread.busy_with == FORWARD
    assert thread.claim()  # the other one has ended
    fetch = thread.fetch_begins()
    assert thread.busy_with == FETCH
    thread.fetch_ends(fetch)
    assert thread.busy_with == FREE
