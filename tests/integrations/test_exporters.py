"""Exporters that need packages of their own export what they export without the profiler."""

from pathlib import Path

import pytest

from tests.system.traced_training import assert_traced_as_alone

pytestmark = pytest.mark.integrations
NEEDED = {
    "tensorboard": ("tensorboard",),
    "onnx": ("onnx", "onnxscript"),
    "onnx by scripts": ("onnx",),
}


@pytest.mark.parametrize("way", NEEDED)
def test_a_model_is_exported_as_without_the_profiler(tmp_path: Path, way: str) -> None:
    for name in NEEDED[way]:
        pytest.importorskip(name, reason=f"{name} is not installed")
    assert_traced_as_alone(tmp_path, way)
