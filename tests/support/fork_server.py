"""Runs programs in forks of a process that has imported torch, which takes longer than most programs of the tests.

What an interpreter does before the first line of a program is left out, so tests of start-up, of the import of torch
and of options of the interpreter start one. ``ForkServer`` is the side of the tests; this file run as a script is the
other. It reads a line of JSON for each program and answers with the exit status.
"""

import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = "RECTIFIED_FLOW_PROFILE_ROOT"
STREAMS = ("stdout", "stderr")


class ForkServer:
    """A process that forks for each program. It ends with this process."""

    def __init__(self, limit_s: float) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ROOT[:-5])}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(limit_s)],
            env={**environment, "OMP_NUM_THREADS": "1"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(
        self, words: Sequence[str], cwd: Path, environment: Mapping[str, str], is_profiled: bool = False
    ) -> tuple[int, str, str]:
        """Run a program to its end and return its exit status, stdout and stderr.

        Args:
            words: the script and its arguments.
            cwd: the folder where it runs.
            environment: all its variables.
            is_profiled: whether to start the profiler as the bootstrap does; ``PYTHONPATH`` begins with its folder.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        outputs = [cwd.parent / f"{cwd.name}.{stream}" for stream in STREAMS]
        request = [list(words), str(cwd), dict(environment), is_profiled, [str(output) for output in outputs]]
        print(json.dumps(request), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        stdout, stderr = (output.read_text() for output in outputs)
        return status, stdout, stderr

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def become(words: list[str], cwd: str, environment: dict[str, str], is_profiled: bool, outputs: list[str]) -> None:
    """Run the program ``words`` and end the process as Python does after a script."""
    os.setsid()
    for descriptor, path in enumerate([os.devnull, *outputs]):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = words, os.path.dirname(words[0])
    sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if not is_bootstrap(path)]
    if is_profiled:
        start_profiler()
    runpy.run_path(words[0], run_name="__main__")


def is_bootstrap(path: str) -> bool:
    """Return whether ``path`` is the folder of the profiler's start-up file."""
    return os.path.basename(path) == "bootstrap"


def start_profiler() -> None:
    """Do what the bootstrap does in a program that ``training-profiler run`` started and that has imported torch."""
    bootstrap = os.environ["PYTHONPATH"].partition(os.pathsep)[0]
    os.environ[ROOT] = f"{os.getpid()}:{os.getpid()}-{time.time_ns():x}"
    sys.path.insert(0, bootstrap)
    import training_profiler_bootstrap  # type: ignore[import-not-found]

    sys.path.remove(bootstrap)
    training_profiler_bootstrap.install(is_first=True, was_requested=True)
    (finder,) = [finder for finder in sys.meta_path if type(finder).__name__ == "TorchFinder"]
    finder._finish()  # type: ignore[attr-defined]


def exit_status(child: int, limit_s: float) -> int:
    """Return how the child ended; kill it and its children after ``limit_s``."""
    waiting = select.poll()
    descriptor = os.pidfd_open(child)
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(limit_s * 1000):
        os.killpg(child, signal.SIGKILL)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def serve(limit_s: float) -> None:
    """Run programs until stdin ends."""
    # The packages of the profiler without the profiler, and what the first optimizer imports.
    import msgspec  # noqa: F401
    import numpy  # noqa: F401
    import tabulate  # noqa: F401
    import torch._dynamo  # noqa: F401

    gc.freeze()  # otherwise the last collection of each program goes through all of torch
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            become(*request)
            sys.exit()
        print(exit_status(child, limit_s), flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]))
