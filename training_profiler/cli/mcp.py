"""Serve runs to an assistant over standard input and output, by the Model Context Protocol; nothing is changed.

The tools list runs and return findings, reports, comparisons and analyses of traces, so that an assistant can answer
"why is my training slow". Only what lies below the given paths is read. It needs pip install 'training-profiler[mcp]'.

    training-profiler mcp
    training-profiler mcp runs /data/other-runs trace.pt.trace.json.gz
"""

import argparse
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import MissingExtraError, ProfilerError, RunFolderError
from training_profiler.base.text import one_line
from training_profiler.cli.served_runs import ServedRuns
from training_profiler.settings.settings import read_settings

NAME: Final = "training-profiler"
INTERRUPTED: Final = 130
INSTRUCTIONS: Final = (
    "Measurements of PyTorch trainings. Begin with findings(): its insights are ordered by what they could save "
    "(worth_s). All figures are measured; a finding that is missing was not supported by the data."
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="*",
        metavar="PATH",
        help="folders of runs, run folders or traces that may be read (default: the folder set by dir, runs)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until the assistant closes standard input and return 0, or 130 after Ctrl-C.

    Raises:
        RunFolderError: a path does not exist.
        MissingExtraError: the package mcp is not installed.
    """
    paths = arguments.paths or [Path(read_settings().dir)]
    for path in paths:
        if arguments.paths and not path.exists():
            raise RunFolderError(f"{path} does not exist; give folders of runs, run folders or traces")
    server = server_of(ServedRuns(paths))
    try:
        server.run("stdio")
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def server_of(runs: ServedRuns) -> Any:
    """Return the server of the protocol.

    Raises:
        MissingExtraError: the package mcp is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp_types import ToolAnnotations
    except ImportError:
        raise MissingExtraError(
            "The command mcp needs the package mcp, version 2 or newer: pip install 'training-profiler[mcp]'"
        ) from None

    def with_plain_errors(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def tool(*words: Any, **named: Any) -> Any:
            try:
                return method(*words, **named)
            except (ProfilerError, OSError, MemoryError) as error:
                raise ToolError(one_line(error) or type(error).__name__) from None

        return tool

    server = MCPServer(NAME, instructions=INSTRUCTIONS, log_level="WARNING")
    annotations = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    for method in (runs.findings, runs.list_runs, runs.report, runs.compare, runs.list_traces, runs.trace):
        server.tool(annotations=annotations)(with_plain_errors(method))
    return server
