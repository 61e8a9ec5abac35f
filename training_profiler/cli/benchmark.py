"""Time a model's passes and every distinct module in it, on its real inputs.

    training-profiler benchmark train.py:factory
    training-profiler benchmark package.module:factory --depth 2 --json out.json

FACTORY is a function without arguments that returns (model, input). A loss (a
callable that takes the output), a target (a tensor) and an optimizer may
follow. The input is a tensor, a tuple of arguments or a dict of keyword
arguments.
"""

import argparse
import importlib
import json
import os
import sys
import traceback
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from training_profiler.base.errors import BenchmarkError
from training_profiler.base.text import printable_lines
from training_profiler.cli.common import time_in, whole_number, write
from training_profiler.safety.files import write_output

OURS = str(Path(__file__).resolve().parents[1])
STDOUT = "-"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("source", metavar="MODULE:FACTORY", help="package.module:name, or path/to/file.py:name")
    levels = whole_number("a number of levels (0, 1, ...); example: 2")
    parser.add_argument("--depth", type=levels, help="levels of modules below the model (default: all)")
    threads = whole_number("a number of threads (1, 2, ...); example: 4", 1)
    parser.add_argument("--threads", type=threads, help="CPU threads of torch (default: torch's own choice)")
    parser.add_argument(
        "--min-run-time",
        type=time_in("a time of at most 3600 s; example: 0.5", most_s=3600),
        default=0.2,
        metavar="SECONDS",
        help="minimum measuring time per row in seconds (default: 0.2)",
    )
    parser.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also time backward passes and the optimizer step; --no-backward turns gradients off",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write the timings as JSON to a file, or print them instead of the table",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table or JSON, and return 0."""
    is_data_alone = arguments.json == STDOUT
    try:
        # stdout is for the JSON alone, so output of the factory and the model goes to stderr.
        with redirect_stdout(sys.stderr) if is_data_alone else nullcontext():
            text, data = _measured(arguments)
    except BenchmarkError as error:
        if error.shows_cause and error.__cause__ is not None:
            sys.stderr.write(traceback_text(error.__cause__))
        raise
    if arguments.json is not None:
        _write(arguments.json, json.dumps(data, indent=1, allow_nan=False) + "\n")
    if not is_data_alone:
        write(printable_lines(text))
    return 0


def traceback_text(error: BaseException) -> str:
    """Return the traceback from the first frame of the user's code on."""
    lines = traceback.TracebackException.from_exception(error)
    before = (OURS, "<frozen importlib", os.path.dirname(importlib.__file__))
    while lines.stack and lines.stack[0].filename.startswith(before):
        lines.stack.pop(0)
    return "".join(lines.format())


def _measured(arguments: argparse.Namespace) -> tuple[str, dict[str, object]]:
    # These import torch, which the other commands do not need.
    from training_profiler.component_benchmark.measure import Options, measure
    from training_profiler.component_benchmark.result import TorchStopwatch, components_as_data, render_components
    from training_profiler.component_benchmark.subject import read_subject

    subject = read_subject(arguments.source)
    stopwatch = TorchStopwatch(arguments.threads, arguments.min_run_time, _show_progress)
    try:
        benchmark = measure(subject, stopwatch, Options(stopwatch.threads, arguments.depth, arguments.backward))
    finally:
        _show_progress("")
    return render_components(benchmark), components_as_data(benchmark)


def _show_progress(what: str) -> None:
    """Show on a terminal what is being timed. The next text replaces the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{'timing ' if what else ''}{what[:70]}")
        sys.stderr.flush()


def _write(place: str, text: str) -> None:
    if place == STDOUT:
        sys.stdout.write(text)
        return
    try:
        write_output(Path(place), text.encode())
    except OSError as error:
        raise BenchmarkError(f"--json {place} cannot be written ({error.strerror}); example: --json a.json") from None
