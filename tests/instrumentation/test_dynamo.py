import sys
import types
from pathlib import Path

import pytest

from training_profiler.instrumentation.loop_detection import pending_events
from training_profiler.instrumentation.loop_detection.pending_events import PendingEvents
from training_profiler.instrumentation.patches import dynamo, module_call


@pytest.fixture
def skipped(monkeypatch):
    """The code that a fake dynamo is asked to skip."""
    codes = []
    use_torch(monkeypatch, skip_code=codes.append)
    dynamo.hide_from_dynamo()
    return codes


def use_torch(monkeypatch, **functions):
    """Load a torch whose private module has these functions."""
    private = types.SimpleNamespace(eval_frame=types.SimpleNamespace(**functions))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(_C=types.SimpleNamespace(_dynamo=private)))


def test_functions_and_methods_of_the_package_alone_are_skipped(skipped):
    assert PendingEvents.record.__code__ in skipped
    assert module_call.install.__code__ in skipped
    inner = {code.co_name for code in skipped if code.co_filename == module_call.__file__}
    assert {"install", "outermost", "ends", "__call__", "call_as_torch"} <= inner
    folder = Path(pending_events.__file__).parents[2]
    assert {code.co_filename for code in skipped if folder not in Path(code.co_filename).parents} == set()


def test_dynamo_without_its_private_functions_is_left_alone(monkeypatch):
    use_torch(monkeypatch)
    dynamo.hide_from_dynamo()
