"""Print where every rank of a running training is: the Python stacks of all threads, for a training that hangs.

Ranks that are elsewhere than the others come first. RUN is a run folder, a folder of runs, of which the newest is
meant, or the name of a run. The stacks are kept in RUN/stacks. Of a run that has ended, the last ones are printed.
"""

import argparse
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable_lines
from training_profiler.cli.common import add_run, runs_folder, write
from training_profiler.model.ranks import RankStacks, ThreadStack
from training_profiler.ranks.message import message_interval_s
from training_profiler.reports.hang import render_stacks
from training_profiler.reports.layout import sentence
from training_profiler.reports.ranks import of_ranks
from training_profiler.sampling.thread_stacks import FrameNames, is_stopped, parse_dump, stacks_by_signal
from training_profiler.sampling.user_code import Places, is_own_file, places_of_this_process
from training_profiler.storage.journal_discovery import JournalFile
from training_profiler.storage.run_folder import read_meta
from training_profiler.storage.run_reader import choose_run, is_still_running, journals_of_running
from training_profiler.storage.stack_files import read_request, read_stacks, write_request, write_stacks

ANSWER_S: Final = 5.0  # for ranks that can run Python, and ANSWER_INTERVALS between two of their messages
ANSWER_INTERVALS: Final = 3
LOOK_S: Final = 0.1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask every rank for its stacks, print them, and return 0."""
    folder = choose_run(arguments.run, runs_folder())
    found = journals_of_running(folder, "stacks")
    attempt = max(journal.attempt for journal in found)
    journals = {journal.rank or 0: journal for journal in found if journal.attempt == attempt}
    states = {rank: is_still_running(journal) for rank, journal in journals.items()}
    if all(state is False for state in states.values()):
        return _print_last(folder, _world_size(journals))
    asked_ns = _request(folder, journals)
    world_size = _world_size(journals)
    wait_s = ANSWER_S + ANSWER_INTERVALS * message_interval_s(world_size) * (world_size > 1)
    stacks = _answers(folder, asked_ns, {rank for rank in range(world_size) if states.get(rank) is not False}, wait_s)
    missing = []
    for rank in sorted(set(range(world_size)) - set(stacks)):
        by_signal, sentence = _without_answer(rank, world_size, journals.get(rank), states.get(rank), asked_ns, folder)
        missing.append(sentence)
        if by_signal is not None:
            stacks[rank] = by_signal
    if not stacks:
        raise RunFolderError(f"nothing of {folder} answered within {wait_s:.0f} s; {'; '.join(missing)}")
    write(printable_lines(render_stacks([stacks[rank] for rank in sorted(stacks)], world_size, missing, time.time())))
    return 0


def _request(folder: Path, journals: Mapping[int, JournalFile]) -> int:
    """Write a request that is newer than the run and than earlier requests, also where clocks differ; return it."""
    before = max(journal.wall_ns for journal in journals.values()), read_request(folder) or 0
    asked_ns = max(time.time_ns(), *(ns + 1 for ns in before))
    try:
        write_request(folder, asked_ns)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be written ({error.strerror}), so no stacks were asked for") from None
    return asked_ns


def _answers(folder: Path, asked_ns: int, ranks: set[int], wait_s: float) -> dict[int, RankStacks]:
    until_s = time.monotonic() + wait_s
    while True:
        stacks = dict(read_stacks(folder, asked_ns))
        if ranks <= stacks.keys() or time.monotonic() >= until_s:
            return stacks
        time.sleep(LOOK_S)


def _without_answer(
    rank: int, world_size: int, journal: JournalFile | None, is_running: bool | None, asked_ns: int, folder: Path
) -> tuple[RankStacks | None, str]:
    """Return the stacks of a rank whose Python does not run, and why it has not answered."""
    name = sentence(of_ranks([rank]) if world_size > 1 else "the training")
    begin = journal.begin if journal else {}
    pid, host = begin.get("pid"), str(begin.get("host"))
    if journal is None:
        return None, f"{name} has no journal in this folder; it never began, or writes on another machine"
    if is_running is False:
        return None, f"{name} has ended (process {pid} on {host})"
    if is_running is None or not isinstance(pid, int):
        return None, f"{name} has not answered (process {pid} on {host}): run this command on that machine"
    if is_stopped(pid):
        return None, f"{name} is stopped (process {pid} on {host}); kill -CONT {pid} lets it go on"
    dump = stacks_by_signal(pid)
    if dump is None:
        return None, f"{name} has not answered (process {pid} on {host}): try py-spy dump --pid {pid}"
    stacks = RankStacks(asked_ns, time.time_ns(), rank, host, pid, None, _threads_of(dump, folder))
    with suppress(OSError):  # they are still printed
        write_stacks(folder, stacks)
    return stacks, f"{name} cannot run Python: code in C holds the GIL at the line shown, or it is too busy to answer"


def _threads_of(dump: str, folder: Path) -> tuple[ThreadStack, ...]:
    """Return the threads in a dump of ``faulthandler``, which names none; the main thread is the last."""
    here, cwd = places_of_this_process(), read_meta(folder).get("folder")
    places = Places(None, str(cwd), here.standard_library, here.search_path, here.never, here.installed)
    naming = FrameNames(places)
    *others, main = parse_dump(dump) or [[]]
    # A thread that is nowhere but in threading.py runs a function in C: one of ours does.
    shown = [frames for frames in others if frames and not is_own_file(frames[-1][0])]
    stacks = [*(frames for frames in shown if any(file != threading.__file__ for file, _, _ in frames)), main]
    return tuple(
        ThreadStack(
            "MainThread" if number == len(stacks) - 1 else f"number {number + 1}",
            tuple(naming.named(*frame) for frame in frames if not is_own_file(frame[0])),
            is_training=number == len(stacks) - 1,
        )
        for number, frames in enumerate(stacks)
    )


def _print_last(folder: Path, world_size: int) -> int:
    stacks = read_stacks(folder)
    if not stacks:
        raise RunFolderError(
            f"the training of {folder} is no longer running, and no stacks were written while it ran; "
            f"training-profiler report {folder} shows the rest"
        )
    text = render_stacks(list(stacks.values()), world_size, [], time.time())
    write(printable_lines(f"The training of {folder} is no longer running. Its last stacks:\n{text}"))
    return 0


def _world_size(journals: Mapping[int, JournalFile]) -> int:
    sizes = [(journal.begin.get("who") or {}).get("world_size") for journal in journals.values()]
    return max([size for size in sizes if isinstance(size, int)] + [max(journals) + 1])
