"""What each Python process of a trial does before the program: redirect its files if the plan says so."""

import errno
import json
import os
import sys
from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


FAILED = 125


def enter(folder: str) -> None:
    """Follow the plan in ``folder``; where that fails, the program does not start."""
    try:
        with open(folder + "/plan.json", encoding="utf-8") as file:
            plan = json.load(file)
        import training_profiler_libraries as libraries  # type: ignore[import-not-found]

        actions = libraries.trackers(plan["scratch"] + "/mlflow")
        if plan["way"].startswith("redirection"):
            actions.update(_record_shared_memory(folder, libraries))
            actions.update(_redirect(plan, libraries))
        else:
            _rename_folders()
        sys.meta_path.insert(0, libraries.AfterImport(actions))
    except BaseException as error:
        sys.stderr.write(f"training_profiler: a trial cannot be isolated: {error!r}\n")
        sys.stderr.flush()
        os._exit(FAILED)


def _record_shared_memory(folder: str, libraries: "Any") -> "dict[str, Any]":
    """Write the names of shared memory of this process to a file, because a killed process leaves it behind."""

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
    return dict(libraries.shared_memory(record))


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

    setattr(os, "rename", copying(os.rename))  # noqa: B010, as for every function of another module
    setattr(os, "replace", copying(os.replace))  # noqa: B010


def _redirect(plan: "dict[str, Any]", libraries: "Any") -> "dict[str, Any]":
    from training_profiler_layer import Layer  # type: ignore[import-not-found]
    from training_profiler_redirection import Redirection  # type: ignore[import-not-found]

    layer = Layer(plan["scratch"] + "/layers/0", plan["passed"], plan["most_file_bytes"])
    redirection = Redirection(layer)
    redirection.install()

    def reading(path: "Any") -> str:
        return str(layer.find(redirection.path(path)))

    def writing(path: "Any", content_matters: bool) -> str:
        return str(layer.to_write(redirection.path(path), content_matters))

    return dict(libraries.Files(reading, writing).actions())
