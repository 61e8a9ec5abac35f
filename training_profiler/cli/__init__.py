"""One module per command."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from training_profiler.base.errors import ProfilerError

TYPE_CHECKING = False  # typing takes longer to import than `run` needs in all
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

# Each command is a module here, imported only when it is called.
# These run no code of the user.
READERS = ("report", "watch", "compare", "history", "list", "timeline", "html", "capture", "stacks", "trace", "mcp")
OPTIONS = ("-h", "--help", "--version")  # without a command
COMMANDS = ("run", "try", "bisect", *READERS, "benchmark", "env", "doctor")
# A module named "list" would hide the built-in one in this package, and "try" is a word of the language.
INTERRUPTED = 130  # exit status: 128 + SIGINT, as in shells
_MODULES = {"list": "list_runs", "try": "try_command"}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command in ``words``; return its exit status: 0, 2 for unusable input, 130 after Ctrl-C, or its own."""
    is_own_process, words = words is None, list(sys.argv[1:] if words is None else words)
    try:
        if is_own_process and words[:1] == ["trace"]:
            command_module("trace").prepare_process()
        if words[:1] == ["run"] and words[1:2] not in (["-h"], ["--help"]):
            # The words belong to another program. argparse would read its options as ours.
            return int(command_module("run").launch(words[1:]))
        if getattr(sys, "stdout", None) is None:  # as after >&- in a shell
            return say("standard output is closed")
        return _parse_and_run(words)
    except ProfilerError as error:
        return say(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        return say("there is not enough memory to read that")
    except BrokenPipeError:  # the reader, such as `head`, has stopped
        # The rest of the buffer must not fail again when the interpreter flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a name that is too long, a full disk behind standard output
        return say(f"{error.filename or 'the output'}: {error.strerror or error}")


def say(message: object, status: int = 2) -> int:
    """Print a sentence to standard error, in one line, and return ``status``."""
    from training_profiler.base.text import encodable, one_line  # not at the top: `run` does not need it

    if getattr(sys, "stderr", None) is not None:
        print(f"training-profiler: {encodable(one_line(message), sys.stderr.encoding)}", file=sys.stderr)
    return status


def _parse_and_run(words: list[str]) -> int:
    import argparse  # not at the top: `run` does not need it

    if words[:1] and not words[0].startswith("-") and words[0] not in COMMANDS:
        return say(f"{words[0]} is not a command{_command_hint(words)}")
    if words[:1] and words[0].startswith("-") and not any(option.startswith(words[0]) for option in OPTIONS):
        hint = _option_hint(words[0], OPTIONS) or "; options come after a command: training-profiler report --html"
        return say(f"{words[0]} is not an option of training-profiler itself{hint}")

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> "NoReturn":  # in one line with an example, as all other errors of commands
            examples = [line.strip() for line in str(self.description).splitlines() if line.startswith("    ")]
            example = f"; example: {[*examples, f'{self.prog} --help'][0]}"
            raise ProfilerError(message if "example: " in message or message[-1] == "?" else message + example)

    parser = Parser(
        prog="training-profiler", description="Shows where the time of a PyTorch training goes, and what to change."
    )
    version = getattr(sys.modules[__name__.partition(".")[0]], "__version__", "(not installed)")
    parser.add_argument("--version", action="version", version=f"training-profiler {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    known: list[str] = []
    for name in words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS:
        command = command_module(name)
        text = str(command.__doc__ or "").strip()
        of_command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=_wrapped(text),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.prepare_parser(of_command)
        known += (option for action in of_command._actions for option in action.option_strings)
    if words[:1] == ["try"]:  # argparse takes ``--amp`` after ``--args`` for an option of ours
        own, script, others = "\0".join(words).partition(".py\0")
        words = (own.replace("\0--args\0-", "\0--args=-") + script + others).split("\0")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        of_command.error(f"unrecognized arguments: {' '.join(unknown)}{_option_hint(unknown[0].split('=')[0], known)}")
    if arguments.command in READERS:
        import warnings

        with warnings.catch_warnings():
            # numpy warns of a figure that is not a number, which then stands as unknown in the report.
            warnings.simplefilter("ignore", RuntimeWarning)
            return int(command_module(arguments.command).run(arguments))
    return int(command_module(arguments.command).run(arguments))


def _command_hint(words: list[str]) -> str:
    if words[0].endswith(".py") or os.sep in words[0]:
        return f"; did you mean: training-profiler run {' '.join(words)}"
    return nearest(words[0], COMMANDS) or f"; there are {', '.join(COMMANDS)}"


def _option_hint(option: str, known: Sequence[str]) -> str:
    """Return what the user may have meant by an option that a command has not, such as ``report --html``."""
    command = option.removeprefix("--")
    return f"; did you mean: training-profiler {command}?" if command in COMMANDS else nearest(option, known)


def nearest(word: str, known: "Iterable[str]") -> str:
    """Return what may be meant by a word that is not known, as the end of a sentence; "" where nothing resembles it."""
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _wrapped(text: str) -> str:
    """Return a docstring for the terminal: paragraphs fill its width, and indented examples stay as they are."""
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, 100) - 2  # as argparse wraps the help of arguments
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, width, break_on_hyphens=False)
        for paragraph in paragraphs
    )


def command_module(name: str) -> "Any":
    """Return the module of a command."""
    return import_module(f"{__name__}.{_MODULES.get(name, name)}")
