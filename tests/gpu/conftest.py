"""Tests on a real accelerator; each starts its own program, and is skipped without an accelerator."""

import pytest


@pytest.fixture(autouse=True)
def kind() -> str:
    """The kind of the accelerator, such as cuda; skips the test where torch finds none."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "accelerator"):
        pytest.skip(f"torch {torch.__version__} has no torch.accelerator")
    found = torch.accelerator.current_accelerator()
    if found is None or not torch.accelerator.is_available():
        pytest.skip("torch finds no accelerator on this machine")
    return str(found.type)
