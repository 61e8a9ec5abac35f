"""Epochs of unmodified trainings."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.system.launching import execute_forked

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


class Trained(NamedTuple):
    """A training that ended: its report, all that it printed, and its run folder."""

    report: dict[str, Any]
    text: str
    folder: Path

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The epochs of the report."""
        return list(self.report["epochs"])


def train(cwd: Path, text: str, **variables: str) -> Trained:
    """Run a script under ``training-profiler run`` to its end."""
    script = cwd / "train.py"
    script.write_text(text)
    ended = execute_forked(cwd, str(script), **variables)
    assert ended.status == 0, ended.stderr
    (folder,) = (cwd / "runs").glob("2*")
    return Trained(json.loads((folder / "report.json").read_text()), ended.stdout + ended.stderr, folder)


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return the training of ``LOOP``, with a tracker."""
    return train(tmp_path_factory.mktemp("looped"), LOOP, RECTIFIED_FLOW_PROFILE_SINKS="jsonl")


def test_loader_passes_are_epochs_with_the_validation_after_them(looped: Trained) -> None:
    stats = [
        (epoch["number"], epoch["steps"], epoch["batches"], epoch["samples"], epoch["is_complete"])
        for epoch in looped.epochs
    ]
    assert stats == [(1, 5, 5, 20, True), (2, 5, 5, 20, True), (3, 5, 5, 20, True)]
    for epoch in looped.epochs:
        assert sum(epoch["self_s"].values()) == pytest.approx(epoch["wall_s"])
        assert epoch["self_s"]["validation_epoch/forward_pass"] > 0
    assert " Profiling Summary ===\nTotal time:" not in looped.text  # the program does not mark epochs
    assert looped.report["steps"] == 15
    assert looped.report["sections"]["validation_epoch"]["count"] == 3


def test_metrics_of_an_epoch_reach_trackers_at_its_last_step(looped: Trained) -> None:
    rows = [json.loads(line) for line in (looped.folder / "metrics.jsonl").read_text().splitlines()]
    of_epochs = [row for row in rows if "profiling/epoch_total_time" in row]
    assert [row["step"] for row in of_epochs] == [5, 10, 15]
    for row in of_epochs:
        assert sum(row[name] for name in row if name.endswith("_percentage")) == pytest.approx(100)


@pytest.mark.parametrize(
    "loop",
    [
        "for batch, second in zip(train_loader, loader(5)): train(batch); train(second)",
        "batches = iter(train_loader)\nfor _ in range(3): train(next(batches))",
    ],
    ids=["two loaders", "partial pass"],
)
def test_training_without_loader_passes_has_no_epochs(tmp_path: Path, loop: str) -> None:
    trained = train(tmp_path, START + loop)
    assert (trained.epochs, trained.text.count("=== Epoch")) == ([], 0)


def test_manual_epochs_replace_inferred_ones(tmp_path: Path) -> None:
    manual = LOOP.replace("    for batch in", "    with profile_epoch(10 + epoch):\n     for batch in").replace(
        "        train(batch)", "         train(batch)"
    )
    trained = train(tmp_path, "from training_profiler import profile_epoch\n" + manual)
    assert [epoch["number"] for epoch in trained.epochs] == [10, 11, 12]


def test_the_number_of_epochs_is_not_given_where_another_loader_follows(tmp_path: Path) -> None:
    """As in a search for the best batch size."""
    loop = """
for size in (4, 5, 10):
    another = loader(size)
    for epoch in range(3):
        for batch in another:
            train(batch)
"""
    trained = train(tmp_path, START + loop)
    assert [epoch["number"] for epoch in trained.epochs] == [1, 2]
    assert " epochs, " not in trained.text.split("Final Profiling Summary")[1].split("VERDICT")[0]
    assert [note for note in trained.report["health"]["notes"] if note.startswith("only the first 2 epochs")]


def test_epochs_too_short_for_a_summary_are_left_out_and_counted(tmp_path: Path) -> None:
    trained = train(tmp_path, LOOP.replace("range(3)", "range(60)"))
    shown = len(trained.epochs)
    assert 20 <= shown < 60
    (note,) = [note for note in trained.report["health"]["notes"] if "epochs have no figures" in note]
    assert " - 60 epochs, " in trained.text
    assert note.startswith(f"{60 - shown} of 60 epochs")


TAKING_OVER = (
    START
    + """
first, later = (torch.nn.Parameter(torch.ones(8, 1)) for _ in range(2))
of_first, of_later = torch.optim.SGD([first], lr=0.01), torch.optim.SGD([later], lr=0.01)
small = loader(1)
for epoch in range(4):
    for number, (x, y) in enumerate(small):
        of_first.zero_grad(), of_later.zero_grad()
        (x @ (first + later) - y).square().mean().backward()
        if epoch > 1 or number > 9:
            of_later.step()
        of_first.step()
"""
)


def test_no_epoch_is_lost_where_another_optimizer_ends_the_steps(tmp_path: Path) -> None:
    trained = train(tmp_path, TAKING_OVER)
    assert trained.report["steps"] == 80
    assert len(trained.epochs) == 4
