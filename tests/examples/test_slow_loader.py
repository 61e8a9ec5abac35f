"""The example that waits for its data: the report names the line that draws, also where workers run it."""

import pytest

from tests.examples.running import run


@pytest.mark.programs
def test_the_line_that_draws_is_named(tmp_path):
    done = run("slow_loader", tmp_path, "--pictures", "160", profile="1")
    (finding,) = (each for each in done.report["findings"] if each["code"] == "data-loading-bound")
    assert "slow_loader.py:" in finding["finding"]
    assert " draw" in finding["actions"][-1]["text"]
