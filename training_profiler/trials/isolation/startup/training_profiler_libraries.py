"""Libraries that a trial changes once the program has imported them: those that open files in C, and trackers."""

import os
import sys
from _thread import get_ident
from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

REMOTE = ("http:", "https:", "databricks")  # where mlflow keeps runs on another machine


class AfterImport:
    """A finder that calls a function with a module right after the module's import."""

    def __init__(self, actions: "dict[str, Callable[[ModuleType], None]]") -> None:
        self._actions = actions
        self._searching: set[int] = set()  # threads in find_spec: other finders may call this one again

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the other finders' spec of a module of the table; None for any other module."""
        action = self._actions.get(name)
        if action is None or get_ident() in self._searching:
            return None
        self._searching.add(get_ident())
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if find is None else find(name, path, target)
                if spec is not None:
                    self._hook(spec.loader, action)
                    return spec  # type: ignore[no-any-return]
        finally:
            self._searching.discard(get_ident())
        return None

    def _hook(self, loader: "Any", action: "Callable[[ModuleType], None]") -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            try:
                action(module)
            except Exception as error:  # another version of the library; the kernel's guard still holds
                sys.stderr.write(f"training_profiler: {module.__name__} is not redirected: {error!r}\n")

        _replace(loader, "exec_module", exec_module)


def trackers(local_store: str) -> "dict[str, Callable[[ModuleType], None]]":
    """Return what keeps trackers from sending, also where the program asks them to.

    Args:
        local_store: where MLflow keeps runs that the program would send to a server.
    """

    def wandb(module: "ModuleType") -> None:
        _wrap_named(module, "init", "mode", lambda mode: mode if mode == "disabled" else "offline")

    def mlflow(module: "ModuleType") -> None:
        resolve = module._resolve_tracking_uri

        def resolve_locally(tracking_uri: "Any" = None) -> str:
            found = str(resolve(tracking_uri))
            return local_store if found.startswith(REMOTE) else found

        _replace(module, "_resolve_tracking_uri", resolve_locally)

    return {"wandb.sdk.wandb_init": wandb, "mlflow.tracking._tracking_service.utils": mlflow}


def shared_memory(record: "Callable[[str], None]") -> "dict[str, Callable[[ModuleType], None]]":
    """Return what records the names of shared memory that the program creates."""

    def posix(module: "Any") -> None:
        shm_open = module.shm_open

        @wraps(shm_open)
        def call(path: str, flags: int, *arguments: "Any", **named: "Any") -> "Any":
            if flags & os.O_CREAT:
                record(path.lstrip("/"))
            return shm_open(path, flags, *arguments, **named)

        _replace(module, "shm_open", call)

    return {"_posixshmem": posix}


class Files:
    """Sends files that are opened in C into the layer.

    Args:
        reading: returns the real file of a path.
        writing: returns the file to write for a path; its second argument is whether the content matters.
    """

    def __init__(self, reading: "Callable[[Any], Any]", writing: "Callable[[Any, bool], Any]") -> None:
        self._reading, self._writing = reading, writing

    def actions(self) -> "dict[str, Any]":
        """Return what to do with each module."""
        return {
            "subprocess": self._subprocess,
            "torch": self._torch,
            "sqlite3.dbapi2": self._sqlite,
            "safetensors": self._safetensors,
            "h5py": self._h5py,
        }

    def _read(self, path: "Any", _: object) -> "Any":
        return self._reading(path)

    def _overwrite(self, path: "Any", _: object) -> "Any":
        return self._writing(path, False)

    def _subprocess(self, module: "Any") -> None:
        start = module.Popen.__init__

        @wraps(start)
        def init(popen: "Any", *arguments: "Any", **named: "Any") -> None:
            if named.get("cwd") is not None:
                named["cwd"] = self._reading(named["cwd"])
            start(popen, *arguments, **named)

        _replace(module.Popen, "__init__", init)

    def _torch(self, module: "Any") -> None:
        def stored(path: "Any", rest: "Any") -> "Any":
            return self._writing(path, True) if _is_shared(rest) else self._reading(path)

        native, storage = module._C, module.UntypedStorage
        _replace(native, "PyTorchFileWriter", _with_path(native.PyTorchFileWriter, 0, "", self._overwrite))
        _replace(native, "PyTorchFileReader", _with_path(native.PyTorchFileReader, 0, "", self._read))
        _replace(module, "from_file", _with_path(module.from_file, 0, "filename", stored))
        _replace(storage, "from_file", staticmethod(_with_path(storage.from_file, 0, "filename", stored)))

    def _sqlite(self, module: "Any") -> None:
        def database(path: "Any", _: object) -> "Any":
            text = os.fsdecode(path)
            if text in ("", ":memory:") or text.startswith("file:"):
                return path
            for ending in ("-journal", "-wal"):  # unfinished transactions belong to the database
                if os.path.exists(text + ending):
                    self._writing(text + ending, True)
            try:
                return self._writing(path, True)
            except OSError:  # too large to copy: it can be read
                return self._reading(path)

        _replace(module, "connect", _with_path(module.connect, 0, "database", database))

    def _safetensors(self, module: "Any") -> None:
        _replace(module, "serialize_file", _with_path(module.serialize_file, 1, "filename", self._overwrite))
        _replace(module, "safe_open", _with_path(module.safe_open, 0, "filename", self._read))

    def _h5py(self, module: "Any") -> None:
        start = module.File.__init__

        @wraps(start)
        def init(file: "Any", name: "Any", mode: "Any" = "r", *arguments: "Any", **named: "Any") -> None:
            if isinstance(name, (str, bytes, os.PathLike)):
                is_read = mode in ("r", None)
                name = self._reading(name) if is_read else self._writing(name, mode in ("a", "r+"))
            start(file, name, mode, *arguments, **named)

        _replace(module.File, "__init__", init)


def _is_shared(rest: "tuple[tuple[Any, ...], dict[str, Any]]") -> bool:
    arguments, named = rest
    return bool(arguments[1] if len(arguments) > 1 else named.get("shared", False))


def _with_path(function: "Any", position: int, name: str, find: "Callable[[Any, Any], Any]") -> "Any":
    """Return ``function`` called with the real path in place of its path argument."""

    @wraps(function, updated=())
    def call(*arguments: "Any", **named: "Any") -> "Any":
        path = arguments[position] if len(arguments) > position else named.get(name)
        if not isinstance(path, (str, bytes, os.PathLike)):
            return function(*arguments, **named)
        real = find(path, (arguments, named))
        if len(arguments) > position:
            return function(*arguments[:position], real, *arguments[position + 1 :], **named)
        return function(*arguments, **{**named, name: real})

    return call


def _wrap_named(module: "Any", function: str, argument: str, change: "Callable[[Any], Any]") -> None:
    """Replace a function of ``module`` by one that is called with another value of one named argument."""
    import inspect

    original = getattr(module, function)
    signature = inspect.signature(original)

    @wraps(original)
    def call(*arguments: "Any", **named: "Any") -> "Any":
        bound = signature.bind(*arguments, **named)
        bound.arguments[argument] = change(bound.arguments.get(argument))
        return original(*bound.args, **bound.kwargs)

    _replace(module, function, call)


def _replace(module: object, name: str, function: object) -> None:
    setattr(module, name, function)
