"""What torch traces, scripts, exports and compiles in an unmodified training is the same as without the profiler."""

from pathlib import Path

import pytest

from tests.system.traced_training import assert_traced_as_alone

QUICK = ("jit.trace", "make_fx")  # the others of tests/instrumentation/test_tracers.py, in a program
SLOW = (
    *("jit.trace, a module", "jit.script, gradients", "fx", "fake tensors", "counted"),
    *("jit.save", "jit.freeze", "jit.script", "transformed", "prepared"),
    *("export", "export, strict", "export, decomposed", "compile, eager", "compile, aot_eager"),
)


@pytest.mark.parametrize("way", [*QUICK, *(pytest.param(way, marks=pytest.mark.programs) for way in SLOW)])
def test_a_model_is_traced_as_without_the_profiler(tmp_path: Path, way: str) -> None:
    assert_traced_as_alone(tmp_path, way)
