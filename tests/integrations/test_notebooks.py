"""Notebooks in a real kernel: the summary and the run folder appear below the cell that trained."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.integrations
ROOT = Path(__file__).parents[2]
SWITCH = "RECTIFIED_FLOW_PROFILE"
SUMMARY = re.compile(r"=== Final Profiling Summary \((\d+) steps\) ===")
SECONDS = 240

TRAIN = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""


def run_cells(cwd: Path, monkeypatch: pytest.MonkeyPatch, *cells: str, switch: str | None = None) -> list[str]:
    """Run the cells in a kernel started in ``cwd``; return what each shows."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folders = [str(ROOT)]
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
        folders.insert(0, str(ROOT / "training_profiler" / "bootstrap"))
    monkeypatch.setenv("PYTHONPATH", ":".join(folders))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(cwd)}}
    )
    client.execute()
    return ["".join(map(shown, cell.outputs)) for cell in notebook.cells]


def shown(output: dict) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    return "\n".join(map(str, output.get("data", {}).values()))


def test_kernel_under_the_variable_shows_the_summary_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        TRAIN.format(steps=20),
        "print('nothing')",
        TRAIN.format(steps=5),
        "from training_profiler import *\nsnapshot()",
    ]
    first, other, second, text = run_cells(tmp_path, monkeypatch, *cells, switch="1")
    (folder,) = (tmp_path / "runs").iterdir()
    assert first.count(f"Profiler: on, run folder runs/{folder.name}\n") == 1
    assert (SUMMARY.findall(first), SUMMARY.findall(second)) == (["20"], ["25"])
    assert f"Run folder: {folder}" in first
    assert other == "nothing\n"
    assert "<Snapshot: 25 steps in " in text
    assert "<table>" in text
    assert (folder / "report.json").exists()  # written at the kernel's end


def test_final_summary_of_a_stop_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = "import training_profiler\ntraining_profiler.stop_training_profiling()"
    shown = run_cells(tmp_path, monkeypatch, TRAIN.format(steps=20), stop, TRAIN.format(steps=5), switch="1")
    assert [SUMMARY.findall(text) for text in shown] == [["20"], ["20"], []]


def test_extension_switches_profiling_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = ["from training_profiler import snapshot", TRAIN.format(steps=3), "%load_ext training_profiler"]
    cells += [TRAIN.format(steps=20), "print(snapshot())", "%unload_ext training_profiler"]
    _, before, load, train, text, unload = run_cells(tmp_path, monkeypatch, *cells)
    assert before == ""
    assert load == "Profiler: on; the summary follows each cell that trains\n"
    assert SUMMARY.findall(train) == SUMMARY.findall(unload) == ["20"]
    assert text.startswith("<Snapshot: 20 steps in ")
