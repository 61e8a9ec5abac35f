"""The redirected functions against the real ones: the same calls, on a layer over a folder and on a copy of it."""

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trials.isolation.snapshots import snapshot

STARTUP = Path(__file__).parents[3] / "training_profiler" / "trials" / "isolation" / "startup"
NAMES = ("a", "b", "c")
SEQUENCES, CALLS = 25, 40


@pytest.fixture(scope="module")
def startup() -> Iterator[Any]:
    """Return the modules of the start-up folder, which import each other by name."""
    sys.path.insert(0, str(STARTUP))
    try:
        import training_profiler_layer
        import training_profiler_redirection
    finally:
        sys.path.remove(str(STARTUP))
    yield training_profiler_layer, training_profiler_redirection
    for name in ("training_profiler_layer", "training_profiler_redirection"):
        del sys.modules[name]


def functions(redirection: Any) -> dict[str, Callable[..., Any]]:
    """Return the redirected functions, which are not installed."""
    redirected = {
        name: getattr(redirection, name) for name in ("mkdir", "rmdir", "unlink", "rename", "symlink", "link")
    }
    redirected |= {name: getattr(redirection, name) for name in ("listdir", "open")}
    return {
        **redirected,
        "stat": redirection._reading("stat"),
        "readlink": redirection._reading("readlink", follow=False),
        "truncate": redirection._changing("truncate"),
        "chmod": redirection._changing("chmod"),
    }


REAL: dict[str, Callable[..., Any]] = {
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "unlink": os.unlink,
    "rename": os.rename,
    "symlink": os.symlink,
    "link": os.link,
    "listdir": os.listdir,
    "open": open,
    "stat": os.stat,
    "readlink": os.readlink,
    "truncate": os.truncate,
    "chmod": os.chmod,
}


def random_path(random: random.Random) -> str:
    return "/".join(random.choice(NAMES) for _ in range(random.choice((1, 1, 2, 2, 3))))


def random_calls(random: random.Random) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield calls, each a name and its arguments below a folder; text of ``write`` is part of the call."""
    for number in range(CALLS):
        path, other = random_path(random), random_path(random)
        yield random.choice(
            [
                ("mkdir", (path,)),
                ("mkdir", (path,)),
                ("rmdir", (path,)),
                ("unlink", (path,)),
                ("rename", (path, other)),
                ("symlink", (path, other)),
                ("link", (path, other)),
                ("truncate", (path, 1)),
                ("chmod", (path, 0o700)),
                ("write", (path, "w", f"{number}")),
                ("write", (path, "w", f"{number}")),
                ("write", (path, "a", f"{number}")),
                ("write", (path, "x", f"{number}")),
                ("write", (path, "r+", f"{number}")),
            ]
        )


def make_call(functions: dict[str, Callable[..., Any]], top: str, name: str, arguments: tuple[Any, ...]) -> Any:
    """Return the number of the error of a call, or None."""
    try:
        if name == "write":
            path, mode, text = arguments
            with functions["open"](f"{top}/{path}", mode) as file:
                file.write(text)
        elif name == "symlink":
            functions["symlink"](os.path.relpath(arguments[0], os.path.dirname(arguments[1])), f"{top}/{arguments[1]}")
        else:
            functions[name](*(f"{top}/{one}" if isinstance(one, str) else one for one in arguments))
    except OSError as error:
        return error.errno
    return None


def content(functions: dict[str, Callable[..., Any]], top: str, path: str = "") -> dict[str, Any]:
    """Return what the functions find below ``top``."""
    found: dict[str, Any] = {}
    for name in functions["listdir"](f"{top}{path}"):
        inner = f"{path}/{name}"
        try:
            found[inner] = functions["readlink"](f"{top}{inner}")
            continue
        except OSError:
            pass
        status = functions["stat"](f"{top}{inner}")
        if os.path.stat.S_ISDIR(status.st_mode):  # type: ignore[attr-defined]
            found |= {inner: "folder", **content(functions, top, inner)}
        else:
            with functions["open"](f"{top}{inner}") as file:
                found[inner] = (file.read(), status.st_mode, status.st_nlink > 1)
    return found


def fill(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "b").mkdir()
    for path in ("a/a", "a/b/c", "b/a", "c"):
        (folder / path).write_text(f"as it was in {path}")
    (folder / "a" / "c").symlink_to("../b")


def test_random_calls_have_the_same_effect(tmp_path: Path, startup: Any) -> None:
    layer_module, redirection_module = startup
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        user, real = tmp_path / "user", tmp_path / "real"
        for folder in (user, real):
            folder.mkdir()
            fill(folder)
        before = snapshot(user)
        layer = layer_module.Layer(str(tmp_path / "layer"), (), 1 << 30)
        redirected = functions(redirection_module.Redirection(layer))
        history = []
        for name, arguments in random_calls(chance):
            expected = make_call(REAL, str(real), name, arguments)
            history.append((name, arguments, expected))
            assert make_call(redirected, str(user), name, arguments) == expected, (seed, history[-1], history)
            assert content(redirected, str(user)) == content(REAL, str(real)), (seed, history)
        assert snapshot(user) == before
        for folder in (user, real, tmp_path / "layer"):
            shutil.rmtree(folder)


def test_another_process_finds_what_was_removed(tmp_path: Path, startup: Any) -> None:
    layer_module, redirection_module = startup
    fill(tmp_path / "user")
    one, other = (
        functions(redirection_module.Redirection(layer_module.Layer(str(tmp_path / "layer"), (), 1 << 30)))
        for _ in range(2)
    )
    for path in ("c", "b/a", "a/a", "a/b/c"):
        assert other["stat"](tmp_path / "user" / path)
        one["unlink"](tmp_path / "user" / path)
        with pytest.raises(FileNotFoundError, match=f"user/{path}"):
            other["stat"](tmp_path / "user" / path)


def test_a_large_file_is_read_and_replaced_but_not_copied(tmp_path: Path, startup: Any) -> None:
    layer_module, redirection_module = startup
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * 101)
    redirected = functions(redirection_module.Redirection(layer_module.Layer(str(tmp_path / "layer"), (), 100)))

    with pytest.raises(OSError, match="copies no file of more than 100 bytes"):
        redirected["open"](large, "a")
    with redirected["open"](large, "w") as file:
        file.write("new")
    with redirected["open"](large) as file:
        assert file.read() == "new"
    assert large.read_bytes() == b"x" * 101


def test_a_link_that_leads_to_itself_is_an_error(tmp_path: Path, startup: Any) -> None:
    layer_module, redirection_module = startup
    redirected = functions(redirection_module.Redirection(layer_module.Layer(str(tmp_path / "layer"), (), 100)))
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(OSError, match="Too many levels"):
        redirected["open"](tmp_path / "loop", "w")
