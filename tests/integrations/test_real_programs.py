"""Unmodified programs: the profiler counts what they count themselves, and their output is unchanged.

Each one in ``programs`` ends with a line ``TRUTH {...}``: its own counts of steps and of the spans of sections. A count
without a clear truth is left out of that line.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.system.launching import execute, start_in_fork
from tests.system.scripts import ROOT, Outcome, environment, finish

pytestmark = pytest.mark.integrations
HERE = Path(__file__).parent
RUN = ("-m", "training_profiler", "run")
CPU = ("--cpu", "--num_machines=1", "--num_processes=1", "--mixed_precision=no")
# These start an interpreter under the profiler, the others a fork of a process that has imported torch.
STARTED = {"accelerate": (*RUN, "accelerate", "launch", *CPU), "hugging-face": RUN}
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


class Pair(NamedTuple):
    """A program run without and with ``training-profiler run``."""

    plain: Outcome
    profiled: Outcome

    @property
    def truth(self) -> dict[str, int]:
        """The counts of the program."""
        return dict(json.loads(self.plain.stdout.splitlines()[-1].removeprefix("TRUTH ")))

    def counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the profiler's counts of steps and sections (0 if missing); a name with ``+`` is a sum."""
        report = self.profiled.report
        counts = {name: section["count"] for name, section in report["sections"].items()} | {"steps": report["steps"]}
        return {name: sum(counts.get(part, 0) for part in name.split(" + ")) for name in names}


def run(name: str, cwd: Path, is_profiled: bool) -> Outcome:
    """Run the program to its end; it downloads nothing and writes only to ``cwd``."""
    program, *words = COMMANDS[name]
    words = [str(HERE / "programs" / program), *words]
    path = os.pathsep.join([str(ROOT), *([str(HERE / "stand_ins")] if program.startswith("rectified") else [])])
    variables = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # has `accelerate`
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": "home",
        "KERAS_HOME": "home",
    }
    if is_profiled and name in STARTED:
        command = [sys.executable, *STARTED[name], *words]
        return Outcome(*execute(cwd, command, pythonpath=path, variables=variables), cwd)
    return finish(start_in_fork(cwd, words, environment(None, PYTHONPATH=path, **variables), is_profiled), cwd)


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both runs of one program, made once for all tests."""
    name = request.param
    plain = run(name, tmp_path_factory.mktemp(f"{name}-plain"), is_profiled=False)
    assert plain.status == 0, plain.stderr
    return Pair(plain, run(name, tmp_path_factory.mktemp(f"{name}-profiled"), is_profiled=True))


def test_program_keeps_its_status_and_output(pair: Pair) -> None:
    assert pair.profiled.status == 0, pair.profiled.stderr
    remaining = iter(pair.profiled.stdout.splitlines())
    lost = next((line for line in pair.plain.stdout.splitlines() if line not in remaining), None)
    assert lost is None, f"first line that is missing: {lost!r}, of\n{pair.profiled.stdout}"


def test_counts_equal_those_of_the_program(pair: Pair) -> None:
    truth = {name: count for name, count in pair.truth.items() if "/" not in name}
    assert {"steps", "backward_pass"} <= set(truth)
    assert pair.counts(truth) == truth


def test_evaluation_has_its_own_batches_and_forwards(pair: Pair) -> None:
    truth = {name: count for name, count in pair.truth.items() if "/" in name}
    assert pair.counts(truth) == truth


def test_shares_add_up_and_nothing_is_lost_or_disabled(pair: Pair) -> None:
    report = pair.profiled.report
    assert sum(section["share"] for section in report["sections"].values()) == pytest.approx(1.0)
    assert report["health"]["dropped"] == 0
    assert report["health"]["disabled"] == []
    assert report["ended_by"] is None


def test_inferred_steps_are_reported(pair: Pair, request: pytest.FixtureRequest) -> None:
    is_inferred = any("steps were inferred" in note for note in pair.profiled.report["health"]["notes"])
    assert is_inferred is ("[keras" in request.node.name)  # its optimizers are its own
