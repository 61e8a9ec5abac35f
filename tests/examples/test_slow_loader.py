"""The example that waits for its data: the report names the line that draws, also where workers run it."""

import sys

import pytest

from tests.examples.running import run

PROGRAM = (sys.executable, "-m", "training_profiler", "run", "-m", "examples.slow_loader")


@pytest.mark.programs
def test_the_line_that_draws_is_named(tmp_path):
    done = run("slow_loader", tmp_path, "--pictures", "160", profile="1", program=PROGRAM)
    (finding,) = (each for each in done.report["findings"] if each["code"] == "data-loading-bound")
    assert "slow_loader.py:" in finding["finding"]
    assert " draw" in finding["actions"][-1]["text"]
