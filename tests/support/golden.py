"""Texts that are kept as files. ``REWRITE_GOLDEN=1 make test TESTS=tests/golden`` writes them again."""

import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    """Check that the file holds ``text``, or have it hold that."""
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
