"""Starts the program of a trial apart from the rest of the machine: ``isolated_program.py FOLDER PROGRAM [WORD ...]``.

It stays the parent of all processes of the trial, ends with the program's status, and lets none of them live on. Where
the kernel cannot show the trial another file system, the program runs in a copy of its folder.
"""

import json
import os
import resource
import shutil
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
FAILED, NOT_FOUND = 125, 127  # as of `env` and of shells
SIGNALLED = 128
ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)
MOST_ENTRIES = 20_000  # a folder with more is a data set or an environment, which trainings only read
MOST_BYTES = 1 << 30

if __name__ == "__main__":
    sys.argv[0] = "training-profiler"  # a command of ours, in which profiling is off
    sys.path[0] = PACKAGE_PARENT  # instead of this folder

import psutil  # noqa: E402

from training_profiler.trials.namespaces import (  # noqa: E402
    CopyOnWriteRoot,
    adopt_orphans,
    die_with_parent,
    leave_namespaces,
    mount,
    refuse_writing,
)

TRIAL = "TRAINING_PROFILER_TRIAL"  # variable of every process of a trial: the folder of its plan
FOLDER = "trial"  # of the plan's own files
SHARED_MEMORY = "shared_memory.txt"  # names below /dev/shm that the trial may leave behind
GONE_WITHIN_S = 10.0  # a killed process that still waits for a disk is reported

NAMESPACES = "namespaces"
SHARED_PROCESSES = "namespaces, without one of processes"
GUARDED = "copy, guarded by the kernel"
UNGUARDED = "copy"
WAYS = (NAMESPACES, SHARED_PROCESSES, GUARDED)  # the strongest first
WAYS_WITH_WRITES = (NAMESPACES, SHARED_PROCESSES, UNGUARDED)  # if the user allows writing outside of the copy


class Plan(NamedTuple):
    """A trial's way and folders."""

    way: str
    scratch: str
    used: tuple[str, ...]  # folders that the trial probably writes to
    layers_in_memory: bool
    most_file_bytes: int
    temporary: str = ""  # folder for temporary files, where the usual one cannot be used
    files: tuple[tuple[str, int, str], ...] = ()  # that the program sees otherwise: path, git's mode or 0, new content

    @property
    def is_copy(self) -> bool:
        """Whether the program runs in a copy of its folder, because the kernel gives no namespaces."""
        return self.way in (GUARDED, UNGUARDED)

    @property
    def folder(self) -> Path:
        """The folder of the plan's own files."""
        return Path(self.scratch, FOLDER)

    @property
    def layers(self) -> Path:
        """The folder of what the trial writes."""
        return Path(self.scratch, "layers")

    @property
    def results(self) -> Path:
        """The folder of what the trial hands to the caller."""
        return Path(self.scratch, "results")

    def save(self) -> None:
        """Write the plan for the trial's processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps(self._asdict()), encoding="utf-8")


def load_plan(folder: str) -> Plan:
    """Return the plan that was saved in its folder."""
    fields = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))
    return Plan(**{**fields, "used": tuple(fields["used"])})


def end_descendants() -> None:
    """Kill all descendants of this process, which adopts orphans."""
    while True:
        _kill(psutil.Process().children(recursive=True))
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return


def end_trial(folder: Path) -> list[str]:
    """Kill the processes of the trial whose plan is in ``folder``, wherever they were started.

    Returns:
        The names of those that are still alive.
    """
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        alive = [process for process in psutil.process_iter() if _belongs_to(process, folder)]
        if not alive or time.monotonic() > deadline:
            return [_name(process) for process in alive]
        for process in alive:
            with suppress(psutil.Error):
                _kill(process.children(recursive=True))
        _kill(alive)
        psutil.wait_procs(alive, timeout=1)


def _belongs_to(process: psutil.Process, folder: Path) -> bool:
    try:
        return bool(process.environ().get(TRIAL) == str(folder) and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):  # of another user, or gone
        return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return str(process.pid)


def main(folder: str, program: list[str]) -> int:
    """Run the program as its plan says; return its status, as a shell would."""
    _end_with_parent()
    plan = load_plan(folder)
    return _reporting_errors(lambda: (_in_copy if plan.is_copy else _in_namespaces)(plan, program))


def _end_with_parent() -> None:
    """Ask the kernel to end this process with the session, which would let no training go on any more."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGKILL)


def _in_copy(plan: Plan, program: list[str]) -> int:
    folder = os.getcwd()
    copied = copy_folder(folder, str(plan.layers), os.path.dirname(plan.scratch))
    os.chdir(copied)
    os.environ["PWD"] = copied
    words = [copied + word.removeprefix(folder) if word.startswith(f"{folder}/") else word for word in program[1:]]
    return _run(plan, [program[0], *words])


