"""Write a run as one HTML page that opens in a browser, also without a network.

The page has the verdict, what to change with the lines of source code, step time and its sections over the steps, a
flame view of the line samples, epochs, loaders, the machine, ranks, the checklist and the profiler's health.
Lines of source code are on it while their files are as they were when the run began, and the run folder is yours;
--no-source leaves them out.
"""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Final

from training_profiler.base.errors import TraceError
from training_profiler.base.units import BYTES_PER_MIB
from training_profiler.cli.common import add_attempt, add_run, write_file
from training_profiler.cli.report import chosen_run, findings_of
from training_profiler.cli.trace import summary_of
from training_profiler.reports.page_render import PageOrigin, places, render_page
from training_profiler.storage.run_folder import PAGE, captures_of, read_meta, read_program, typed_path
from training_profiler.storage.run_reader import read_run
from training_profiler.storage.source_lines import read_lines
from training_profiler.storage.timeline_reader import RankReader, read_series

MOST_TRACE_BYTES: Final = 8 * BYTES_PER_MIB  # of all analysed traces of a run: larger ones take long


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)
    add_attempt(parser)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"the file to write (default: {PAGE} in the run folder)"
    )
    parser.add_argument("--no-source", action="store_true", help="leave lines of source code out of the page")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and return 0."""
    folder = chosen_run(arguments.run)
    snapshot = read_run(folder, arguments.attempt, reader := RankReader())
    findings = findings_of(folder, snapshot)
    ranks = read_series(folder, arguments.attempt, reader)
    meta = read_meta(folder)
    wanted = [] if arguments.no_source else places(snapshot, findings)
    found = read_lines(folder, meta, wanted, ranks[0].sources if ranks and ranks[0].rank == 0 else {})
    versions = meta.get("versions")
    origin = PageOrigin(
        read_program(folder) or "",
        typed_path(folder),
        str(meta.get("began", "")),
        str(meta.get("command", "")),
        {str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {},
        _captures(folder),
    )
    page = render_page(snapshot, findings, ranks, origin, found.lines, found.missing)
    write_file(page, arguments.output, folder / PAGE)
    return 0


def _captures(folder: Path) -> dict[str, str]:
    """Return the traces of a run by their paths, with what the command trace shows of each; "" of those left out."""
    shown, left_bytes = {}, MOST_TRACE_BYTES
    for name in captures_of(folder):
        shown[name] = ""
        with suppress(OSError, TraceError):  # the command trace says what is wrong with it
            size = (folder / name).stat().st_size
            if size <= left_bytes:
                left_bytes -= size
                shown[name] = summary_of(folder / name)
    return shown
