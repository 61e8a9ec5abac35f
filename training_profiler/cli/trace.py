"""Analyse traces of torch.profiler: where the device's time goes, why it stands still, what to change."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from training_profiler.errors import TraceError
from training_profiler.reports.trace.comparison import render_comparison
from training_profiler.reports.trace.views import VIEWS, render_view
from training_profiler.trace.analysis import Analysis, analyse
from training_profiler.trace.columns import Columns
from training_profiler.trace.communication import RankCollective, over_ranks
from training_profiler.trace.compare import Comparison, compare
from training_profiler.trace.contract import trace_data
from training_profiler.trace.operators import SORT_KEYS

PATTERNS: Final = ("*.pt.trace.json", "*.pt.trace.json.gz", "*.json", "*.json.gz")
BY_DEFAULT: Final = ("overview", "trace", "recommendations")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("trace", type=Path, metavar="FILE_OR_FOLDER", help="a trace, or a folder with one a rank")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, one object a file and line")
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="a trace of the same training after a change")
    parser.add_argument("--sort", choices=SORT_KEYS, default=SORT_KEYS[0], help="order of the operators")
    parser.add_argument("--view", choices=VIEWS, action="append", help="only this view; may be given several times")


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for and return 0.

    Raises:
        TraceError: a file cannot be read as a trace, or two cannot be compared.
    """
    if arguments.compare is not None:
        found = compare(analyse(arguments.trace)[0], analyse(arguments.compare)[0])
        text = (
            json.dumps(_comparison_data(found), allow_nan=False) + "\n" if arguments.json else render_comparison(found)
        )
    else:
        text = _texts(arguments)
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _texts(arguments: argparse.Namespace) -> str:
    paths = _files(arguments.trace)
    traces = [analyse(path) for path in paths]
    ranks = _over_ranks(traces)
    if arguments.json:
        objects = [
            trace_data(found) | {"communication_over_ranks": [_rank_data(one) for one in ranks]} for found, _ in traces
        ]
        return "".join(json.dumps(one, allow_nan=False) + "\n" for one in objects)
    views = arguments.view or BY_DEFAULT
    return "\n".join(render_view(view, found, arguments.sort, ranks) for found, _ in traces for view in views)


def _files(given: Path) -> list[Path]:
    if not given.exists():
        raise TraceError(f"{given} does not exist; example: training-profiler trace runs/20261121-142530/captures")
    if not given.is_dir():
        return [given]
    found = sorted({path for pattern in PATTERNS for path in given.glob(pattern) if path.is_file()})
    if not found:
        raise TraceError(f"{given} holds no trace (*.pt.trace.json or .json.gz)")
    return found


def _over_ranks(traces: list[tuple[Analysis, Columns]]) -> list[RankCollective]:
    by_rank = {found.rank: columns for found, columns in traces if found.rank is not None}
    return over_ranks(by_rank) if len(by_rank) > 1 else []


def _rank_data(one: RankCollective) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "count": one.count,
        "transfer_us": one.transfer_ns / 1e3,
        "waiting_us": one.waiting_ns / 1e3,
        "waited_for_rank": one.latest_rank,
    }


def _comparison_data(found: Comparison) -> dict[str, Any]:
    before, after = found.utilization
    return {
        "before": found.before.path.name,
        "after": found.after.path.name,
        "gpu_util_in_steps_pct": [None if one is None else 100 * one for one in (before, after)],
        "differences": [
            {
                "name": one.name,
                "before_ms": one.before_ns / 1e6,
                "after_ms": one.after_ns / 1e6,
                "difference_ms": one.change_ns / 1e6,
                "noise_band_ms": None if one.band_ns is None else one.band_ns / 1e6,
                "is_noise": one.is_noise,
            }
            for one in found.differences
        ],
    }
