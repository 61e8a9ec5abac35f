"""The command line ``training-profiler``: one module a command."""

import argparse
import sys
from collections.abc import Sequence

from training_profiler.cli import report
from training_profiler.errors import ProfilerError

COMMANDS = {"report": report}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that ``words`` name and return its exit status: 0, or 2 for input it cannot use."""
    parser = argparse.ArgumentParser(
        prog="training-profiler", description="Where a PyTorch training's time goes, and what to change."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").strip().splitlines()[0]
        command.prepare_parser(commands.add_parser(name, help=summary, description=command.__doc__))
    arguments = parser.parse_args(words)
    try:
        status: int = COMMANDS[arguments.command].run(arguments)
    except ProfilerError as error:
        print(f"training-profiler: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `... | head` has read enough
        sys.stderr.close()
        return 0
    return status
