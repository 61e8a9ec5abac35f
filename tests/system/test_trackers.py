"""Metrics of unmodified trainings reach the trackers however the training ends, and no tracker delays it."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.system.launching import BOOTSTRAP, Ended, execute, execute_forked, through_run
from tests.system.scripts import ROOT, finish, run_without_torch, start_forked, wait_for, write_script

SINKS = "RECTIFIED_FLOW_PROFILE_SINKS"
EVERY = "RECTIFIED_FLOW_PROFILE_LOG_EVERY"
TRAINING = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(net.parameters())
data = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(25)]
for inputs, targets in torch.utils.data.DataLoader(data, batch_size=None):
    optimizer.zero_grad()
    loss = (net(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
print("loss", loss.item().hex())
"""
# The bootstrap profiles this one too, as after `eval "$(training-profiler env)"`.
PREPARED = {"PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), str(ROOT)]), SINKS: "jsonl,csv", EVERY: "10"}


def train(cwd: Path, text: str = TRAINING, **variables: str) -> Ended:
    return execute_forked(cwd, str(write_script(cwd, text)), **{SINKS: "jsonl,csv", EVERY: "10", **variables})


def train_from_the_start(cwd: Path, text: str = TRAINING, **variables: str) -> Ended:
    """Train in an interpreter of its own."""
    return execute(cwd, through_run(str(write_script(cwd, text))), variables=variables, pythonpath=str(ROOT))


def rows_of(cwd: Path) -> list[dict[str, Any]]:
    """Return the rows of intervals, without those of data loaders and epochs."""
    return [row for row in all_rows_of(cwd) if any(map(is_of_interval, row))]


def all_rows_of(cwd: Path) -> list[dict[str, Any]]:
    (folder,) = (cwd / "runs").glob("2*")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def is_of_interval(name: str) -> bool:
    return name.startswith("profiling/") and not name.startswith("profiling/epoch_")


def health_of(cwd: Path) -> list[str]:
    (folder,) = (cwd / "runs").glob("2*")
    health = json.loads((folder / "report.json").read_text())["health"]
    return [*health["notes"], *health["disabled"]]


def test_metrics_of_an_unmodified_training_reach_every_tracker_and_its_loss_is_the_same(tmp_path: Path) -> None:
    plain = execute_forked(tmp_path, str(write_script(tmp_path, TRAINING)), is_profiled=False).stdout
    ended = train(tmp_path)
    assert (ended.status, ended.stderr) == (0, "")
    assert plain.startswith("loss ")
    assert plain in ended.stdout
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [10, 20, 25]
    for row in rows:
        assert row["profiling/batch_time_avg"] == pytest.approx(1 / row["profiling/batches_per_second"])
        assert row["profiling/timing_forward_pass_avg"] > 0
        parts = [row[name] for name in row if name.startswith("profiling/interval_")]
        assert sum(parts) == pytest.approx(100)
    (folder,) = (tmp_path / "runs").glob("2*")
    with (folder / "metrics.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if is_of_interval(line["name"])]
    values = {(int(line["step"]), line["name"]): float(line["value"]) for line in lines}
    assert values == {(row["step"], name): value for row in rows for name, value in row.items() if is_of_interval(name)}
    assert not [note for note in health_of(tmp_path) if "sink" in note]


def test_last_steps_before_an_exception_reach_the_trackers(tmp_path: Path) -> None:
    ended = train(tmp_path, TRAINING + "raise ValueError('the loss is nan')\n")
    assert ended.status == 1
    assert ended.stderr.endswith("ValueError: the loss is nan\n")
    assert [row["step"] for row in rows_of(tmp_path)] == [10, 20, 25]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_last_steps_before_a_signal_reach_the_trackers(tmp_path: Path, number: int) -> None:
    text = TRAINING + "print('ready', flush=True)\nimport time\ntime.sleep(60)\n"
    outcomes = []
    for profile in ("1", None):
        process = start_forked(
            tmp_path, text, profile, variables=PREPARED if profile else {}, is_profiled=bool(profile)
        )
        read = wait_for(process, "ready")
        process.send_signal(number)
        outcomes.append(finish(process, tmp_path, read))
    on, off = outcomes
    assert (on.status, on.stderr.count("KeyboardInterrupt")) == (off.status, off.stderr.count("KeyboardInterrupt"))
    assert (on.summaries, off.summaries) == (1, 0)
    assert [row["step"] for row in rows_of(tmp_path)] == [10, 20, 25]


@pytest.mark.parametrize("ending", ["", pytest.param("raise KeyboardInterrupt", marks=pytest.mark.programs)])
def test_blocked_tracker_delays_neither_training_nor_exit(tmp_path: Path, ending: str) -> None:
    blocked = f"""
        import threading
        from training_profiler.sinks.line_files import CsvFile
        CsvFile.write = lambda self, rows: threading.Event().wait()
        from training_profiler import *
        start_training_profiling(sinks="csv,jsonl", log_every=10)
        for step in range(30):
            with profile_section("forward_pass"):
                sum(range(1000))
            profile_step()
        {ending}
    """
    outcome = run_without_torch(tmp_path, blocked)
    assert outcome.status == (-signal.SIGINT if ending else 0)
    assert [row["step"] for row in rows_of(tmp_path)] == [10, 20, 30]
    assert any("csv sink: did not come to its end" in note for note in health_of(tmp_path))


def test_only_the_primary_rank_has_trackers(tmp_path: Path) -> None:
    assert train(tmp_path, RANK="1").status == 0
    (folder,) = (tmp_path / "runs").glob("2*")
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "rank1.jsonl"]


def test_an_optional_tracker_without_its_package_is_left_out(tmp_path: Path) -> None:
    hidden = """
import importlib.util
look = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "mlflow" else look(name, package)
"""
    ended = train_from_the_start(tmp_path, hidden + TRAINING, **{SINKS: "mlflow,jsonl", f"{SINKS}_OPTIONAL": "1"})
    assert ended.status == 0
    assert "Final Profiling Summary" in ended.stdout
    assert ended.stderr == (
        "Profiler: left out: The mlflow sink needs mlflow: "
        "pip install 'training-profiler[mlflow]', or pip install mlflow\n"
    )
    assert rows_of(tmp_path)
