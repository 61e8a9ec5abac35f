"""What torch traces, scripts, exports and compiles in an unmodified training is the same as without the profiler."""

from pathlib import Path

import pytest

from tests.system.traced_training import assert_traced_as_alone

QUICK = ("jit.trace", "make_fx")  # of those that tests/instrumentation/test_tracers.py compares
SLOW = (
    *("jit.script, gradients", "counted", "jit.save", "jit.script", "transformed", "prepared"),
    *("export, strict", "export, decomposed", "compile, aot_eager"),
)


@pytest.mark.parametrize("way", [*QUICK, *(pytest.param(way, marks=pytest.mark.programs) for way in SLOW)])
def test_a_model_is_traced_as_without_the_profiler(tmp_path: Path, way: str) -> None:
    assert_traced_as_alone(tmp_path, way)
