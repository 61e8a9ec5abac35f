"""Epochs of trainings that nobody edited."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.launching import execute, through_run
from tests.system.scripts import ROOT

START = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = [(torch.randn(8), torch.randn(1)) for _ in range(20)]
def loader(batch_size=4):
    return torch.utils.data.DataLoader(data, batch_size=batch_size)
def train(batch):
    optimizer.zero_grad()
    (net(batch[0]) - batch[1]).square().mean().backward()
    optimizer.step()
def validate():
    with torch.no_grad():
        return sum((net(x) - y).square().mean().item() for x, y in held_out)
train_loader, held_out = loader(), loader(10)
"""
LOOP = (
    START
    + """
for epoch in range(3):
    for batch in train_loader:
        train(batch)
    validate()
"""
)


def epochs_of(cwd: Path, text: str, **variables: str) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    script = cwd / "train.py"
    script.write_text(text)
    ended = execute(cwd, through_run(str(script)), variables=variables, pythonpath=str(ROOT))
    assert ended.status == 0, ended.stderr
    (folder,) = (cwd / "runs").iterdir()
    report = json.loads((folder / "report.json").read_text())
    return report["epochs"], ended.stdout + ended.stderr, report


def test_passes_over_the_loader_are_epochs_with_the_validation_that_follows(tmp_path: Path) -> None:
    epochs, text, report = epochs_of(tmp_path, LOOP)
    stats = [(one["number"], one["steps"], one["batches"], one["samples"], one["is_complete"]) for one in epochs]
    assert stats == [(1, 5, 5, 20, True), (2, 5, 5, 20, True), (3, 5, 5, 20, True)]
    for one in epochs:
        assert sum(one["self_s"].values()) == pytest.approx(one["wall_s"])
        assert one["self_s"]["validation_epoch/forward_pass"] > 0
    assert text.count(" Profiling Summary ===\nTotal time:") == 3
    assert report["steps"] == 15
    assert report["sections"]["validation_epoch"]["count"] == 3


@pytest.mark.parametrize(
    "loop",
    [
        "for batch, other in zip(train_loader, loader(5)): train(batch); train(other)",
        pytest.param(
            "import itertools\nfor batch in itertools.islice(itertools.cycle(train_loader), 12): train(batch)",
            marks=pytest.mark.programs,
        ),
        pytest.param("for _ in range(12): train(next(iter(train_loader)))", marks=pytest.mark.programs),
        "batches = iter(train_loader)\nfor _ in range(3): train(next(batches))",
    ],
    ids=["two loaders", "a cycle of one pass", "an iterator a batch", "a part of a pass"],
)
def test_what_has_no_epochs_gets_none(tmp_path: Path, loop: str) -> None:
    epochs, text, _ = epochs_of(tmp_path, START + loop)
    assert (epochs, text.count("=== Epoch")) == ([], 0)


def test_epochs_by_hand_are_the_only_ones(tmp_path: Path) -> None:
    by_hand = LOOP.replace("    for batch in", "    with profile_epoch(10 + epoch):\n     for batch in").replace(
        "        train(batch)", "         train(batch)"
    )
    epochs, _, _ = epochs_of(tmp_path, "from training_profiler import profile_epoch\n" + by_hand)
    assert [one["number"] for one in epochs] == [10, 11, 12]


def test_epochs_too_short_for_a_summary_are_left_out_and_counted(tmp_path: Path) -> None:
    epochs, text, report = epochs_of(tmp_path, LOOP.replace("range(3)", "range(60)"))
    shown = len(epochs)
    assert 20 <= shown < 60
    (note,) = [note for note in report["health"]["notes"] if "epochs have no figures" in note]
    assert text.count(" Profiling Summary ===\nTotal time:") == shown
    assert note.startswith(f"{60 - shown} of 60 epochs")


def test_the_metrics_of_each_epoch_reach_the_trackers_at_its_last_step(tmp_path: Path) -> None:
    epochs_of(tmp_path, LOOP, RECTIFIED_FLOW_PROFILE_SINKS="jsonl")
    (folder,) = (tmp_path / "runs").iterdir()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    of_epochs = [row for row in rows if "profiling/epoch_total_time" in row]
    assert [row["step"] for row in of_epochs] == [5, 10, 15]
    for row in of_epochs:
        assert sum(row[name] for name in row if name.endswith("_percentage")) == pytest.approx(100)
