"""A few lines in a Lightning or Accelerate training give a full report and leave its losses unchanged."""

from pathlib import Path

import pytest

from tests.system.scripts import Outcome, run_forked

pytestmark = pytest.mark.integrations

COMMON = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from training_profiler import *

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(48, 8), torch.randn(48, 1)), batch_size=8, shuffle=True)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
losses = []
"""
LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        with profile_section("forward_pass"):
            loss = (self.net(batch[0]) - batch[1]).square().mean()
        losses.append(loss.item().hex())
        return loss

    @profile_section("optimizer_step")
    def optimizer_step(self, *arguments, **named):
        super().optimizer_step(*arguments, **named)

    def on_train_batch_end(self, *_):
        profile_step()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

start_training_profiling(log_every=5, stream="stderr")
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False
)
trainer.fit(Model(), profile_dataloader(data, name="train"))
stop_training_profiling()
print("losses", *losses)
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="logs")
accelerator.init_trackers("example")
net, optimizer, data = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), data)
start_training_profiling(log_every=5, stream="stderr")
for epoch in range(2):
    with profile_epoch(epoch):
        for inputs, targets in profile_dataloader(data, name="train"):
            with profile_section("forward_pass"):
                loss = (net(inputs) - targets).square().mean()
            with profile_section("backward_pass"):
                accelerator.backward(loss)
            with profile_section("optimizer_step"):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item().hex())
            profile_step()
    throughput = snapshot().throughput
    if throughput is not None:
        accelerator.log({"profiling/samples_per_second": throughput.samples_per_s}, step=len(losses))
accelerator.end_training()
print("losses", *losses)
"""


def train(cwd: Path, text: str, profile: str) -> tuple[Outcome, list[str]]:
    """Run the script; return how it ended, and its losses."""
    outcome = run_forked(cwd, COMMON + text, profile)
    assert outcome.status == 0, outcome.stderr
    assert outcome.stderr.count("=== Final Profiling Summary (12 steps) ===") == (profile == "1")
    (losses,) = [line.split()[1:] for line in outcome.stdout.splitlines() if line.startswith("losses ")]
    assert len(losses) == 12
    return outcome, losses


@pytest.mark.parametrize(
    ("package", "script", "sections"),
    [
        ("lightning", LIGHTNING, ["data_loading", "forward_pass", "optimizer_step"]),
        ("accelerate", ACCELERATE, ["data_loading", "forward_pass", "backward_pass", "optimizer_step"]),
    ],
)
def test_training_is_reported_and_its_losses_stay_the_same(
    tmp_path: Path, package: str, script: str, sections: list[str]
) -> None:
    pytest.importorskip(package)
    (tmp_path / "plain").mkdir()
    outcome, losses = train(tmp_path, script, "1")
    report = outcome.report
    assert report["steps"] == 12
    assert {name: report["sections"][name]["count"] for name in sections} == dict.fromkeys(sections, 12)
    assert report["loaders"][0]["batches"] == 12
    assert report["health"]["dropped"] == 0
    assert report["health"]["disabled"] == []
    assert sum(section["share"] for section in report["sections"].values()) == pytest.approx(1.0)
    assert train(tmp_path / "plain", script, "0")[1] == losses
    if package == "accelerate":
        assert_throughput_is_logged(tmp_path)


def assert_throughput_is_logged(tmp_path: Path) -> None:
    """Read what Accelerate logged with a tracker of its own."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (tmp_path / "logs" / "example").glob("events.*")
    rows = EventAccumulator(str(file))
    rows.Reload()
    assert [row.step for row in rows.Scalars("profiling/samples_per_second")] == [6, 12]
