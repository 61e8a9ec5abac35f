"""What a watch says and does where something goes wrong, at the end of a run, and in a child."""

import logging
import sys
import threading
import types

import pytest
import torch

from tests.support.instrumented import Watched
from training_profiler.instrumentation import instrumentation as instrumentation_module
from training_profiler.instrumentation.instrumentation import PATCHES
from training_profiler.instrumentation.training_thread import FORWARD, FREE

every_seam = pytest.mark.parametrize("name", PATCHES)


def on_another_thread(work):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


@pytest.mark.parametrize("method", ["call_begins", "call_ends", "backward_begins", "backward_ends", "update_begins"])
def test_an_error_of_ours_takes_out_all_seams_and_the_training_goes_on(seen, monkeypatch, caplog, method):
    def fails(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(seen.watch.ready(), method, fails)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.weight.detach().clone()
    with caplog.at_level(logging.WARNING, "training_profiler"):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert not torch.equal(model.weight, weight)
    assert seen.watch.detector is None
    assert [record.getMessage() for record in caplog.records] == [
        "seams switched off, the training goes on: ZeroDivisionError: ours"
    ]
    assert seen.watch.notes()[0] == "not watched: all seams (ZeroDivisionError: ours)"
    assert seen.run.recorder.watermark_ns is None


@pytest.mark.parametrize("method", ["fetch_begins", "fetch_ends", "fetch_fails"])
def test_an_error_of_ours_loses_no_batch(seen, monkeypatch, method):
    def fails(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(seen.watch.ready(), method, fails)
    assert list(torch.utils.data.DataLoader([1.0, 2.0])) == [torch.tensor([1.0]), torch.tensor([2.0])]
    assert seen.watch.detector is None


def test_an_error_of_ours_loses_no_checkpoint(seen, monkeypatch, tmp_path):
    def fails():
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(seen.watch.ready().phases, "ends", fails)
    torch.save([1], tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt") == [1]
    assert "all seams" in seen.watch.missing


def test_an_error_at_the_end_leaves_nothing_behind(seen, monkeypatch):
    def fails():
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(seen.watch.ready(), "finish", fails)
    with pytest.raises(ZeroDivisionError):
        seen.watch.finish()
    assert seen.run.recorder.watermark_ns is None
    assert seen.watch.detector is None


def train(steps=2):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_training_that_was_seen_needs_no_words(seen):
    train()
    assert seen.watch.is_training
    seen.watch.finish()
    assert seen.watch.has_trained
    assert seen.watch.notes() == []


def test_gradients_without_updates_are_said_to_make_no_steps(seen):
    model = torch.nn.Linear(2, 1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    seen.watch.finish()
    assert seen.watch.has_trained
    (note,) = seen.watch.notes()
    assert note.startswith("steps could not be recognised: gradients were computed 3 times")


def test_gradients_without_updates_are_fine_where_steps_come_by_hand(seen):
    torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
    seen.watch.steps_come_by_hand()
    seen.watch.finish()
    assert seen.watch.notes() == []


def test_without_gradients_it_says_how_many_forward_passes_there_were(seen):
    with torch.no_grad():
        for _ in range(3):
            torch.nn.Linear(2, 1)(torch.ones(1, 2))
    seen.watch.finish()
    assert not seen.watch.has_trained
    assert seen.watch.why_nothing() == (
        "no gradient was computed, so there was no training (3 forward passes without one)"
    )


def test_without_any_event_it_says_that_no_training_was_seen(seen):
    seen.watch.finish()
    assert "no training was seen" in seen.watch.why_nothing()
    assert seen.begun == 0


def test_what_the_program_puts_in_the_place_of_a_seam_is_said(seen, monkeypatch):
    ours = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *args, **kwargs: ours(*args, **kwargs))
    train()
    seen.watch.finish()
    assert seen.watch.notes() == ["the program has put something of its own in the place of the seam 'backward pass'"]
    monkeypatch.undo()
    torch.autograd.backward = ours.__wrapped__  # theirs stayed, and held on to ours


def test_a_hook_for_uncaught_exceptions_of_the_program_is_not_worth_a_word(seen, monkeypatch):
    ours = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", lambda *error: ours(*error))
    train()
    seen.watch.finish()
    assert seen.watch.notes() == []
    monkeypatch.undo()
    sys.excepthook = sys.__excepthook__


def test_a_child_begins_anew_whatever_its_parent_was_inside_of(seen):
    watch = seen.watch
    train()
    watch.training_thread.busy = FORWARD
    watch.in_child()
    assert (watch.training_thread.thread, watch.training_thread.is_confirmed, watch.training_thread.busy) == (
        0,
        False,
        FREE,
    )
    assert watch.detector is None
    assert not watch.is_training
    assert seen.run.recorder.watermark_ns is None
    assert on_another_thread(watch.training) is not None


def test_a_watch_is_not_tracing_where_torch_cannot_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._guards", types.ModuleType("torch._guards"))
    assert not instrumentation_module._tracing_test()()


def test_what_is_held_back_begins_with_the_first_event():
    seen = Watched()
    seen.watch.install(torch)
    try:
        seen.clock.advance(5)
        before_ns = seen.clock.now_ns
        seen.watch.ready()
        assert before_ns < seen.run.recorder.watermark_ns < seen.clock()
    finally:
        seen.watch.uninstall()
