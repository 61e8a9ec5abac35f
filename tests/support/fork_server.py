"""Runs programs in forks of a process that has imported what they import, which takes longer than most programs do.

That is torch, unless it is left out, and the modules of the profiler; the package itself is imported by the program,
for then it reads the switch. What an interpreter does before the first line of a program is left out, so tests of
start-up, of the import of torch, of tracebacks and of options of the interpreter start one. So is the end of torch
itself, which takes longer than most programs, too: exit handlers run and the program's own objects go as ever.
``ForkServer`` is the side of the tests; this file run as a script is the other. For each program it gets one message,
with the descriptors of the program's streams, and answers through a pipe of the program's own: a line with its process
number, and a line with how it ended.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO

ROOT = "RECTIFIED_FLOW_PROFILE_ROOT"
PACKAGE = "training_profiler"
LASTING = ("torch", "sympy", "mpmath", "numpy")
MESSAGE_BYTES = 1 << 17
HIGHEST_DESCRIPTOR = 1 << 12
Stream = int | IO[str] | IO[bytes]


class ForkedProgram:
    """A running program, with the methods and attributes of ``subprocess.Popen`` that the tests use."""

    def __init__(self, ending: int, stdout: int | None, stderr: int | None) -> None:
        self._ending = os.fdopen(ending)
        self.pid = int(self._ending.readline())
        self.returncode: int | None = None
        self.stdout, self.stderr = (None if end is None else os.fdopen(end) for end in (stdout, stderr))

    def poll(self) -> int | None:
        """Return the exit status, or None while the program runs."""
        return self._status_within(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when the program has ended.

        Raises:
            TimeoutExpired: the program still runs after ``timeout`` seconds.
        """
        status = self._status_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("forked program", timeout or 0.0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams to their end; return what is in them when the program has ended.

        Raises:
            TimeoutExpired: the program still runs, or its streams are open, after ``timeout`` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        read: dict[int, list[bytes]] = {}
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None and not stream.closed]
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                read[stream.fileno()] = []
                selector.register(stream.fileno(), selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(None if until is None else max(until - time.monotonic(), 0.0))
                if not ready:
                    raise subprocess.TimeoutExpired("forked program", timeout or 0.0)
                for key, _ in ready:
                    part = os.read(key.fd, MESSAGE_BYTES)
                    read[key.fd].append(part)
                    if not part:
                        selector.unregister(key.fd)
        self.wait(None if until is None else max(until - time.monotonic(), 0.0))
        texts = {stream: b"".join(read[stream.fileno()]).decode() for stream in streams}
        for stream in streams:
            stream.close()
        return texts.get(self.stdout, ""), texts.get(self.stderr, "")  # type: ignore[arg-type]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the program at once, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _status_within(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ending, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = int(self._ending.readline())
                    self._ending.close()
        return self.returncode


class ForkServer:
    """A process that forks for each program, with torch or without. It ends with this process."""

    def __init__(self, has_torch: bool = True) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ROOT[:-5])}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *["torch"] * has_torch],
            env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def start(
        self,
        words: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        is_profiled: bool = False,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
    ) -> ForkedProgram:
        """Start a program, in a session of its own, that reads nothing from stdin.

        Args:
            words: the script and its arguments.
            cwd: the folder where it runs.
            environment: all its variables.
            is_profiled: whether to start the profiler as the bootstrap does; ``PYTHONPATH`` begins with its folder.
            stdout: where it writes: a file, a descriptor, or ``subprocess.PIPE``.
            stderr: as ``stdout``, or ``subprocess.STDOUT``.
        """
        ending, theirs = os.pipe()
        ours, passed, closed = [], [theirs], [theirs]
        for stream in (stdout, stderr):
            if stream == subprocess.PIPE:
                read_end, write_end = os.pipe()
                ours.append(read_end)
                passed.append(write_end)
                closed.append(write_end)
            else:
                ours.append(None)
                same = passed[1] if stream == subprocess.STDOUT else stream
                passed.append(same if isinstance(same, int) else same.fileno())
        request = json.dumps([list(words), str(cwd), dict(environment), is_profiled]).encode()
        socket.send_fds(self._requests, [request], passed)
        for descriptor in closed:
            os.close(descriptor)
        return ForkedProgram(ending, *ours)

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        self._process.wait()


