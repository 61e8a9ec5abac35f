"""Starts the program of a trial apart from the rest of the machine: ``launcher.py FOLDER PROGRAM [ARGUMENT ...]``.

It stays the parent of all processes of the trial, ends with the program's status, and lets none of them live on.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
FAILED, NOT_FOUND = 125, 127  # as of `env` and of shells
SIGNALLED = 128
ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)

sys.argv[0] = "training-profiler"  # a command of ours, in which profiling is off
sys.path[0] = PACKAGE_PARENT  # instead of this folder

from training_profiler.trials.isolation import linux, namespaces, processes  # noqa: E402
from training_profiler.trials.isolation.copied_folder import copy_folder  # noqa: E402
from training_profiler.trials.isolation.plan import GUARDED, NAMESPACES, Plan, load_plan  # noqa: E402


def main(folder: str, program: list[str]) -> int:
    """Run the program as its plan says; return its status, as a shell would."""
    _end_with_parent()
    plan = load_plan(folder)
    return _reporting_errors(lambda: (_in_copy if plan.is_copy else _in_namespaces)(plan, program))


def _end_with_parent() -> None:
    """Ask the kernel to end this process with the session, which would let no training go on any more."""
    if sys.platform == "linux":
        linux.die_with_parent(signal.SIGKILL)


def _in_copy(plan: Plan, program: list[str]) -> int:
    folder = os.getcwd()
    copied = copy_folder(folder, str(plan.layers), os.path.dirname(plan.scratch))
    os.chdir(copied)
    os.environ["PWD"] = copied
    words = [copied + word.removeprefix(folder) if word.startswith(f"{folder}/") else word for word in program[1:]]
    return _run(plan, [program[0], *words])


def _in_namespaces(plan: Plan, program: list[str]) -> int:
    is_first_process = plan.way == NAMESPACES
    in_user_namespace = namespaces.leave_namespaces(is_first_process)
    if plan.layers_in_memory:
        linux.mount("tmpfs", str(plan.layers), "tmpfs", options="mode=755")
    child = os.fork()
    if child == 0:
        os._exit(_reporting_errors(lambda: _run_in_new_root(plan, program, in_user_namespace)))
    _forward_signals(child)
    return _wait_for(child)


def _run_in_new_root(plan: Plan, program: list[str], in_user_namespace: bool) -> int:
    linux.die_with_parent(signal.SIGKILL)  # the kernel then ends all processes of the namespace
    folder = os.getcwd()
    root = plan.folder / "root"
    root.mkdir(exist_ok=True)
    is_first_process = plan.way == NAMESPACES
    file_system = namespaces.CopyOnWriteRoot(str(root), str(plan.layers), in_user_namespace)
    file_system.build(plan.used, str(plan.results), is_first_process)
    os.chroot(root)
    os.chdir(folder)
    return _run(plan, program)


def _run(plan: Plan, program: list[str]) -> int:
    """Start the program, end what it leaves behind, and return its status."""
    if sys.platform == "linux":
        linux.adopt_orphans()
    child = os.fork()
    if child == 0:
        os._exit(_reporting_errors(lambda: _become(plan, program)))
    _forward_signals(child)
    status = _wait_for(child)
    processes.end_descendants()
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
        linux.refuse_writing(plan.writable)
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


def _forward_signals(child: int) -> None:
    for number in ASKED_TO_END:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the program as well


def _wait_for(child: int) -> int:
    """Return the status of ``child``, reaping adopted processes that end before it."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else SIGNALLED - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
