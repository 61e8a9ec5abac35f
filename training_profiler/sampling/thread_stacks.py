"""Reads the stacks of all threads of this process, for a training that hangs."""

import faulthandler
import functools
import operator
import os
import platform
import re
import signal
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from training_profiler.base.text import printable
from training_profiler.model.ranks import StackFrame
from training_profiler.safety.fault_guard import OWN_THREADS
from training_profiler.safety.files import Descriptor, identity, raised
from training_profiler.sampling.frames import current_frames, outwards
from training_profiler.sampling.user_code import (
    Places,
    UserCode,
    function_name,
    is_own_file,
    line_of,
    places_of_this_process,
)

NAME: Final = "training_profiler stacks"
ANSWER_S: Final = 2.0  # for a dump, which takes milliseconds
LOOK_S: Final = 0.05
MOST_BYTES: Final = 1 << 20
FROM_LAST: Final = range(8, 16)  # places before the last real-time signal; captures use the eight before
_TGKILL: Final = {"x86_64": 234, "aarch64": 131}  # number of the system call (Linux, asm/unistd.h)
_FILE: Final = re.compile(rf"/memfd:{NAME} (\d+) (\d+)(?: \(deleted\))?")
_THREAD: Final = re.compile(r"(?:Current t|T)hread 0x[0-9a-f]+")
_FRAME: Final = re.compile(r'  File "(.*)", line (\d+) in (.*)')
PROC: Final = Path("/proc")


class StackSignal:
    """Has ``faulthandler`` write the stacks of a process whose Python cannot run, because code in C holds the GIL.

    The process registers a real-time signal that nothing in it uses, and says in the name of a file in memory which
    one, and which thread takes it. Another process sends it there, and reads that file. The training's threads are not
    interrupted: the thread is one of ours. ``faulthandler.enable`` and ``dump_traceback_later`` stay the program's.
    ``open`` is called on the thread that takes the signal.
    """

    def __init__(self) -> None:
        self._number = 0
        self._file: Descriptor | None = None

    def open(self) -> None:
        """Register a signal that is free, where the system can do that."""
        number = free_signal() if platform.machine() in _TGKILL and hasattr(os, "memfd_create") else None
        if number is None:
            return
        descriptor = raised(os.memfd_create(f"{NAME} {number} {threading.get_native_id()}", os.MFD_CLOEXEC))
        self._number, self._file = number, Descriptor(descriptor, identity(descriptor))
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    def close(self) -> None:
        """Give the signal back."""
        file, self._file = self._file, None
        if file is not None:
            faulthandler.unregister(self._number)
            file.close()


def free_signal(proc: Path = PROC) -> int | None:
    """Return a real-time signal that this process neither catches, ignores nor blocks; None without one."""
    used = _masks(proc / "self", "SigCgt", "SigIgn", "SigBlk")
    if used is None or not hasattr(signal, "SIGRTMAX"):
        return None
    numbers = (signal.SIGRTMAX - place for place in FROM_LAST)
    return next((int(number) for number in numbers if not used >> (number - 1) & 1), None)


def _masks(process: Path, *names: str) -> int | None:
    """Return which signals are in one of these masks of a process, as bits; None if that cannot be read."""
    try:
        status = (process / "status").read_text(errors="replace")
    except OSError:
        return None
    masks = re.findall(rf"^(?:{'|'.join(names)}):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return functools.reduce(operator.or_, (int(mask, 16) for mask in masks), 0)


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process was stopped by a signal or a debugger."""
    try:
        return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def stacks_by_signal(pid: int, proc: Path = PROC, answer_s: float = ANSWER_S) -> str | None:
    """Return what ``faulthandler`` writes in the process ``pid`` of this machine; None where it cannot be asked.

    Sends nothing to a process that does not hold the file of ``StackSignal``, or does not catch the signal.
    """
    process = proc / str(pid)
    found = _open_file(process)
    if found is None:
        return None
    path, number, thread = found
    caught = _masks(process, "SigCgt")
    if not caught or not caught >> (number - 1) & 1 or not (process / "task" / str(thread)).exists():
        return None
    try:
        before = path.stat().st_size
        if not _send(pid, thread, number):
            return None
        return _read_answer(path, before, answer_s)
    except OSError:  # it has ended
        return None


def _open_file(process: Path) -> tuple[Path, int, int] | None:
    """Return the file in memory of ``StackSignal``, its signal and its thread."""
    with suppress(OSError):
        for entry in (process / "fd").iterdir():
            with suppress(OSError):
                if match := _FILE.fullmatch(os.readlink(entry)):
                    return entry, int(match[1]), int(match[2])
    return None


def _send(pid: int, thread: int, number: int) -> bool:
    import ctypes  # not at the top: only the command needs it

    call = _TGKILL.get(platform.machine())
    return call is not None and ctypes.CDLL(None).syscall(call, pid, thread, number) == 0


def _read_answer(path: Path, before: int, answer_s: float) -> str | None:
    """Return what is written to the file after ``before`` bytes, once nothing more comes."""
    size, until_s = before, time.monotonic() + answer_s
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
        now = path.stat().st_size
        if now > before and now == size:
            break
        size = now
    with path.open("rb") as file:
        file.seek(before)
        return file.read(MOST_BYTES).decode(errors="backslashreplace") or None


def parse_dump(dump: str) -> list[list[tuple[str, int, str]]]:
    """Return file, line and function of each frame of each thread in a dump of ``faulthandler``, outermost first."""
    threads: list[list[tuple[str, int, str]]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (match := _FRAME.fullmatch(line)):
            threads[-1].insert(0, (match[1], int(match[2]), match[3]))
    return threads


MOST_FRAMES: Final = 200  # of a stack, the innermost ones


def read_stacks(places: Places | None = None) -> dict[int, tuple[str, tuple[StackFrame, ...]]]:
    """Return the name of each thread, by its ident, and its frames, outermost first, without those of the profiler."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = {ident: _instructions(frame) for ident, frame in current_frames().items()}
    naming = FrameNames(places or places_of_this_process())
    return {
        ident: (printable(names.get(ident, f"thread {ident}")), tuple(map(naming.frame, stack)))
        for ident, stack in stacks.items()
        if not names.get(ident, "").startswith(OWN_THREADS)
    }


def _instructions(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """Return code and instruction of each frame; a frame itself would keep the tensors of a step alive."""
    others = (each for each in outwards(frame) if not is_own_file(each.f_code.co_filename))
    return [(each.f_code, each.f_lasti) for each in islice(others, MOST_FRAMES)][::-1]


class FrameNames:
    """Names frames as reports do: the user's files by their short names, others below the folder they were found in."""

    def __init__(self, places: Places) -> None:
        self._user_code = UserCode(places)
        self._folders = sorted({*places.search_path, *places.standard_library}, key=len, reverse=True)

    def frame(self, instruction: tuple[CodeType, int]) -> StackFrame:
        """Return the frame of a code object and the instruction in it."""
        code, offset = instruction
        return self.named(code.co_filename, line_of(code, offset), function_name(code))

    def named(self, filename: str, line: int, function: str) -> StackFrame:
        """Return the frame at this line of a file."""
        shown = self._user_code.shown(filename)
        folder = next((folder for folder in self._folders if filename.startswith(folder + os.sep)), "")
        inside = printable(filename.removeprefix(folder + os.sep) if folder else filename)
        return StackFrame(shown or inside, line, function, shown is not None)
