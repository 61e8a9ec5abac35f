"""The documentation uses the words of the field, in lines that fit a screen."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = "commands.md"  # its sentences are those of the code
PAGES = [
    ROOT / "README.md",
    ROOT / "PROFILING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != GENERATED),
]
WIDEST = 130
WORDS = (
    r"seams?|tell(s|ing)?|told|tape|books?|booked|peers|outlets|upkeep|looks?|looked|worth|remed(y|ies)|whence|shall|"
    r"nobody|somebody|anybody|by hand|such that|heard|sees|seen|(?<!there )is no(?! longer)|are no parts?"
)


def prose(page: Path) -> list[str]:
    """Return the lines of a page without code and targets of links; those of code blocks are empty."""
    lines, in_code = [], False
    for line in page.read_text("utf-8").splitlines():
        is_fence = line.startswith("```")
        in_code ^= is_fence
        hidden = is_fence or in_code or line.startswith("    ")
        lines.append("" if hidden else re.sub(r"`[^`]*`|\]\([^)]*\)", "", line))
    return lines


def test_pages_have_no_private_words():
    pattern = re.compile(rf"\b({WORDS})\b", re.I)
    found = [
        f"{page.relative_to(ROOT)}:{number}: {match.group()}"
        for page in PAGES
        for number, line in enumerate(prose(page), 1)
        for match in pattern.finditer(line)
    ]
    assert found == []


def test_lines_of_prose_and_tables_fit_a_screen():
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, (line, kept) in enumerate(zip(page.read_text("utf-8").splitlines(), prose(page), strict=True), 1)
        if kept and len(line) > WIDEST
    ]
    assert long == []
