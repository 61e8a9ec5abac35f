"""Edits of the user's code, as a unified diff that ``patch`` applies; or what to write manually where none is safe."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.base.errors import MissingExtraError
from training_profiler.model.program import CallSite
from training_profiler.safety.files import read_file
from training_profiler.storage.source_lines import MOST_BYTES, digest_of
from training_profiler.trials.treatment import CannotEditError, Edit

EXTRA: Final = "try"


class Manual(NamedTuple):
    """An edit that is left to the reader, because no edit of this code is sure to have the effect."""

    place: str  # "train.py:41"
    why: str
    wanted: str  # "pass num_workers=2"

    @property
    def text(self) -> str:
        """One line: "train.py:41 (the arguments come from **options): pass num_workers=2"."""
        return f"{self.place} ({self.why}): {self.wanted}"


class Edited(NamedTuple):
    """The diff of all edits, and what it does not contain."""

    diff: str  # for ``patch -p1`` in ``top``; "" without any
    manual: tuple[Manual, ...]
    notes: tuple[str, ...]  # what to do beside the edits
    top: str = ""  # that the paths of the diff are relative to


def edited(edits: Iterable[Edit], folder: str, digests: Mapping[str, str] | None = None) -> Edited:
    """Return the diff of ``edits``. Reads the files and writes none.

    Args:
        edits: what to change.
        folder: that the paths of the diff are relative to, unless a file lies outside of it: ``patch`` refuses such.
        digests: of the files that may be read, by their names in reports: a journal may name any file. None: of all.

    Raises:
        MissingExtraError: libcst is not installed.
    """
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.call.site.path, []).append(edit)
    texts: dict[str, tuple[str, str]] = {}
    manual, notes = [], []
    for path, of_file in sorted(by_file.items()):
        try:
            before = _read(of_file[0].call.site, digests)
        except (OSError, UnicodeDecodeError) as error:
            why = "it is not in UTF-8" if isinstance(error, UnicodeDecodeError) else error
            text = f"the file cannot be read: {why}"
            manual += [Manual(edit.call.site.place, text, edit.wanted) for edit in of_file]
            continue
        after = before
        # From the last call to the first, so that an edit moves no call that another one looks for.
        for edit in sorted(_merged(of_file), key=lambda edit: (-edit.call.site.line, -edit.call.site.column)):
            try:
                after = edited_source(after, edit)
                notes += [f"{edit.call.site.place}: {edit.note}"] if edit.note else []
            except CannotEditError as error:
                manual.append(Manual(edit.call.site.place, str(error), edit.wanted))
        if after != before:
            texts[path] = before, after
    top = folder if all(Path(path).is_relative_to(folder) for path in texts) else os.sep
    diff = "".join(_diff(before, after, os.path.relpath(path, top)) for path, (before, after) in texts.items())
    return Edited(diff, tuple(manual), tuple(notes), top)


def _merged(edits: Iterable[Edit]) -> Iterable[Edit]:
    by_call: dict[tuple[CallSite, str], Edit] = {}
    for edit in edits:
        key = edit.call.site, edit.call.kind
        before = by_call.get(key)
        by_call[key] = edit if before is None else before.joined(edit)
    return by_call.values()


def edited_source(source: str, edit: Edit) -> str:
    """Return the source of a file after an edit.

    Raises:
        CannotEditError: no edit of this code is sure to have the effect.
        MissingExtraError: libcst is not installed.
    """
    try:
        from training_profiler.trials import source_edit
    except ImportError:
        raise MissingExtraError(f"Edits need libcst: pip install 'training-profiler[{EXTRA}]'", name="libcst") from None
    if edit.call.site.inside:
        raise CannotEditError(f"the call is in {edit.call.site.inside}")
    if not edit.arguments and not edit.statement:
        raise CannotEditError("the arguments depend on those that are there")
    return source_edit.apply(source, edit)


def _read(site: CallSite, digests: Mapping[str, str] | None) -> str:
    if not site.path:
        raise OSError("the code was typed in")
    content = read_file(site.path, MOST_BYTES, follow=True)
    if digests is not None and digests.get(site.file) != digest_of(content):
        raise OSError("it is not the file that ran, or the run did not record that")
    return content.decode()  # line endings stay as they are


def _diff(before: str, after: str, name: str) -> str:
    end = "\t" if any(map(str.isspace, name)) else ""  # ``patch`` reads a name to the tab, else to the first space
    # At line feeds alone, as ``patch`` does.
    old, new = (re.findall(r".*\n|.+", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}{end}", f"b/{name}{end}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
