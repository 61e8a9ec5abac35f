"""Masking of what looks like a secret in a command line."""

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
_NAME: Final = re.compile(
    r"(pass(word|wd|phrase)?|pwd|secret|token|credential|auth(orization)?|api[-_.]?key|access[-_.]?key|private[-_.]?key"
    r"|bearer|session[-_.]?id|cookie|signature|(^|[-_.])(key|pw|sas)$)",
    re.IGNORECASE,
)
_KNOWN: Final = re.compile(
    r"(hf_\w{10,}|gh[pousr]_\w{10,}|github_pat_\w+|glpat-[\w-]+|sk-[\w-]{10,}|xox[a-z]-[\w-]+|AKIA[A-Z0-9]{12,}"
    r"|ya29\.[\w-]+|AIza[\w-]{20,}|eyJ[\w-]+\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]+-----.*)",
    re.DOTALL,
)
_IN_ADDRESS: Final = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
# Long, without a slash or dot that would make it a path or a module, and of letters and digits mixed.
_RANDOM: Final = re.compile(r"(?<![\w/.-])(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[\w-]{32,}(?![\w/.-])")


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with values that look like secrets replaced by ``***``."""
    shown, hide_next = [], False
    for word in words:
        if hide_next and not word.startswith("--"):
            shown.append(MASK)
            hide_next = False
            continue
        name, equals, value = word.partition("=")
        names_secret = bool(_NAME.search(name)) and (bool(equals) or word.startswith("-"))
        hide_next = names_secret and not equals
        shown.append(f"{name}={MASK}" if names_secret and equals and value else _mask_within(word))
    return shown


def _mask_within(word: str) -> str:
    word = _IN_ADDRESS.sub(MASK, word)
    word = _BEARER.sub(lambda match: f"{match[1]} {MASK}", word)
    word = re.sub(
        r"(?i)([?&;,\s{\"'](?:[\w.-]*(?:token|secret|passw(?:or)?d|api[-_]?key|signature|auth))[\"']?\s*[=:]\s*[\"']?)"
        r"[^&\s\"',;}]+",
        rf"\1{MASK}",
        word,
    )
    return _RANDOM.sub(MASK, _KNOWN.sub(MASK, word))
