"""Whether the training of a run folder still runs, for commands that ask it for something."""

from pathlib import Path

from training_profiler.base.errors import RunFolderError
from training_profiler.base.units import NS_PER_S
from training_profiler.storage.journal_discovery import JournalFile, find_journals
from training_profiler.storage.journal_tail import read_end
from training_profiler.storage.launch import is_running


def journals_of_running(folder: Path, command: str) -> list[JournalFile]:
    """Return the readable journals of a run folder; ``command`` is for the example in a message.

    Raises:
        RunFolderError: ``folder`` is not a run folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder; example: training-profiler {command} runs/20261121-142530")
    journals = [journal for journal in find_journals(folder) if not journal.problem]
    if not journals:
        raise RunFolderError(f"{folder} is not a run folder: it has no journal (rank0.jsonl)")
    own = folder.resolve()
    if all(journal.path.resolve().parent != own for journal in journals):  # a training reads its own folder only
        run = max(journal.path.parent for journal in journals)
        raise RunFolderError(f"{folder} is not a run folder, but contains one; example: {run}")
    return journals


def is_still_running(journal: JournalFile) -> bool | None:
    """Return whether the process that writes a journal still runs; None if that is unknown."""
    begin = journal.begin or {}
    try:
        if read_end(journal.path, "end", lambda record: record).has_end:
            return False
    except OSError:
        return None
    return is_running(begin.get("host"), begin.get("pid"), journal.wall_ns / NS_PER_S)