def become(words: list[str], cwd: str, environment: dict[str, str], is_profiled: bool) -> None:
    """Run the program ``words``; the caller ends the process as Python does after a script."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.orig_argv, sys.path[0] = words, [sys.executable, *words], os.path.dirname(words[0])
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if not is_bootstrap(path)]
    sys.path[1:2] = given
    sys.meta_path.insert(0, AgainFinder())
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # after Python's own end, and instead of that of torch's libraries
    if is_profiled:
        start_profiler()
    runpy.run_path(words[0], run_name="__main__")


class AgainFinder:
    """Lets a program import the package again, and gives it the modules that the server has imported."""

    def __init__(self) -> None:
        package = sys.modules.pop(PACKAGE)
        self._modules = {name: value for name, value in vars(package).items() if isinstance(value, ModuleType)}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how the package is imported, at its first import."""
        if name != PACKAGE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_again(package: ModuleType) -> None:
            vars(package).update(self._modules)
            execute(package)

        spec.loader.exec_module = execute_again  # type: ignore[method-assign]
        return spec


def keep_torch() -> None:
    """Keep the modules of torch, and of what it imports, from being taken apart at the end of Python."""
    keep = ctypes.pythonapi.Py_IncRef
    keep.argtypes = [ctypes.py_object]
    for name in [name for name in sys.modules if name.startswith(LASTING)]:
        keep(sys.modules.pop(name))


def is_bootstrap(path: str) -> bool:
    """Return whether ``path`` is the folder of the profiler's start-up file."""
    return os.path.basename(path) == "bootstrap"


def start_profiler() -> None:
    """Do what the bootstrap does in a program that ``training-profiler run`` started and that has imported torch."""
    bootstrap = os.environ["PYTHONPATH"].partition(os.pathsep)[0]
    os.environ[ROOT] = f"{os.getpid()}:{os.getpid()}-{time.time_ns():x}"
    sys.path.insert(0, bootstrap)
    import training_profiler_hook  # type: ignore[import-not-found]

    sys.path.remove(bootstrap)
    training_profiler_hook.arm(speaks=True)


def take_streams(stdout: int, stderr: int) -> None:
    """Make these the streams of this process, which keeps no other descriptor of the server's."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, stdout, stderr)):
        os.dup2(descriptor, number)
    os.closerange(3, HIGHEST_DESCRIPTOR)


class Server:
    """Forks for each message, and says how each child ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def next_program(self) -> list[object] | None:
        """Return the next request in the child that is to run it, and None in the server at the end of all."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._requests:
                    self._say_end(key)
                    continue
                message, passed, _, _ = socket.recv_fds(self._requests, MESSAGE_BYTES, 3)
                if not message:
                    return None
                if self._is_child(*passed):
                    return list(json.loads(message))

    def _is_child(self, ending: int, stdout: int, stderr: int) -> bool:
        child = os.fork()
        if child == 0:
            self._selector.close()
            self._requests.detach()
            take_streams(stdout, stderr)
            return True
        with suppress(BrokenPipeError):  # the test gave up before it began
            os.write(ending, f"{child}\n".encode())
        self._selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, ending))
        os.close(stdout)
        os.close(stderr)
        return False

    def _say_end(self, key: selectors.SelectorKey) -> None:
        child, ending = key.data
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(BrokenPipeError):  # the test gave up on the program
            os.write(ending, f"{status}\n".encode())
        os.close(ending)


def serve(requests: socket.socket, has_torch: bool) -> None:
    """Run programs until the tests close their end."""
    atexit.register(keep_torch)  # the first, so it is called after all others
    import tabulate  # noqa: F401

    import training_profiler.runtime.process  # noqa: F401

    if has_torch:
        import torch._dynamo  # noqa: F401 - what the first optimizer imports

    gc.freeze()  # otherwise the last collection of each program goes through all of torch
    program = Server(requests).next_program()
    if program is not None:
        become(*program)  # type: ignore[arg-type]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), "torch" in sys.argv[2:])
