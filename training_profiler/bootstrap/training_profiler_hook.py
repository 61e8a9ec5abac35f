"""How an unmodified program starts and imports torch. Never: import torch, raise, use more than the standard library.

It starts the profiler once the program has imported torch, and reports at the end if nothing was measured. This runs
at the start of every Python process of a profiled launch, so it imports little of the standard library and
nothing else. It never raises into the program; an error is one line on stderr.
"""

import atexit
import io
import os
import stat
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False  # typing itself takes longer to import than this file
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

PACKAGE = "training_profiler"
SWITCH = "RECTIFIED_FLOW_PROFILE"
SHORT_SWITCH = "TRAINING_PROFILER"
ROOT = SWITCH + "_ROOT"  # pid:launch of the first Python process of a launch
HOOK = "_training_profiler_hook"  # attribute of sys: modules of ours may be removed and imported again
TRIAL_PLAN = SWITCH + "_TRIAL_PLAN"  # path of the plan of a trial (training_profiler.trials)
ON_WORDS = ("1", "true", "yes", "on")
DEFAULT_DIR = "runs"
MOST_META_BYTES = 1 << 22
MOST_FRAMES = 1000
NEWEST = 20  # run folders searched for one of a child process
# Programs that a shell script starts beside the training.
OWN_COMMANDS = ("training-profiler", "training_profiler")
HELPERS = ("-c", "pip", "ensurepip", "venv", "virtualenv", *OWN_COMMANDS)
# These import torch to start the processes that train.
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# Frames of this file are left out of tracebacks of failed imports, and not counted by warnings.
IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"


