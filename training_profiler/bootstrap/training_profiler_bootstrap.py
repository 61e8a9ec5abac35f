"""Waits for the program to import torch, then starts the profiler; says at the end when there was nothing to measure.

Standard library alone, and little of it: this runs at the start of every Python process of a profiled launch.
Nothing here raises into the program; what goes wrong is one line on stderr.
"""

import atexit
import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False  # typing itself takes longer to import than this file
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGE = "training_profiler"
SWITCH = "RECTIFIED_FLOW_PROFILE"
ON_WORDS = ("1", "true", "yes", "on")
DEFAULT_DIR = "runs"
NEWEST = 20  # run folders looked through for one that a child process left
# Programs that a shell script or a prepared shell starts beside the training.
OWN_COMMANDS = ("training-profiler", "training_profiler")
HELPERS = ("-c", "pip", "ensurepip", "venv", "virtualenv", *OWN_COMMANDS)
# A frame of this name is left out of tracebacks of failed imports, and not counted by warnings.
IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"


class TorchFinder:
    """Finds no module itself; lets the loader of torch tell when torch has been imported.

    Others find the module's spec, and it stays as they made it. Looking for the spec without importing it
    changes nothing.
    """

    def __init__(self, act: "Callable[[], None]") -> None:
        self.began_import = False
        self._has_finished = False
        self._act = act
        self._asking: set[int] = set()  # threads that look for the spec: other finders may ask this one again

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of torch as the other finders have it; None for anything else."""
        if name != "torch" or get_ident() in self._asking:
            return None
        self._asking.add(get_ident())
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if find is None else find(name, path, target)
                if spec is not None:
                    self._hook(spec.loader)
                    return spec  # type: ignore[no-any-return]
        finally:
            self._asking.discard(get_ident())
        return None

    def _hook(self, loader: object) -> None:
        execute = getattr(loader, "exec_module", None)
        attributes = getattr(loader, "__dict__", None)
        if execute is None or not isinstance(attributes, dict) or "exec_module" in attributes:
            return

        def exec_module(module: "ModuleType") -> None:
            attributes.pop("exec_module", None)  # the loader is as it was before torch can look at it
            self.began_import = True
            execute(module)
            if module.__name__ == "torch":
                self._finish()

        exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORT_SYSTEM)
        attributes["exec_module"] = exec_module

    def _finish(self) -> None:
        if self._has_finished:
            return
        self._has_finished = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._act()


class ProcessHook:
    """One process of a launch: what it says where nothing could be measured, and what it starts when torch is there."""

    def __init__(self, is_first: bool, was_asked_for: bool) -> None:
        self.begin_ns = time.perf_counter_ns()
        self.began_s = time.time()
        self.finder = TorchFinder(self.start_profiler)
        self._pid = os.getpid()
        self._is_first = is_first
        self._was_asked_for = was_asked_for
        self._has_told = False
        self._launch = os.environ.get(SWITCH + "_ROOT", "").partition(":")[2]
        self._runs = _absolute(os.environ.get(SWITCH + "_DIR", "").strip() or DEFAULT_DIR)

    def start_profiler(self) -> None:
        """Start the profiler, now that torch has been imported: by a program, not by a command of our own."""
        if _program_name() in OWN_COMMANDS:
            return
        before = {name for name in sys.modules if name.partition(".")[0] == PACKAGE}
        try:
            _import_api().start_instrumentation(self.begin_ns)
        except Exception as error:
            self.tell("nothing is measured: " + _reason(error))
            for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
                if name not in before:  # a later import by the program itself shall begin anew
                    del sys.modules[name]

    def tell(self, sentence: str) -> None:
        """Write one line to stderr, where there is one."""
        self._has_told = True
        try:
            sys.stderr.write(PACKAGE + ": " + sentence + "\n")
            sys.stderr.flush()
        except Exception:  # closed, replaced, or None
            pass

    def at_exit(self) -> None:
        """Say that nothing was measured, and why, at the end of the process that the user started."""
        try:
            if self._is_first and not self._has_told and os.getpid() == self._pid and self._is_program():
                reason = self._why_nothing()
                if reason is not None and not self._child_measured():
                    self.tell("nothing measured: " + reason)
        except Exception:  # it would be a traceback at the end of somebody else's program
            pass

    def _is_program(self) -> bool:
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return False
        return self._was_asked_for or _program_name().rstrip("0123456789.") not in HELPERS

    def _why_nothing(self) -> "str | None":
        if "torch" not in sys.modules:
            if self.finder.began_import:
                return "importing torch failed"
            return "the program never imported torch"
        api = sys.modules.get(PACKAGE + ".api")
        if api is None:
            return "torch was imported in a way that the profiler does not see"
        why: str | None = api.why_nothing()
        return why

    def _child_measured(self) -> bool:
        """Return whether one of the newest run folders is of this launch."""
        try:
            names = [name for name in os.listdir(self._runs) if name[:8].isdigit()]
        except OSError:
            return False
        for name in sorted(names, reverse=True)[:NEWEST]:
            folder = os.path.join(self._runs, name)
            try:
                if os.stat(folder).st_mtime < self.began_s - 1:  # 1 s: file systems round
                    continue
                with open(os.path.join(folder, "meta.json"), encoding="utf-8") as meta:
                    if self._launch in meta.read():
                        return True
            except (OSError, ValueError):
                continue
        return False


def begin(is_first: bool, was_asked_for: bool) -> None:
    """Watch this process from now on.

    Args:
        is_first: no other Python process of the launch came before, so this one speaks for all.
        was_asked_for: the user named this very program to ``training-profiler run``.
    """
    if any(type(finder).__name__ == TorchFinder.__name__ for finder in sys.meta_path):
        return  # two installations stand on PYTHONPATH
    hook = ProcessHook(is_first, was_asked_for)
    given = os.environ.get(SWITCH, "")
    if given.strip().lower() not in ON_WORDS:
        if is_first:
            hook.tell(
                "nothing is measured: " + SWITCH + "=" + repr(given) + " is neither on (1, true, yes, on) nor off "
                "(0, false, no, off); example: " + SWITCH + "=1"
            )
        return
    atexit.register(hook.at_exit)  # before all others, so it runs after them
    sys.meta_path.insert(0, hook.finder)


def _program_name() -> str:
    path = sys.argv[0] if sys.argv else ""
    name = os.path.basename(path)
    return os.path.basename(os.path.dirname(path)) if name == "__main__.py" else name


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except OSError:  # the current folder is gone
        return folder


def _import_api() -> "ModuleType":
    """Return ``training_profiler.api``: the one the program would import, else the one this file belongs to."""
    import importlib.util

    if PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(PACKAGE)
        places = [] if spec is None else list(spec.submodule_search_locations or ())
        if not any(os.path.isfile(os.path.join(place, "api.py")) for place in places):
            if spec is not None and spec.origin is not None:
                raise ImportError("another module is called " + PACKAGE + ": " + spec.origin)
            _import_own_package()
    return importlib.import_module(PACKAGE + ".api")


def _import_own_package() -> None:
    # The program runs in an environment that lacks the package. Nothing is added to sys.path: what else lies
    # beside the package there is none of the program's business.
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
    if isinstance(error, ModuleNotFoundError) and error.name in ("numpy", "tabulate"):
        return error.name + " is missing; " + sys.executable + " -m pip install numpy tabulate"
    said = " ".join(str(error).split())
    is_ours = type(error).__module__.partition(".")[0] == PACKAGE
    return said if is_ours else type(error).__name__ + ": " + said
