"""Tracebacks of the program's errors that passed through patches."""

import sys
import traceback

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.instrumentation.patches import calls
from training_profiler.instrumentation.patching import Patches

INPUTS = torch.ones(4, 2)


@pytest.fixture
def model():
    return nn.Linear(2, 1)


class Broken(TensorDataset):
    def __getitem__(self, index):
        raise OSError("disk")


class BrokenGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        raise OSError("gradient")


FAILURES = {
    "forward pass": lambda model: model(torch.ones(1, 7)),
    "fetch": lambda model: next(iter(DataLoader(Broken(INPUTS)))),
    "backward pass": lambda model: BrokenGradient.apply(model(INPUTS)).sum().backward(),
    "checkpoint": lambda model: torch.save([1], "no/such/folder/model.pt"),
    "update": lambda model: torch.optim.LBFGS(model.parameters()).step(lambda: 1 / 0),
    "gradient norm": lambda model: nn.utils.clip_grad_norm_(7, 1.0),
    "transfer": lambda model: INPUTS.to("no such device"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_printed_traceback_has_no_frames_of_ours(instrumented, model, what):
    instrumented.context.current_detector()
    with pytest.raises(Exception) as raised:  # noqa: PT011
        FAILURES[what](model)
    names = names_shown(raised.value)
    assert names[:2] == [__name__, __name__]
    assert not [name for name in names if name.startswith("training_profiler")]


@pytest.mark.parametrize("what", FAILURES)
def test_program_finds_no_frames_of_ours(instrumented, model, what):
    instrumented.context.current_detector()
    try:
        FAILURES[what](model)
    except Exception:
        shown = traceback.format_exc()
    assert "training_profiler/instrumentation" not in shown
    assert "frozen importlib" not in shown


def names_shown(error):
    """Return the modules of the frames printed for an uncaught exception."""
    patches = Patches()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "__excepthook__", lambda *error: None)
        monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
        calls.install_excepthook(patches, None, torch)
        sys.excepthook(type(error), error, error.__traceback__)
        patches.undo()
    return [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