def copy_folder(folder: str, top: str, without: str) -> str:
    """Copy ``folder`` below ``top``, and return its copy. Links lead from there to everything that is not copied.

    In a large folder, the deepest entries are linked instead of copied. The folders above the copy hold links to their
    other entries, so ``../data`` leads to the real one.

    Args:
        folder: absolute.
        top: where the copy of ``/home/me/project`` becomes ``top + "/home/me/project"``.
        without: a folder that is left out, because it has ``top``.
    """
    copied = top + folder
    os.makedirs(copied)
    for parent in Path(folder).parents:
        for entry in _entries(str(parent)):
            with suppress(FileExistsError):
                os.symlink(entry.path, top + entry.path)
    entries, size_bytes = 0, 0
    waiting = deque([folder])
    while waiting:
        for entry in _entries(waiting.popleft()):
            entries += 1
            is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
            size_bytes += entry.stat(follow_symlinks=False).st_size if is_file else 0
            if entry.path == without:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), top + entry.path)
            elif is_folder and entries <= MOST_ENTRIES and os.access(entry.path, os.R_OK | os.X_OK):
                os.mkdir(top + entry.path)
                waiting.append(entry.path)
            elif is_file and size_bytes <= MOST_BYTES and os.access(entry.path, os.R_OK):
                shutil.copy2(entry.path, top + entry.path)
            else:
                os.symlink(entry.path, top + entry.path)
    return copied


def _entries(folder: str) -> list["os.DirEntry[str]"]:
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        return []


def _in_namespaces(plan: Plan, program: list[str]) -> int:
    in_user_namespace = leave_namespaces(plan.way == NAMESPACES)
    if plan.layers_in_memory:
        mount("tmpfs", str(plan.layers), "tmpfs", options="mode=755")
    return _forked(lambda: _run_in_new_root(plan, program, in_user_namespace))


def _run_in_new_root(plan: Plan, program: list[str], in_user_namespace: bool) -> int:
    die_with_parent(signal.SIGKILL)  # the kernel then ends all processes of the namespace
    folder = os.getcwd()
    root = plan.folder / "root"
    root.mkdir(exist_ok=True)
    file_system = CopyOnWriteRoot(str(root), str(plan.layers), in_user_namespace)
    file_system.build(plan.used, str(plan.results), plan.way == NAMESPACES)
    os.chroot(root)
    os.chdir(folder)
    return _run(plan, program)


def write_files(files: Iterable[tuple[str, int, str]], top: str) -> None:
    """Give files below the folder ``top``, "" for all there are, their new contents; those of mode 0 go.

    Raises:
        OSError: one lies where the copy of the program's folder leads back to the user's own files.
    """
    for path, mode, content in files:
        place, parent = top + path, os.path.dirname(top + path)
        if not os.path.realpath(parent).startswith(top):
            raise OSError(f"{path} is not in this folder, or in one that is too large to be copied")
        if os.path.lexists(place):
            os.unlink(place)
        if mode:
            os.makedirs(parent, exist_ok=True)
            new = Path(content).read_bytes()
        if stat.S_ISLNK(mode):
            os.symlink(os.fsdecode(new), place)
        elif mode:
            Path(place).write_bytes(new)
            os.chmod(place, 0o755 if mode & 0o111 else 0o644)


def _run(plan: Plan, program: list[str]) -> int:
    write_files(plan.files, str(plan.layers) * plan.is_copy)
    if sys.platform == "linux":
        adopt_orphans()
    status = _forked(lambda: _become(plan, program))
    end_descendants()
    return status


def _become(plan: Plan, program: list[str]) -> int:
    _end_with_parent()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    if plan.most_file_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        most = plan.most_file_bytes if hard == resource.RLIM_INFINITY else min(plan.most_file_bytes, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    if plan.way == GUARDED:
        refuse_writing(filter(os.path.isdir, ("/dev", "/proc", plan.scratch, plan.temporary)))
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"training-profiler: {program[0]} cannot be started: {error.strerror}")
    return NOT_FOUND


def _reporting_errors(act: Callable[[], int]) -> int:
    try:
        return act()
    except Exception as error:  # a forked child must not go on as the launcher
        sys.stderr.write(f"training-profiler: a trial cannot be isolated: {error}\n")
        return FAILED


def _forked(act: Callable[[], int]) -> int:
    """Return the status of a child that does ``act`` and gets our signals; reap adopted processes until its end."""
    child = os.fork()
    if child == 0:
        os._exit(_reporting_errors(act))
    for number in ASKED_TO_END:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the program as well
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else SIGNALLED - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
