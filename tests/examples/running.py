"""Runs the examples."""

import json
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.system.launching import start_ranks
from tests.system.scripts import ROOT, TIMEOUT_S, Outcome, environment, finish, fork_server

START = str(Path(__file__).with_name("start.py"))
needs_digits = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="the digits come with scikit-learn (extra: examples)"
)


def run(
    example: str,
    out: Path,
    *words: str,
    status: int = 0,
    profile: str | None = None,
    program: Sequence[str] = (),
    module: str = "",
    ranks: int = 1,
) -> Outcome:
    """Run an example to its end, in forks that have torch, or as ``program``; its runs are in ``out``."""
    variables = environment(profile, RECTIFIED_FLOW_PROFILE_DIR=str(out / "runs"))
    if program:
        done = subprocess.run(
            [*program, *words], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        ended = Outcome(done.returncode, done.stdout, done.stderr, out)
    else:
        script = [START, module or f"examples.{example}", *words]
        if ranks > 1:
            processes = start_ranks(ROOT, script, ranks, variables, is_profiled=False)
        else:
            processes = [fork_server().start(script, ROOT, variables)]
        each = [finish(process, out) for process in processes]
        ended = each[0]._replace(stdout="".join(one.stdout for one in each), status=max(one.status for one in each))
    assert ended.status == status, ended.stderr
    return ended


def metrics(out: Path) -> list[dict[str, Any]]:
    """Return the rows that a training has written; json writes the shortest digits that give the same float back."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses_of_validation(out: Path) -> list[float]:
    """Return the losses of its validations."""
    return [row["validation_loss"] for row in metrics(out) if "validation_loss" in row]
