"""Instrumentation after errors, at the end of a run, and in a forked child."""

import logging
import sys
import types

import pytest
import torch

from tests.support.instrumented import InstrumentedTorch, on_another_thread
from training_profiler.instrumentation.context import FORWARD, FREE, PatchContext
from training_profiler.recording.recorder import Recorder


def fails(*args):
    raise ZeroDivisionError("ours")


@pytest.mark.parametrize("method", ["call_begins", "call_ends", "backward_begins", "backward_ends", "update_begins"])
def test_error_of_ours_removes_all_patches_and_training_continues(instrumented, monkeypatch, caplog, method):
    monkeypatch.setattr(instrumented.context.current_detector(), method, fails)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.weight.detach().clone()
    with caplog.at_level(logging.WARNING, "training_profiler"):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert not torch.equal(model.weight, weight)
    assert instrumented.context.detector is None
    assert [record.getMessage() for record in caplog.records] == [
        "instrumentation disabled, the training goes on: ZeroDivisionError: ours"
    ]
    assert instrumented.instrumentation.notes()[0] == "not instrumented: all patches (ZeroDivisionError: ours)"
    assert instrumented.run.recorder.watermark_ns is None


@pytest.mark.parametrize("method", ["fetch_begins", "fetch_ends", "fetch_fails"])
def test_error_of_ours_loses_no_batch(instrumented, monkeypatch, method):
    monkeypatch.setattr(instrumented.context.current_detector(), method, fails)
    assert list(torch.utils.data.DataLoader([1.0, 2.0])) == [torch.tensor([1.0]), torch.tensor([2.0])]
    assert instrumented.context.detector is None


def test_error_of_ours_loses_no_checkpoint(instrumented, monkeypatch, tmp_path):
    monkeypatch.setattr(instrumented.context.current_detector().phases, "end_evaluation", fails)
    torch.save([1], tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt") == [1]
    assert "all patches" in instrumented.instrumentation.missing


def test_error_at_close_leaves_nothing_behind(instrumented, monkeypatch):
    monkeypatch.setattr(instrumented.context.current_detector(), "close", fails)
    with pytest.raises(ZeroDivisionError):
        instrumented.instrumentation.close()
    assert instrumented.run.recorder.watermark_ns is None
    assert instrumented.context.detector is None


def train(steps=2):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("is_manual", [False, True])
def test_gradients_without_updates_are_noted_unless_the_program_marks_its_steps(instrumented, is_manual):
    model = torch.nn.Linear(2, 1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    if is_manual:
        instrumented.instrumentation.use_manual_steps()
    instrumented.instrumentation.close()
    assert instrumented.instrumentation.has_trained
    found = [note.partition(" times")[0] for note in instrumented.instrumentation.notes()]
    assert found == ["steps could not be detected: gradients were computed 3"] * (not is_manual)


def test_what_the_last_evaluation_did_is_known_after_the_end(instrumented):
    model = train()
    instrumented.instrumentation.pop_work()
    model.eval()
    for batch in torch.utils.data.DataLoader(torch.ones(3, 2)):
        model(batch)
    instrumented.instrumentation.close()
    work = instrumented.instrumentation.pop_work()
    assert work.with_grad_count == 3
    assert [elements for _, elements in work.input_sizes] == [2, 2, 2]
    assert instrumented.instrumentation.pop_work().with_grad_count == 0


def test_without_gradients_the_reason_counts_forward_passes(instrumented):
    with torch.no_grad():
        for _ in range(3):
            torch.nn.Linear(2, 1)(torch.ones(1, 2))
    instrumented.instrumentation.close()
    assert not instrumented.instrumentation.has_trained
    assert instrumented.instrumentation.why_nothing() == (
        "no gradient was computed, so there was no training (3 forward passes without one)"
    )


def test_without_events_the_reason_is_missing_training(instrumented):
    instrumented.instrumentation.close()
    assert "no training was found" in instrumented.instrumentation.why_nothing()
    assert instrumented.sessions == 0


def test_patch_replaced_by_the_program_is_noted(instrumented, monkeypatch):
    ours = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *args, **kwargs: ours(*args, **kwargs))
    train()
    instrumented.instrumentation.close()
    assert instrumented.instrumentation.notes() == ["another library or the program replaced the 'backward pass' patch"]
    monkeypatch.undo()
    torch.autograd.backward = ours.__wrapped__  # the program's function stayed, and referred to ours


def test_replaced_excepthook_is_not_noted(instrumented, monkeypatch):
    ours = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", lambda *error: ours(*error))
    train()
    instrumented.instrumentation.close()
    assert instrumented.instrumentation.notes() == []
    monkeypatch.undo()
    sys.excepthook = sys.__excepthook__


def test_forked_child_starts_again(instrumented):
    instrumentation = instrumented.instrumentation
    train()
    instrumentation.context.training_thread.busy_with = FORWARD
    instrumentation.after_fork_in_child()
    thread = instrumentation.context.training_thread
    assert (thread.ident, thread.is_confirmed, thread.busy_with) == (0, False, FREE)
    assert instrumentation.context.detector is None
    assert not instrumentation.is_training
    assert instrumented.run.recorder.watermark_ns is None
    assert on_another_thread(instrumentation.context.confirm_training) is not None


def test_a_torch_without_tracing_context_is_never_tracing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._guards", types.ModuleType("torch._guards"))
    context = PatchContext(Recorder(), lambda: None, lambda error: None)
    context.use_compiler_of(torch)
    assert not context.is_tracing()


def test_watermark_starts_at_the_first_event():
    instrumented = InstrumentedTorch()
    instrumented.instrumentation.install(torch)
    try:
        instrumented.clock.advance(5)
        before_ns = instrumented.clock.now_ns
        instrumented.context.current_detector()
        assert before_ns < instrumented.run.recorder.watermark_ns < instrumented.clock()
    finally:
        instrumented.instrumentation.uninstall()


def train_steps(instrumented, model, optimizer, steps=3):
    for _ in range(steps):
        loss = model(torch.randn(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    instrumented.instrumentation.close()


def test_a_model_that_is_called_while_it_is_built_begins_no_step(instrumented):
    model = torch.nn.Linear(4, 1)
    model(torch.randn(2, 4))
    instrumented.clock.advance(100)
    train_steps(instrumented, model, torch.optim.SGD(model.parameters(), lr=0.1))
    totals = instrumented.run.totals()
    assert totals.steps.count == 3
    assert totals.steps.total_ns < 1e9
    assert totals.loop_begin_ns - totals.begin_ns > 100e9
    assert totals.sections.self_ns.sum() == totals.wall_ns


def test_an_optimizer_made_between_a_loss_and_its_gradient_begins_no_other_step(instrumented):
    model = torch.nn.Linear(4, 1)
    loss = model(torch.randn(2, 4)).sum()
    instrumented.clock.advance(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    optimizer.step()
    train_steps(instrumented, model, optimizer, steps=2)
    totals = instrumented.run.totals()
    assert totals.steps.count == 3
    assert totals.steps.total_ns > 1e9
