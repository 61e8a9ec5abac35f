"""What a change of the user's makes of a program: a patch, another commit, or other arguments.

Nothing is checked out: a trial sees other contents of the files that differ, in its own copy of the file system.
"""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.base.errors import ProfilerError
from training_profiler.base.text import one_line

SUBMODULE, LINK = 0o160000, 0o120000  # modes of git
ABSENT: Final = 0


class ChangedFile(NamedTuple):
    """A file as a training is to see it."""

    path: str  # absolute
    mode: int  # of git; 0 for a file that is not to be there
    content: bytes = b""  # of a link: where it leads


class Variant(NamedTuple):
    """One form of the user's program; without files and arguments, that of the current folder."""

    name: str
    files: tuple[ChangedFile, ...] = ()
    arguments: tuple[str, ...] = ()  # after the program's own


AS_IT_IS: Final = Variant("as it is")


def of_arguments(text: str) -> Variant:
    """Return the program with more arguments, written as in a shell."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ProfilerError(f"--args {text!r}: {error}; example: --args '--batch-size 64'") from None
    return Variant(text or "no arguments", arguments=words)


def of_commit(name: str, folder: Path) -> Variant:
    """Return the program as a commit has it. What git does not follow, such as data, is as it is here.

    Raises:
        ProfilerError: there is no such commit, or it has another submodule.
    """
    commit, top = _commit(name, folder), _top(folder)
    words = "--raw", "-z", "--no-renames", "--no-abbrev", "--no-ext-diff", "--ignore-submodules=dirty"
    differing = list(_differing(_git(top, "diff", *words, commit)))
    for mode, _, path in differing:
        if mode == SUBMODULE:
            raise ProfilerError(f"{path} is a submodule that {name} has in another state, which a trial cannot show")
    contents = _blobs(top, [digest for mode, digest, _ in differing if mode != ABSENT])
    files = tuple(
        ChangedFile(str(top / path), mode, b"" if mode == ABSENT else next(contents)) for mode, _, path in differing
    )
    return Variant(name, files)


def commits_between(good: str, bad: str, folder: Path) -> list[str]:
    """Return the commits after ``good`` up to ``bad``, the oldest first; of a merge, the side that was merged into.

    Raises:
        ProfilerError: one of them is not a commit, or ``bad`` does not come after ``good``.
    """
    first, last = (_commit(name, folder) for name in (good, bad))
    found = _git(folder, "rev-list", "--first-parent", "--reverse", f"{first}..{last}").decode().split()
    if not found or _git(folder, "merge-base", first, last).decode().strip() != first:
        raise ProfilerError(
            f"{bad} does not come after {good}; example: training-profiler bisect v1.2 HEAD -- train.py"
        )
    return found


def title_of(commit: str, folder: Path) -> str:
    """Return a commit as git shows it in a line: ``3f2a1c9 Resize with PIL (A, 2026-11-20)``."""
    form = "--format=%h %s (%an, %as)"
    return one_line(_git(folder, "log", "-1", form, "--end-of-options", commit).decode("utf-8", "replace").strip())


def of_patch(patch: Path, folder: Path) -> Variant:
    """Return the program of this folder with a patch, as ``git diff`` or ``diff -u`` makes it.

    Its paths begin at this folder, or at the top of its git repository.

    Raises:
        ProfilerError: it cannot be read, or does not apply.
    """
    try:
        text = patch.read_bytes()
    except OSError as error:
        raise ProfilerError(f"{patch} cannot be read: {error.strerror}") from None
    tops, problem = [folder], ""
    with suppress(ProfilerError):
        tops.append(_top(folder))
    for top in dict.fromkeys(tops):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                files = _patched(text, top, Path(scratch))
            except ProfilerError as error:
                problem = problem or str(error)
                continue
        if files:
            return Variant(patch.name, files)
        problem = problem or "it changes no file"
    raise ProfilerError(f"{patch} does not apply to {folder}: {problem}")


def _patched(patch: bytes, top: Path, scratch: Path) -> tuple[ChangedFile, ...]:
    # Each lists one name of a file that moves.
    lists = [_git(scratch, "apply", *reverse, "--numstat", "-z", data=patch) for reverse in ((), ("--reverse",))]
    lines = b"".join(lists).split(b"\0")
    paths = sorted({os.fsdecode(line.split(b"\t", 2)[-1]) for line in lines} - {""})
    for path in paths:
        with suppress(FileNotFoundError):
            os.makedirs(os.path.dirname(scratch / path), exist_ok=True)
            (scratch / path).write_bytes((top / path).read_bytes())
            os.chmod(scratch / path, (top / path).stat().st_mode & 0o777)
    _git(scratch, "apply", "--whitespace=nowarn", data=patch)
    return tuple(_as_changed(top / path, scratch / path) for path in paths)


def _as_changed(path: Path, patched: Path) -> ChangedFile:
    if patched.is_symlink():
        return ChangedFile(str(path), LINK, os.fsencode(os.readlink(patched)))
    if not patched.exists():
        return ChangedFile(str(path), ABSENT)
    return ChangedFile(str(path), patched.stat().st_mode, patched.read_bytes())


def _differing(raw: bytes) -> Iterator[tuple[int, str, str]]:
    """Yield mode, digest and path of each file that a commit has in another state, from ``git diff --raw -z``."""
    words = iter(raw.split(b"\0"))
    for about, path in zip(words, words, strict=False):
        mode, _, digest, *_ = about.removeprefix(b":").split(b" ")
        yield int(mode, 8), digest.decode(), os.fsdecode(path)


def _blobs(top: Path, digests: Sequence[str]) -> Iterator[bytes]:
    """Yield the contents of objects in a repository."""
    left = _git(top, "cat-file", "--batch", data="\n".join(digests).encode()) if digests else b""
    for _ in digests:
        head, _, left = left.partition(b"\n")
        size = int(head.rsplit(b" ", 1)[1])
        yield left[:size]
        left = left[size + 1 :]


def _top(folder: Path) -> Path:
    return Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))


def _commit(name: str, folder: Path) -> str:
    top, words = _top(folder), ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    try:
        return _git(top, *words).decode().strip()
    except ProfilerError:
        raise ProfilerError(f"{name!r} is not a commit of {top}; example: HEAD") from None


def _git(folder: Path, *words: str, data: bytes = b"") -> bytes:
    # It would write a newer index into the user's repository, and take the one around a folder of ours for its own.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if words[0] == "apply":
        environment["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env=environment, input=data, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise ProfilerError("git is not installed, which --patch, --ref and --base need") from None
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise ProfilerError(
            one_line(text.partition("\n")[0].partition(" (allow")[0].removeprefix("fatal: ").removeprefix("error: "))
        )
    return done.stdout
