"""Unmodified programs: the profiler counts what they count themselves, and their output is unchanged.

Each one in ``programs`` ends with a line ``TRUTH {...}``: its own counts of steps and of the spans of sections. A count
without a clear truth is left out of that line.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.integrations
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SWITCH = "RECTIFIED_FLOW_PROFILE"
TIMEOUT_S = 280  # ends a program that hangs; on a machine with a load of 10 one took over 140 s
LAUNCHERS = {
    "accelerate": ("accelerate", "launch", "--cpu", "--num_machines=1", "--num_processes=1", "--mixed_precision=no")
}
COMMANDS = {
    "accelerate": ("accelerate_accumulation.py",),
    "hugging-face": ("hugging_face_trainer.py",),
    "ignite": ("ignite_supervised.py",),
    "ignite-engine": ("ignite_engine.py",),
    "keras": ("keras_fit.py",),
    "lightning": ("lightning_demo.py",),
    "lightning-transformer": ("lightning_transformer.py",),
    "lightning-two-optimizers": ("lightning_two_optimizers.py",),
    "rectified-flow": ("rectified_flow_trainer.py",),
    "rectified-flow-accumulate": ("rectified_flow_trainer.py", "--accumulate"),
    "skorch": ("skorch_classifier.py",),
    "stable-baselines-dqn": ("stable_baselines_dqn.py",),
    "stable-baselines-ppo": ("stable_baselines_ppo.py",),
    "trl": ("trl_sft.py",),
}


class Outcome(NamedTuple):
    """Status, output and folder of one run of a program."""

    status: int
    lines: list[str]
    stderr: str
    cwd: Path


class Pair(NamedTuple):
    """A program run without and with ``training-profiler run``."""

    plain: Outcome
    profiled: Outcome

    @property
    def truth(self) -> dict[str, int]:
        """The counts of the program."""
        return dict(json.loads(self.plain.lines[-1].removeprefix("TRUTH ")))

    @property
    def report(self) -> dict[str, Any]:
        """The report of the profiler."""
        (folder,) = (self.profiled.cwd / "runs").iterdir()
        return dict(json.loads((folder / "report.json").read_text()))

    def counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the profiler's counts of steps and sections (0 if missing); a name with ``+`` is a sum."""
        report = self.report
        counts = {name: section["count"] for name, section in report["sections"].items()} | {"steps": report["steps"]}
        return {name: sum(counts.get(part, 0) for part in name.split(" + ")) for name in names}


def environment(program: str) -> dict[str, str]:
    """Return the variables of a run that downloads nothing and writes only to its folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SWITCH)}
    paths = [str(ROOT), *([str(HERE / "stand_ins")] if program.startswith("rectified") else [])]
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # has `accelerate`
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": "home",
        "KERAS_HOME": "home",
    }


def run(name: str, cwd: Path, launcher: tuple[str, ...]) -> Outcome:
    """Run the program to its end."""
    program, *words = COMMANDS[name]
    done = subprocess.run(
        [*launcher, str(HERE / "programs" / program), *words],
        cwd=cwd,
        env=environment(name),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return Outcome(done.returncode, done.stdout.splitlines(), done.stderr, cwd)


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both runs of one program, made once for all tests."""
    name = request.param
    plain = run(name, tmp_path_factory.mktemp(f"{name}-plain"), (sys.executable,))
    assert plain.status == 0, plain.stderr
    launcher = (sys.executable, "-m", "training_profiler", "run", *LAUNCHERS.get(name, ()))
    return Pair(plain, run(name, tmp_path_factory.mktemp(f"{name}-profiled"), launcher))


def test_program_keeps_its_status_and_output(pair: Pair) -> None:
    assert pair.profiled.status == 0, pair.profiled.stderr
    remaining = iter(pair.profiled.lines)
    lost = next((line for line in pair.plain.lines if line not in remaining), None)
    assert lost is None, f"first line that is missing: {lost!r}, of\n" + "\n".join(pair.profiled.lines)


def test_counts_equal_those_of_the_program(pair: Pair) -> None:
    truth = {name: count for name, count in pair.truth.items() if "/" not in name}
    assert {"steps", "backward_pass"} <= set(truth)
    assert pair.counts(truth) == truth


def test_evaluation_has_its_own_batches_and_forwards(pair: Pair) -> None:
    truth = {name: count for name, count in pair.truth.items() if "/" in name}
    assert pair.counts(truth) == truth


def test_shares_add_up_and_nothing_is_lost_or_disabled(pair: Pair) -> None:
    report = pair.report
    assert sum(section["share"] for section in report["sections"].values()) == pytest.approx(1.0)
    assert report["health"]["dropped"] == 0
    assert report["health"]["disabled"] == []
    assert report["ended_by"] is None


def test_inferred_steps_are_reported(pair: Pair, request: pytest.FixtureRequest) -> None:
    is_inferred = any("steps were inferred" in note for note in pair.report["health"]["notes"])
    assert is_inferred is ("[keras" in request.node.name)  # its optimizers are its own
