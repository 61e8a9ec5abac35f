import logging
import sys

import pytest
import torch

from tests.support.instrumented import OPTIMIZER, owners, state_of_torch
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.instrumentation import PATCHES, Instrumentation

every_patch = pytest.mark.parametrize("name", PATCHES)


def touched_by(patches):
    return [one.owner for one in patches._replaced]


@every_patch
def test_uninstalling_a_patch_restores_torch_exactly(name):
    before = state_of_torch()
    instrumentation = Instrumentation(Recorder(), lambda: None)
    patches = Patches()
    PATCHES[name](patches, context=instrumentation.context, torch=torch)
    changed = state_of_torch() != before
    # Classes of other tests may replace the call of a module.
    touched = [
        each for each in touched_by(patches) if not (isinstance(each, type) and issubclass(each, torch.nn.Module))
    ]
    known = all(owner is sys or owner in owners() for owner in touched)
    patches.undo()
    assert changed
    assert known
    assert state_of_torch() == before


def test_two_instrumentations_restore_torch_exactly():
    before = state_of_torch()
    first, second = Instrumentation(Recorder(), lambda: None), Instrumentation(Recorder(), lambda: None)
    for each in (first, second):
        each.install(torch)
        assert each.missing == {}
    for each in (second, first, first):
        each.uninstall()
    assert state_of_torch() == before


def test_patched_functions_keep_their_names(instrumented):
    assert torch.save.__name__ == "save"
    assert torch.save.__module__ == "torch.serialization"
    assert torch.Tensor.to.__name__ == "to"
    assert torch.autograd.backward.__doc__.startswith("Compute")
    assert torch.save is torch.serialization.save


def test_half_installed_patch_is_undone(monkeypatch):
    monkeypatch.delattr(OPTIMIZER, "register_optimizer_step_post_hook")
    before = state_of_torch()
    instrumentation = Instrumentation(Recorder(), lambda: None)
    try:
        instrumentation.install(torch)
        hooks = dict(OPTIMIZER._global_optimizer_pre_hooks)
    finally:
        instrumentation.uninstall()
    assert set(instrumentation.missing) == {"optimizer"}
    assert hooks == {}
    assert state_of_torch() == before


def test_session_starts_at_the_first_event(instrumented):
    assert instrumented.sessions == 0
    assert instrumented.context.detector is None
    assert not instrumented.instrumentation.is_training
    assert instrumented.context.current_detector() is instrumented.context.detector
    assert instrumented.sessions == 1
    assert instrumented.context.current_detector() is instrumented.context.detector
    assert instrumented.sessions == 1


def test_without_a_session_all_patches_are_removed():
    before = state_of_torch()
    instrumentation = Instrumentation(Recorder(), lambda: None)
    instrumentation.install(torch)
    try:
        assert instrumentation.context.current_detector() is None
        assert state_of_torch() == before
        assert instrumentation.context.confirm_training() is None
    finally:
        instrumentation.uninstall()


def test_failing_session_start_is_logged_once(caplog):
    def begin():
        raise RuntimeError("can't start new thread")

    before = state_of_torch()
    instrumentation = Instrumentation(Recorder(), begin)
    instrumentation.install(torch)
    try:
        with caplog.at_level(logging.WARNING, "training_profiler"):
            output = torch.nn.Linear(2, 1)(torch.ones(1, 2))
            output.sum().backward()
    finally:
        instrumentation.uninstall()
    assert state_of_torch() == before
    assert len(caplog.records) == 1
    assert (
        instrumentation.why_nothing()
        == "the instrumentation was disabled after an error (RuntimeError: can't start new thread)"
    )
