"""Masking of what looks like a secret in a command line."""

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
# Names are compared in lower case with "-" between their words: apiKey and API_KEY are api-key.
_NAME: Final = re.compile(
    r"pass(word|wd|phrase)|secret|credential|(api|access|private|account|storage|signing|encryption)-?key"
    r"|(^|-)(pwd|pw|auth|authorization|bearer|cookies?|sas|session-id)(-|$)|(access|api|auth|refresh)-?token"
    r"|token\d*$|signature$|(^|-)key$"
)
# What trainings call tokens and keys that are none: --pad-token, --sort-key.
_HARMLESS_NAME: Final = re.compile(
    r"(^|-)(pad|eos|bos|unk|mask|sep|cls|class|special|stop|start|end|image|prompt|per|max|num)-token$"
    r"|(^|-)(sort|order|group|image|label|text|caption|data|batch|metric|monitor)-key$"
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
# What run names and options are made of: words, numbers, resnet50, lr1e, 4x8.
_SPOKEN: Final = re.compile(r"[A-Za-z]{0,20}\d{0,8}[a-z]?|\d{1,8}[A-Za-z]{1,20}|\d{1,4}[A-Za-z]\d{1,4}")
_PAIR: Final = re.compile(r"(?<![\w.-])([\w.-]+)[\"']?\s*[=:]\s*[\"']?(?=[^&\s\"',;}])")
_VALUE: Final = re.compile(r"[^&\s\"',;}]+")


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with values that look like secrets replaced by ``***``."""
    shown, hide_next = [], False
    for word in words:
        if hide_next and not word.startswith("--"):
            shown.append(MASK)
            hide_next = False
            continue
        name, equals, value = word.partition("=")
        names_secret = _is_secret(name) and (bool(equals) or word.startswith("-"))
        hide_next = names_secret and not equals
        shown.append(f"{name}={MASK}" if names_secret and equals and value else _mask_within(word))
    return shown


def _is_secret(name: str) -> bool:
    """Return whether ``name`` is what options, variables and fields with a secret in them are called."""
    if "/" in name or " " in name:  # an address or code, whose parts are looked at one by one
        return False
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "-", name).strip("-").lower()
    return bool(_NAME.search(plain)) and not _HARMLESS_NAME.search(plain)


def _mask_within(word: str) -> str:
    word = _IN_ADDRESS.sub(MASK, word)
    word = _BEARER.sub(lambda match: f"{match[1]} {MASK}", word)
    return _RANDOM.sub(_mask_unspoken, _KNOWN.sub(MASK, _mask_pairs(word)))


def _mask_pairs(word: str) -> str:
    """Return ``word`` with the values of names within it masked where the name is a secret's."""
    shown, at = "", 0
    # A value that is no secret itself may hold one, so it is looked through: --url=https://host/?token=...
    while pair := _PAIR.search(word, at):
        shown += word[at : pair.end()]
        at = pair.end()
        value = _VALUE.match(word, at) if _is_secret(pair[1]) else None
        if value:
            shown, at = shown + MASK, value.end()
    return shown + word[at:]


def _mask_unspoken(match: re.Match[str]) -> str:
    parts = re.split("[-_]", match[0])
    return match[0] if all(_SPOKEN.fullmatch(part) for part in parts) else MASK
