"""Machine load and throughput, in whole processes."""

import json
from pathlib import Path

from tests.system.launching import execute, execute_forked, through_run
from tests.system.scripts import Outcome, report_command, run_without_torch

TRAINING = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(320, 16), torch.randn(320, 1)), batch_size=32)
for epoch in range(3):
    for inputs, targets in data:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), file=sys.stderr)
print("torch._dynamo.eval_frame" in sys.modules, torch.rand(()).item().hex(), file=sys.stderr)
"""
# For 32 samples: forward, and backward without the gradient of the inputs.
FLOPS = 2 * 32 * (16 * 64 + 64) + 2 * 32 * (16 * 64 + 2 * 64)


def test_unmodified_training_has_flops_and_bitwise_equal_losses(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    off = execute_forked(tmp_path, "train.py", is_profiled=False)
    on = execute(tmp_path, through_run("train.py"))
    assert (on.status, on.stderr) == (0, off.stderr)
    (folder,) = (tmp_path / "runs").glob("2*")
    throughput = json.loads((folder / "report.json").read_text())["throughput"]
    assert (throughput["flops_per_step"], throughput["dtype"], throughput["mfu"]) == (FLOPS, "float32", None)
    assert throughput["tflops"] > 0
    assert "FLOP/s in float32" in report_command(tmp_path, "--full").stdout


def test_flops_and_the_machine_monitor_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    off = {"RECTIFIED_FLOW_PROFILE_FLOPS": "0", "RECTIFIED_FLOW_PROFILE_MONITOR_S": "0"}
    report = Outcome(*execute_forked(tmp_path, "train.py", **off), tmp_path).report
    assert report["machine"] is None
    assert not [note for note in report["health"]["notes"] if note.startswith("system monitor")]
    text = report_command(tmp_path, "--full").stdout
    assert "Throughput: " in text
    assert "FLOP" not in text


SECTIONS = """
from training_profiler import *
start_training_profiling(log_every=1000)
for epoch in range(2):
    with profile_epoch(epoch):
        for batch in profile_dataloader([[0] * 8] * 15, name="train"):
            with profile_section("forward_pass"):
                sum(range(10_000))
            profile_step()
"""


def test_machine_stats_are_in_the_summary_the_report_and_the_journal(tmp_path: Path) -> None:
    outcome = run_without_torch(tmp_path, SECTIONS)
    assert (outcome.status, outcome.stderr) == (0, "")
    machine = outcome.report["machine"]
    assert machine["samples"] >= 2
    assert machine["ram_process_bytes"]["max"] > 2**20
    assert 0 < machine["ram_share"]["mean"] < 1
    assert machine["gpus"] == []
    assert "GiB in this process" in report_command(tmp_path, "--full").stdout
    assert "system monitor: " in report_command(tmp_path, "--full").stdout
    throughput = outcome.report["throughput"]
    assert throughput["batches_per_s"] == throughput["steps_per_s"]
    assert throughput["flops_per_step"] is None
    read = json.loads(report_command(tmp_path, str(outcome.folder), "--json").stdout)
    assert read["machine"] == outcome.report["machine"]
    assert read["throughput"] == throughput