class ModuleFinder:
    """Wraps the loader of a module to act right after the module has been imported.

    The other finders find the spec, and it stays as they made it. Looking up the spec without importing it changes
    nothing. Where another import hook finds the module by itself, the next import of anything shows that it is there.
    """

    def __init__(self, name: str, act: "Callable[[], None]") -> None:
        self._name = name
        self._act = act
        self._is_waiting = True
        self._own: list[object] = []  # the functions set on loaders
        self._searching: set[int] = set()  # threads in find_spec: other finders may call this one again

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the other finders' spec of the module; None for any other module."""
        if name != self._name:
            if self._is_there():
                self._finish()
            return None
        if get_ident() in self._searching:
            return None
        self._searching.add(get_ident())
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = None if find is None else find(name, path, target)
                if spec is not None:
                    self._hook(spec.loader)
                    return spec  # type: ignore[no-any-return]
        finally:
            self._searching.discard(get_ident())
        return None

    def begin(self) -> None:
        """Wait for the import; act at once where the program has imported the module."""
        if self._is_there():
            self._finish()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting."""
        self._is_waiting = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _is_there(self) -> bool:
        spec = getattr(sys.modules.get(self._name), "__spec__", None)
        return spec is not None and not getattr(spec, "_initializing", False)

    def _hook(self, loader: object) -> None:
        execute = getattr(loader, "exec_module", None)
        attributes = getattr(loader, "__dict__", None)
        if execute is None or not isinstance(attributes, dict):  # a loader that is a class serves other imports too
            return
        before = attributes.get("exec_module")  # of another import hook
        if before in self._own:
            return

        def exec_module(module: "ModuleType") -> None:
            if attributes.get("exec_module") is exec_module:  # restored before the module can see it
                if before is None:
                    del attributes["exec_module"]
                else:
                    attributes["exec_module"] = before
            self._begins()
            execute(module)
            if module.__name__ == self._name:
                self._finish()

        exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORT_SYSTEM)
        self._own.append(exec_module)
        attributes["exec_module"] = exec_module

    def _begins(self) -> None:
        pass

    def _finish(self) -> None:
        if self._is_waiting:
            self.remove()
            self._act()


class TorchFinder(ModuleFinder):
    """Waits for torch, and notes when its import began."""

    def __init__(self, act: "Callable[[], None]") -> None:
        super().__init__("torch", act)
        self.began_import = False
        self.imported: tuple[int, list[tuple[CodeType, int]]] | None = None  # when, and from which stack

    def _begins(self) -> None:
        self.began_import = True
        self.imported = time.perf_counter_ns(), _stack()


class ProcessHook:
    """Starts the profiler in one process of a launch, and reports why nothing was measured.

    Args:
        is_first: this is the first Python process of the launch, so it reports for all.
        was_requested: the user gave this program to ``training-profiler run``.
    """

    def __init__(self, is_first: bool, was_requested: bool) -> None:
        self.begin_ns = time.perf_counter_ns()
        self.began_s = time.time()
        self.finder = TorchFinder(self.act)
        self.speaks = was_requested  # also of a program that trained nothing
        self._pid = os.getpid()
        self._is_first = is_first
        self._was_requested = was_requested
        self._has_reported = False
        self._launch = os.environ[ROOT].partition(":")[2]
        self._runs = _absolute(_variable("_DIR")[1].strip() or DEFAULT_DIR)

    def act(self) -> None:
        """Do what the variables ask for, after the import of torch."""
        if os.environ.get(TRIAL_PLAN):
            _import_module("trials.child").start(os.environ[TRIAL_PLAN])
        if _is_on():
            self.start_profiler()
        elif self._is_first and not os.environ.get(TRIAL_PLAN):
            name, given = _variable("")
            self.report(
                "nothing is measured: " + name + "=" + repr(given) + " is neither on (1, true, yes, on) nor off "
                "(0, false, no, off); example: " + name + "=1"
            )

    def start_profiler(self) -> None:
        """Start the profiler after the import of torch, unless this is a command of our own or a launcher."""
        if _program_name() in OWN_COMMANDS or _command() in LAUNCHERS:
            return
        before = {name for name in sys.modules if name.partition(".")[0] == PACKAGE}
        try:
            _import_module("api").start_instrumentation(self.begin_ns, self.finder.imported, self.speaks)
        except Exception as error:
            self.report("nothing is measured: " + _reason(error))
            for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
                if name not in before:  # so that an import by the program itself starts afresh
                    del sys.modules[name]

    def report(self, message: str) -> None:
        """Write one line to stderr, if possible."""
        self._has_reported = True
        try:
            sys.stderr.write(PACKAGE + ": " + message + "\n")
            sys.stderr.flush()
        except Exception:  # closed, replaced, or None
            pass

    def at_exit(self) -> None:
        """Report why nothing was measured, at the end of the process that the user started."""
        try:
            # After an exception that nothing caught, its traceback says enough.
            is_asked = self._is_first and not hasattr(sys, "last_type") and os.getpid() == self._pid
            if is_asked and not self._has_reported and self._is_program() and (self.speaks or self._has_trained()):
                reason = self._why_nothing()
                if reason is not None and not self._child_measured():
                    self.report("nothing measured: " + reason)
        except Exception:  # no traceback of ours at the end of the user's program
            pass

    def _is_program(self) -> bool:
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return False
        return self._was_requested or _program_name().rstrip("0123456789.") not in HELPERS

    def _has_trained(self) -> bool:
        api = sys.modules.get(PACKAGE + ".api")
        return api is not None and bool(api.has_trained())

    def _why_nothing(self) -> "str | None":
        if "torch" not in sys.modules:
            if self.finder.began_import:
                return "importing torch failed"
            return "the program never imported torch"
        if _command() in LAUNCHERS:
            return "no process that " + _command() + " started has trained"
        api = sys.modules.get(PACKAGE + ".api")
        if api is None:
            return "torch was imported in a way that the profiler cannot detect"
        why: str | None = api.why_nothing()
        return why

    def _child_measured(self) -> bool:
        """Return whether one of the newest run folders belongs to this launch."""
        try:
            names = [name for name in os.listdir(self._runs) if name[:8].isdigit()]
        except OSError:
            return False
        for name in sorted(names, reverse=True)[:NEWEST]:
            folder = os.path.join(self._runs, name)
            try:
                status = os.lstat(folder)
                if not stat.S_ISDIR(status.st_mode) or status.st_mtime < self.began_s - 1:  # 1 s: file systems round
                    continue
                if self._launch in _text_of(os.path.join(folder, "meta.json")):
                    return True
            except (OSError, ValueError):
                continue
        return False


class EmptyInput(io.RawIOBase):
    """The standard input of a trial, which has none: a program that reads it cannot be tried, so reads are reported."""

    def readable(self) -> bool:
        """Return True, as of a pipe."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of standard input."""
        return 0

    def readinto(self, buffer: object) -> int:
        """Report the read; there is nothing."""
        _import_module("trials.child").report_read(os.environ[TRIAL_PLAN])
        return 0


