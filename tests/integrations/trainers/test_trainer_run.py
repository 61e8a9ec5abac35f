"""What the integrations load, and when."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integrations
OFF = """
import sys
from training_profiler.integrations.trainer_run import TrainerRun
run = TrainerRun("framework", {"log_every": "wrong"})
run.begin()
run.log(print, is_last=True)
run.end()
assert not {"torch", "numpy", "training_profiler.api"} & set(sys.modules)
"""


def test_off_loads_neither_torch_nor_the_profiler() -> None:
    environment = {"RECTIFIED_FLOW_PROFILE": "0"}
    done = subprocess.run([sys.executable, "-c", OFF], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_frameworks_are_reachable_by_their_names() -> None:
    import training_profiler

    ignite = pytest.importorskip("ignite")
    assert training_profiler.integrations.ignite.Engine is ignite.engine.Engine
    with pytest.raises(AttributeError, match="hugging_face, ignite, keras, lightning"):
        _ = training_profiler.integrations.fastai
