"""Texts that are kept as files. ``REWRITE_GOLDEN=1 make test TESTS=...`` writes those of these tests again."""

import os
from collections.abc import Callable
from pathlib import Path

ANSWERS = Path(__file__).parents[1] / "golden" / "answers"


def assert_golden(path: Path, text: str) -> None:
    """Check that the file holds ``text``, or have it hold that."""
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def assert_answers(name: str, answer: Callable[[str], object]) -> None:
    """Check the answer to each line of a file of ANSWERS, which stands below it; "#" begins a heading."""
    path = ANSWERS / f"{name}.txt"
    given = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("    ")]
    lines = (line if line.startswith("#") else f"{line}\n    {answer(line)}".rstrip() for line in given)
    assert_golden(path, "\n".join(lines) + "\n")
