"""Lists words that readers stumble over, each with a better one: ``python tools/check_words.py [FILE ...]``.

Reads the tracked Python, Markdown and TOML files and the Makefile, except the changelog, or the files given. Exits with
1 if it found a word. A word that belongs to a public contract, such as a key of report.json, goes into ``CONTRACTS``.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
CHECKED: Final = ("*.py", "*.md", "*.toml", "Makefile")
# The changelog quotes old names. This file lists the words.
EXEMPT: Final = ("CHANGELOG.md", "tools/check_words.py")
# Text copied from elsewhere.
VENDORED: Final[tuple[str, ...]] = ()
# Keys of files that earlier versions wrote; they cannot change.
CONTRACTS: Final = ('"told_ns"', "after_in_child=")


class Word(NamedTuple):
    """A word to avoid: its pattern and what to write in its place."""

    pattern: str
    better: str


# Patterns match whole words in any case. An underscore ends a word, so identifiers are checked as well.
WORDS: Final = (
    Word(r"seams?", "patch, hook"),
    Word(r"told", "received, reported, known"),
    Word(r"tells?|telling", "send, publish, report, show"),
    Word(r"peers", "ranks, RankExchange"),
    Word(r"outlets", "outputs"),
    Word(r"upkeep", "health, profiler health"),
    Word(r"books|booked|booking", "pipeline; attribute, record"),
    Word(r"tape", "pending events"),
    Word(r"whence", "from which"),
    Word(r"shall", "should, must, will"),
    Word(r"nobody|somebody|anybody", "name who: the user, another library, no rank"),
    Word(r"such[ _]that", "so that"),
    Word(r"by[ _]hand", "manual, manually"),
    Word(r"(?<!there[ _])is[ _]no(?=[ _][a-z])(?![ _](?:longer|more|need|such)\b)", "is not a"),
    Word(r"that[ _]is[ _]all", "leave it out"),
    Word(r"looks? (?:at the machine|that|whether)|looked whether", "sample, check"),
    Word(r"anew", "again; restart"),
    Word(r"(?<!after_fork_)in_child|fall_silent", "after_fork_in_child"),
    Word(r"undisturbed", "unaffected"),
    Word(r"the one that|those that have been", "name the thing"),
    Word(r"what (?:is|was) (?:seen|said|told|known)", "name the thing as the subject"),
)

# Code may use these words. ``tests/docs/test_docs_language.py`` finds them in the documentation.
DOCS_WORDS: Final = (
    Word(r"book", "attribute, record"),
    Word(r"looks?|looked", "check, inspect, appear"),
    Word(r"worth", "potential saving, useful"),
    Word(r"remed(?:y|ies)", "fix"),
    Word(r"heard", "received"),
    Word(r"sees|seen", "find, record, measure"),
    Word(r"are no parts?", "are not part"),
    Word(r"(?:that|those)[ _]of", "name the thing"),
)


class Hit(NamedTuple):
    """A place with a word to avoid."""

    path: Path
    line: int
    word: str
    better: str


def compiled(words: tuple[Word, ...]) -> list[tuple[re.Pattern[str], str]]:
    """Return each pattern, bounded by anything but letters, with the better word."""
    return [(re.compile(rf"(?<![a-z])(?:{word.pattern})(?![a-z])", re.IGNORECASE), word.better) for word in words]


def hits_in(path: Path, text: str) -> Iterator[Hit]:
    """Yield the words to avoid, in their order in the text."""
    patterns = compiled(WORDS)
    for number, line in enumerate(text.splitlines(), start=1):
        for contract in CONTRACTS:
            line = line.replace(contract, "")
        for pattern, better in patterns:
            for match in pattern.finditer(line):
                yield Hit(path, number, match.group().strip(), better)


def tracked_files() -> list[Path]:
    """Return the files that are checked when none are given."""
    listed = subprocess.run(["git", "ls-files", *CHECKED], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines()]


def is_checked(path: Path) -> bool:
    """Return whether the file exists and is not exempt."""
    name = path.resolve().relative_to(ROOT).as_posix() if path.resolve().is_relative_to(ROOT) else path.name
    return path.is_file() and name not in EXEMPT and not name.startswith(VENDORED)


def main(words: list[str]) -> int:
    """Print a line for each hit and return 1, or 0 if there is none."""
    paths = [path for path in ([Path(word) for word in words] or tracked_files()) if is_checked(path)]
    hits = [hit for path in paths for hit in hits_in(path, path.read_text(encoding="utf-8"))]
    for hit in hits:
        place = hit.path.relative_to(ROOT) if hit.path.is_relative_to(ROOT) else hit.path
        print(f"{place}:{hit.line}: {hit.word!r}; better: {hit.better}")
    if hits:
        print(f"{len(hits)} words in {len({hit.path for hit in hits})} files; CONTRIBUTING.md has the rules")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
