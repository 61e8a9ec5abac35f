"""Writes the page of a run that has ended, in a process of its own, which can be ended if it takes too long."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from training_profiler.base.switch import environment
from training_profiler.safety.files import replaced_file
from training_profiler.safety.own_folder import is_in_place
from training_profiler.storage.run_folder import PAGE

LONGEST_S: Final = 10.0  # that it delays the end of the program
END_S: Final = 1.0  # for the end of a process that was killed
PACKAGES: Final = str(Path(__file__).parents[2])
# Packages of the interpreter come first: no file beside the program may stand in for one of them.
CODE: Final = (
    "import sys; sys.path.append(sys.argv[1]); from training_profiler.cli import main; sys.exit(main(sys.argv[2:]))"
)


def write_page(folder: Path, longest_s: float = LONGEST_S, command: Sequence[str] | None = None) -> str:
    """Write the page of the run in ``folder``; return why it was not written, or "".

    Args:
        folder: the run's; its journal has its end.
        longest_s: waits no longer.
        command: what writes it; ``training-profiler html`` by default.
    """
    if command is None:
        if not sys.executable:
            return "there is no Python interpreter to write it"
        command = [sys.executable, "-P", "-c", CODE, PACKAGES, "html", str(folder.absolute())]
    if os.name != "posix":  # no process can be given a descriptor
        return _run(command, longest_s)
    if not is_in_place(folder):
        return "its folder was moved or replaced"
    why = ""
    try:
        with replaced_file(folder / PAGE) as page:
            why = _run([*command, "--output", f"/dev/fd/{page}"], longest_s, page)
            if why:
                raise OSError  # keeps the old page
    except OSError as error:
        return why or f"the file cannot be written ({error.strerror})"
    return ""


def _run(command: Sequence[str], longest_s: float, *descriptors: int) -> str:
    """Run a command that has descriptors of ours; return why it failed, or ""."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(is_on=False),
            start_new_session=True,  # Ctrl-C is for the program
            pass_fds=descriptors,
        )
    except OSError as error:
        return f"no process can be started ({error.strerror})"
    try:
        _, errors = process.communicate(timeout=longest_s)
    except subprocess.TimeoutExpired:
        return f"it took longer than {longest_s:g} s"
    finally:
        if process.poll() is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a disk that does not respond holds it
                process.communicate(timeout=END_S)
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    if process.returncode:
        return lines[-1].removeprefix("training-profiler: ") if lines else f"exit status {process.returncode}"
    return ""
