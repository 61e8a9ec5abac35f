"""The word list of ``make lint``."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "check_words.py"


def check(*paths: Path) -> tuple[int, str]:
    """Run the check on files and return its exit status and output."""
    done = subprocess.run([sys.executable, TOOL, *paths], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.skipif(not TOOL.exists(), reason="an installed package has no tools")
def test_hit_is_printed_with_its_line_and_a_better_word(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("A hook.\nA " + "sea" + "m and a " + "By" + "_hand section.\n")
    status, printed = check(path)
    assert status == 1
    assert printed.splitlines()[:2] == [
        f"{path}:2: '{'sea' + 'm'}'; better: patch, hook",
        f"{path}:2: '{'By' + '_hand'}'; better: manual, manually",
    ]


@pytest.mark.parametrize("text", ["seamless", "There is no other.", "The tapestry retells it.", "bookshop"])
def test_longer_words_and_plain_english_pass(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text + "\n")
    assert check(path) == (0, "")


def test_changelog_is_exempt() -> None:
    assert check(TOOL.parents[1] / "CHANGELOG.md") == (0, "")
