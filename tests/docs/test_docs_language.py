"""The documentation uses the words of the field, in lines that fit a screen."""

import re
from pathlib import Path

from tools.check_words import DOCS_WORDS, WORDS, compiled

ROOT = Path(__file__).parents[2]
GENERATED = "commands.md"  # its sentences come from the code
PAGES = [
    ROOT / "README.md",
    ROOT / "PROFILING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != GENERATED),
]
WIDEST = 130


def prose(page: Path) -> list[str]:
    """Return the lines of a page without code and link targets; lines of code blocks are empty."""
    lines, in_code = [], False
    for line in page.read_text("utf-8").splitlines():
        is_fence = line.startswith("```")
        in_code ^= is_fence
        hidden = is_fence or in_code or line.startswith("    ")
        lines.append("" if hidden else re.sub(r"`[^`]*`|\]\([^)]*\)", "", line))
    return lines


def test_pages_avoid_listed_words():
    patterns = compiled(WORDS + DOCS_WORDS)
    hits = [
        f"{page.relative_to(ROOT)}:{number}: {match.group()}"
        for page in PAGES
        for number, line in enumerate(prose(page), 1)
        for pattern, _ in patterns
        for match in pattern.finditer(line)
    ]
    assert hits == []


def test_lines_of_prose_and_tables_fit_a_screen():
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, (line, kept) in enumerate(zip(page.read_text("utf-8").splitlines(), prose(page), strict=True), 1)
        if kept and len(line) > WIDEST
    ]
    assert long == []
