"""Profile an unmodified training script, module, or command that starts one.

    training-profiler run train.py --lr 1e-3
    training-profiler run -m package.module
    training-profiler run torchrun --nproc_per_node=2 train.py
    training-profiler run --quiet --sinks tensorboard --name baseline train.py

The program replaces this process. All words after its name are its own arguments. Every setting is a flag before the
program's name, and wins over its variable.
"""

import errno
import os
import signal
import sys
from collections.abc import Iterator

from training_profiler.base.switch import (
    PREFIX,
    ROOT,
    SHORT_PREFIX,
    launch_environment,
    set_variable,
    start_up_file,
)
from training_profiler.cli import say

TYPE_CHECKING = False  # typing and argparse each take longer to import than this whole module
if TYPE_CHECKING:
    import argparse

BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap")
BAD_USE, CANNOT_EXECUTE, NOT_FOUND = 2, 126, 127  # as in shells


def prepare_parser(parser: "argparse.ArgumentParser") -> None:
    """Add the command's arguments; they serve the help alone, and ``launch`` reads them."""
    from training_profiler.cli.flags import QUIET, flags

    parser.usage = "training-profiler run [FLAG ...] PROGRAM [ARGUMENT ...]"
    parser.add_argument(
        "words",
        nargs="...",
        metavar="PROGRAM",
        help="as after `python`: a script, -m and a module; or a command such as torchrun",
    )
    for flag in flags():
        meaning = "print the final summary alone" if flag.name == QUIET else flag.setting.meaning
        if flag.value is None:
            text = f"{meaning} (default: {flag.setting.default})".replace("%", "%%")
            parser.add_argument(flag.name, metavar=flag.setting.argument.rpartition("_")[2].upper(), help=text)
        else:
            text = f"not: {meaning}" if flag.value == "no" else meaning
            parser.add_argument(flag.name, action="store_true", help=text.replace("%", "%%"))


def run(arguments: "argparse.Namespace") -> int:
    """Replace this process by the program; return an exit status only if that fails."""
    return launch(arguments.words)


def launch(words: list[str]) -> int:
    """Replace this process by the program in ``words``; return an exit status only if that fails.

    Raises:
        SettingsError, MissingExtraError: a variable has an unusable value, or a tracker's package is missing.
    """
    given: dict[str, str] = {}
    if words[:1] and words[0].startswith("--") and words[0] != "--":
        from training_profiler.cli.flags import HELP, read_flags  # reads the settings, which takes longer than all here

        given, words = read_flags(words)
        if words[:1] and words[0] in HELP:
            from training_profiler.cli import main

            return main(["run", "--help"])
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        return say("run needs a program; example: training-profiler run train.py --lr 1e-3", BAD_USE)
    program, arguments, is_python = resolve(words)
    if not program:
        return say("this Python does not know its own path; put it in front of the script", BAD_USE)
    environment = launch_environment(BOOTSTRAP, is_python)
    for name, value in given.items():
        set_variable(environment, name, value)
    if any(name.startswith((PREFIX, SHORT_PREFIX)) and name != ROOT for name in environment):
        from training_profiler.settings.settings import read_settings  # takes longer than everything else here

        settings = read_settings(environ=environment)
        interpreter = program if is_python else _first_line(program)[2:].strip()
        is_here = os.path.dirname(interpreter) == os.path.dirname(sys.executable)
        if is_here and settings.sinks and not settings.sinks_optional:
            from training_profiler.sinks.trackers import with_installed_sinks

            with_installed_sinks(settings)
    _warn_if_unprofiled(program, arguments[1:] if is_python else _shebang_options(program))
    return _become(program, arguments, environment)


def resolve(words: list[str]) -> tuple[str, list[str], bool]:
    """Return what starts the program in ``words``: its path, its arguments with its name, and whether it is Python.

    The path is empty if this interpreter does not know its own.
    """
    program = _command(words[0])
    arguments = words if program else [sys.executable, *words]
    program = program or sys.executable
    return program, arguments, bool(program) and _is_python(program)


def _become(program: str, arguments: list[str], environment: dict[str, str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller
            stream.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and the new program would inherit that
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program, arguments, environment)
    except OSError as error:
        if error.errno != errno.ENOENT:
            return say(f"{program} cannot be executed: {error.strerror}", CANNOT_EXECUTE)
        why = "the interpreter in its first line does not exist" if os.path.exists(program) else error.strerror
        return say(f"{program} cannot be executed: {why}", NOT_FOUND)


def _command(word: str) -> str | None:
    """Return the path of a command; None if ``word`` is for Python: a script, or an option."""
    if word.startswith("-") or (word.endswith(".py") and os.path.isfile(word)):
        return None
    if os.sep in word:
        paths = [word] if _is_executable(word) else []
    else:
        paths = [path for path in (os.path.join(folder, word) for folder in os.get_exec_path()) if _is_executable(path)]
    if not paths and _is_other_language(word):
        return word
    return paths[0] if paths else None


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_other_language(path: str) -> bool:
    # Python would only report a syntax error, also for a script that lacks the permission to execute.
    first = _first_line(path)
    return first.startswith("#!") and "python" not in first


def _shebang_options(path: str) -> list[str]:
    # Some systems install commands with `#!/usr/bin/python3 -Es`.
    words = _first_line(path).removeprefix("#!").split()
    return words[1:] if words and _is_python(words[0]) else []


def _first_line(path: str) -> str:
    if not os.path.isfile(path):  # what a pipe holds is for the program
        return ""
    try:
        with open(path, "rb") as file:
            return file.readline(200).decode("latin-1")
    except OSError:
        return ""


def _is_python(path: str) -> bool:
    name = os.path.basename(path).lower().removesuffix(".exe")
    return path == sys.executable or (
        name.startswith(("python", "pypy"))
        and not name.removeprefix("python").removeprefix("pypy").strip("0123456789.tw")
    )


def _warn_if_unprofiled(program: str, options: list[str]) -> None:
    option = _isolating_option(iter(options))
    if option is None or (option != "S" and program == sys.executable and start_up_file(option == "I")):
        return
    does = "skips sitecustomize" if option == "S" else "ignores PYTHONPATH"
    print(
        f"training-profiler: nothing will be measured: python -{option} {does}, "
        "through which the profiler enters the program; remove the option",
        file=sys.stderr,
    )


def _isolating_option(options: Iterator[str]) -> str | None:
    """Return the interpreter option that disables the bootstrap: I, E or S; None without one."""
    for word in options:
        if word == "--check-hash-based-pycs":
            next(options, None)
            continue
        if not word.startswith("-") or word in ("-", "--"):
            return None
        for at, letter in enumerate(word[1:], start=1):
            if letter in "IES":
                return letter
            if letter in "cm":  # the rest belongs to the program
                return None
            if letter in "WX":  # its value is the rest of this word, or the next
                if at == len(word) - 1:
                    next(options, None)
                break
    return None