def _watch_input() -> None:
    """Report a read of standard input, unless this process got another one from its parent."""
    try:
        kinds = {(stat.S_IFMT(status.st_mode), status.st_rdev) for status in (os.fstat(0), os.stat(os.devnull))}
    except OSError:  # it is closed
        return
    if len(kinds) == 1:
        setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(EmptyInput())))  # noqa: B010, of another module


def arm(speaks: bool = False) -> None:
    """Wait for the import of torch, or go on at once where the program has imported it. Armed once, whoever asks.

    Args:
        speaks: the user asked for this program alone, so it gets a line where it trained nothing.
    """
    hook: ProcessHook | None = getattr(sys, HOOK, None)
    if hook is not None:
        hook.speaks |= speaks
        return
    if any(type(finder).__name__ == TorchFinder.__name__ for finder in sys.meta_path):
        return  # of version 0.2
    pid, root = str(os.getpid()) + ":", os.environ.get(ROOT, "")
    was_requested = root.startswith(pid)  # `training-profiler run` became this process
    if not root:
        os.environ[ROOT] = pid + pid[:-1] + "-" + format(time.time_ns(), "x")
    hook = ProcessHook(not root or was_requested, was_requested)
    hook.speaks |= speaks
    setattr(sys, HOOK, hook)
    if os.environ.get(TRIAL_PLAN):
        _watch_input()
    if _is_on():
        atexit.register(hook.at_exit)  # before all others, so it runs after them
    hook.finder.begin()


def _is_on() -> bool:
    return _variable("")[1].strip().lower() in ON_WORDS


def _variable(ending: str) -> "tuple[str, str]":
    """Return name and value of a variable, by its documented name or else by the short one."""
    given = os.environ.get(SWITCH + ending, "")
    name = SWITCH if given.strip() or not os.environ.get(SHORT_SWITCH + ending, "").strip() else SHORT_SWITCH
    return name + ending, os.environ.get(name + ending, "")


def _stack() -> "list[tuple[CodeType, int]]":
    """Return the code and instruction of the frames around the caller's, the innermost first."""
    stack: list[tuple[CodeType, int]] = []
    frame = sys._getframe(2)
    while frame is not None and len(stack) < MOST_FRAMES:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return stack


def _program_name() -> str:
    path = sys.argv[0] if sys.argv else ""
    name = os.path.basename(path)
    return os.path.basename(os.path.dirname(path)) if name == "__main__.py" else name


def _command() -> str:
    """Return the script's name or the module after ``-m`` with which this process was started; "" for neither.

    A child that multiprocessing spawned has the ``sys.argv`` of its parent, and is started by other words.
    """
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in ("-c", "-m"):
            return next(words, "") if word == "-m" else ""
        if not word.startswith("-"):
            return os.path.basename(word)
        if word in ("-W", "-X"):
            next(words, "")
    return ""


def _text_of(path: str) -> str:
    """Return the text of a small file; a pipe or link in its place is not read."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, MOST_META_BYTES).decode("utf-8")
    finally:
        os.close(descriptor)


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except OSError:  # the current folder is gone
        return folder


def _import_module(name: str) -> "ModuleType":
    """Return a module of the package: of the one the program would import, else of the one this file belongs to."""
    import importlib.util

    if PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(PACKAGE)
        places = [] if spec is None else list(spec.submodule_search_locations or ())
        if not any(os.path.isfile(os.path.join(place, "api.py")) for place in places):
            if spec is not None and spec.origin is not None:
                raise ImportError("another module is called " + PACKAGE + ": " + spec.origin)
            _import_own_package()
    return importlib.import_module(PACKAGE + "." + name)


def _import_own_package() -> None:
    # The program's environment lacks the package. sys.path stays as it is, so that the program cannot import the
    # packages installed beside ours.
    import importlib.util

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in ("msgspec", "numpy", "tabulate"):
        return error.name + " is missing; " + sys.executable + " -m pip install msgspec numpy tabulate"
    message = " ".join(str(error).split())
    is_ours = type(error).__module__.partition(".")[0] == PACKAGE
    return message if is_ours else type(error).__name__ + ": " + message
