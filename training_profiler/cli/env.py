"""Print a shell line that makes RECTIFIED_FLOW_PROFILE=1 profile any program started in that shell.

    eval "$(training-profiler env)"
    RECTIFIED_FLOW_PROFILE=1 python train.py

The line alone profiles nothing: without the variable every program runs as before.
"""

import argparse
import shlex
import sys

from training_profiler.cli.run import BOOTSTRAP


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print the line and return 0."""
    sys.stdout.write(shell_lines(BOOTSTRAP))
    sys.stdout.flush()
    return 0


def shell_lines(bootstrap: str) -> str:
    """Return shell lines that put ``bootstrap`` first on PYTHONPATH, once, in any POSIX shell."""
    folder = shlex.quote(bootstrap)
    # The comment comes last: an unquoted eval joins all lines.
    return (
        f'case ":${{PYTHONPATH-}}:" in *:{folder}:*) ;; '
        f'*) export PYTHONPATH={folder}"${{PYTHONPATH:+:$PYTHONPATH}}" ;; esac\n'
        "# From now on, in this shell: RECTIFIED_FLOW_PROFILE=1 python train.py\n"
    )
