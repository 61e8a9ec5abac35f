"""An unmodified training with sections of its own whose names are those of rows, labels and metrics of the profiler."""

import csv
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.html_rows import rows_in
from tests.support.users_names import KEYS, LABELS_OF_OURS, SPECIAL, WITHIN_OURS
from tests.system.launching import execute_forked
from tests.system.scripts import command, report_command
from training_profiler.base.sections import key_of

NAMES = tuple(dict.fromkeys((*KEYS, *LABELS_OF_OURS, *SPECIAL, *WITHIN_OURS)))
EPOCHS, BATCHES = 2, 4
# The n-th name has n spans in the whole run, all of them in the first step.
TRAINING = f"""
import torch
from training_profiler import profile_section
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn({4 * BATCHES}, 8))
loader, held_out = (torch.utils.data.DataLoader(data, batch_size=4) for _ in range(2))
counts = dict.fromkeys({NAMES!r})
for epoch in range({EPOCHS}):
    for (batch,) in loader:
        for number, name in enumerate(counts, 1):
            for _ in range(number):
                with profile_section(name): pass
        counts = {{}}
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        for (batch,) in held_out: net(batch)
    net.train()
"""
OURS = {
    "first_fetch": EPOCHS,
    "validation_epoch/first_fetch": EPOCHS,
    "validation_epoch/forward_pass": EPOCHS * BATCHES,
    "forward_pass": EPOCHS * BATCHES,
    "data_loading": EPOCHS * BATCHES,
    "optimizer_step": EPOCHS * BATCHES,
    "other": 0,
    "(outside steps)": 0,
}
EXPECTED = {key_of(name): count for count, name in enumerate(NAMES, 1)}


class Trained(NamedTuple):
    """A training that ended: its folder, and what it printed."""

    folder: Path
    text: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    cwd = tmp_path_factory.mktemp("names")
    (cwd / "train.py").write_text(TRAINING, encoding="utf-8")
    sinks = {"RECTIFIED_FLOW_PROFILE_SINKS": "csv,jsonl", "PYTHONIOENCODING": "utf-8"}
    ended = execute_forked(cwd, str(cwd / "train.py"), **sinks, COLUMNS="1000")
    assert ended.status == 0, ended.stderr
    (folder,) = (cwd / "runs").glob("2*")
    return Trained(folder, ended.stdout)


def counts_in(report: str) -> dict[str, int]:
    return {key: row["count"] for key, row in json.loads(report)["sections"].items()}


def test_json_has_a_row_for_each_name_with_its_count_beside_those_of_ours(trained: Trained) -> None:
    from_files = report_command(trained.folder.parent, str(trained.folder), "--json")
    for text in ((trained.folder / "report.json").read_text(encoding="utf-8"), from_files.stdout):
        counts = counts_in(text)
        assert {key: counts.get(key) for key in EXPECTED} == EXPECTED
        assert {key: counts.get(key) for key in OURS} == OURS


def test_the_journal_has_the_keys_of_json(trained: Trained) -> None:
    lines = map(json.loads, (trained.folder / "rank0.jsonl").read_text(encoding="utf-8").splitlines())
    sections = [line["sections"] for line in lines if line["kind"] == "interval"]
    counts = {key: sum(each[key]["count"] for each in sections if key in each) for key in (*EXPECTED, "first_fetch")}
    assert counts == {**EXPECTED, "first_fetch": EPOCHS}


def test_text_has_a_row_for_each_name_as_the_user_wrote_it(trained: Trained) -> None:
    text = report_command(trained.folder.parent, str(trained.folder), "--full").stdout
    breakdown = text.rpartition("Detailed Breakdown:\n")[2].partition("\nTime Distribution:")[0]
    rows = {tuple(re.fullmatch(r" *(.+?)  +(\d*)  +\S+ .*", line).groups()) for line in breakdown.splitlines()[2:]}
    assert {(name.strip(), str(count)) for count, name in enumerate(NAMES, 1) if len(name) <= 115} <= rows


def test_lines_to_grep_have_the_keys(trained: Trained) -> None:
    text = report_command(trained.folder.parent, str(trained.folder), "--format", "lines").stdout
    for key, count in EXPECTED.items():
        assert f"\n{key}: count={count}, total=" in text


def test_trackers_have_a_mean_for_each_key(trained: Trained) -> None:
    with (trained.folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        in_csv = {row["name"] for row in csv.DictReader(file)}
    rows = map(json.loads, (trained.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    for names in (in_csv, {name for row in rows for name in row}):
        assert {f"profiling/timing_{key}_avg" for key in (*EXPECTED, "first_fetch", "forward_pass")} <= names
        assert {"profiling/epoch_other_percentage", "profiling/epoch_profiler_percentage"} <= names
        assert {"profiling/epoch_user:other_percentage", "profiling/epoch_user:profiler_percentage"} <= names


def test_the_page_has_a_row_for_each_name(trained: Trained) -> None:
    assert command(trained.folder.parent, "html", str(trained.folder)).status == 0
    page = (trained.folder / "report.html").read_text(encoding="utf-8")
    table = page.partition("Where the time goes, by section")[2].partition("</table>")[0]
    rows = {(row[0], row[3].replace(",", "")) for row in rows_in(table)[1:]}
    assert {(name, str(count)) for count, name in enumerate(NAMES, 1) if len(name) <= 115} <= rows
