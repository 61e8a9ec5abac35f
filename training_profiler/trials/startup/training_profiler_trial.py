"""What each Python process of a trial does before the program: keeps trackers offline, and adapts a few functions."""

import errno
import json
import os
import sys
from functools import partial, wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bootstrap")
FAILED = 125
REMOTE = ("http:", "https:", "databricks")  # where mlflow keeps runs on another machine


def enter(folder: str) -> None:
    """Follow the plan in ``folder``; where that fails, the program does not start."""
    try:
        with open(folder + "/plan.json", encoding="utf-8") as file:
            plan = json.load(file)
        actions = trackers(plan["scratch"] + "/mlflow")
        if plan["way"].startswith("copy"):
            actions.update(_record_shared_memory(folder))
        else:
            _rename_folders()
        _after_imports(actions)
    except BaseException as error:
        sys.stderr.write(f"training_profiler: a trial cannot be isolated: {error!r}\n")
        sys.stderr.flush()
        os._exit(FAILED)


def _record_shared_memory(folder: str) -> "dict[str, Callable[[Any], None]]":
    """Write the names of shared memory of this process to a file, because a killed process leaves it behind.

    Returns:
        What does so for the names that the program creates.
    """

    def record(name: str) -> None:
        descriptor = os.open(folder + "/shared_memory.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, os.fsencode(name) + b"\n")
        finally:
            os.close(descriptor)

    def record_process() -> None:
        record(f"torch_{os.getpid()}_*")  # how torch names its own

    record_process()
    os.register_at_fork(after_in_child=record_process)

    def posix(module: "Any") -> None:
        shm_open = module.shm_open

        @wraps(shm_open)
        def call(path: str, flags: int, *arguments: "Any", **named: "Any") -> "Any":
            if flags & os.O_CREAT:
                record(path.lstrip("/"))
            return shm_open(path, flags, *arguments, **named)

        _replace(module, "shm_open", call)

    return {"_posixshmem": posix}


def _rename_folders() -> None:
    """Rename a folder of the user by copying it: in a user namespace an overlay cannot rename one."""

    def copying(rename: "Callable[..., None]") -> "Callable[..., None]":
        @wraps(rename)
        def call(src: "Any", dst: "Any", **named: "Any") -> None:
            try:
                rename(src, dst, **named)
            except OSError as error:
                is_folder = error.errno == errno.EXDEV and not named and os.path.isdir(src) and not os.path.islink(src)
                if not is_folder or os.lstat(src).st_dev != os.lstat(os.path.dirname(os.path.abspath(dst))).st_dev:
                    raise
                import shutil

                if os.path.lexists(dst):
                    os.rmdir(dst)
                shutil.copytree(src, dst, symlinks=True)
                shutil.rmtree(src)

        return call

    _replace(os, "rename", copying(os.rename))
    _replace(os, "replace", copying(os.replace))


def _after_imports(actions: "dict[str, Callable[[Any], None]]") -> None:
    """Call each action with the module of its name right after the module's import."""
    sys.path.insert(0, BOOTSTRAP)
    try:
        from training_profiler_hook import ModuleFinder  # type: ignore[import-not-found]
    finally:
        sys.path.remove(BOOTSTRAP)

    def act(name: str) -> None:
        try:
            actions[name](sys.modules[name])
        except Exception as error:  # another version of the library
            sys.stderr.write(f"training_profiler: {name} is not kept offline: {error!r}\n")

    for name in actions:
        ModuleFinder(name, partial(act, name)).begin()


def trackers(local_store: str) -> "dict[str, Callable[[ModuleType], None]]":
    """Return what keeps trackers from sending, also where the program asks them to.

    Args:
        local_store: where MLflow keeps runs that the program would send to a server.
    """

    def wandb(module: "ModuleType") -> None:
        import inspect

        original = module.init
        signature = inspect.signature(original)

        @wraps(original)
        def init(*arguments: "Any", **named: "Any") -> "Any":
            bound = signature.bind(*arguments, **named)
            if bound.arguments.get("mode") != "disabled":
                bound.arguments["mode"] = "offline"
            return original(*bound.args, **bound.kwargs)

        _replace(module, "init", init)

    def mlflow(module: "ModuleType") -> None:
        resolve = module._resolve_tracking_uri

        def resolve_locally(tracking_uri: "Any" = None) -> str:
            found = str(resolve(tracking_uri))
            return local_store if found.startswith(REMOTE) else found

        _replace(module, "_resolve_tracking_uri", resolve_locally)

    return {"wandb.sdk.wandb_init": wandb, "mlflow.tracking._tracking_service.utils": mlflow}


def _replace(module: object, name: str, function: object) -> None:
    setattr(module, name, function)
