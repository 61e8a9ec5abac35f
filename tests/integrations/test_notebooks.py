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
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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
    (folder,) = (tmp_path / "runs").glob("2*")
    assert first.count(f"Profiler: on, run folder runs/{folder.name}\n") == 1
    assert SUMMARY.findall(first) == ["20"]
    assert re.fullmatch(r"Profiler: step 25 \| [^\n]* steps/s \| [^\n]*\n", second)  # it does not repeat the summary
    assert f"Run folder: {folder}" in first
    assert other == "nothing\n"
    assert "<Snapshot: 25 steps in " in text
    assert "<table>" in text
    assert (folder / "report.json").exists()  # written at the kernel's end


def test_extension_switches_profiling_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = ["from training_profiler import snapshot", TRAIN.format(steps=3), "%load_ext training_profiler"]
    cells += [TRAIN.format(steps=20), "print(snapshot())", "%unload_ext training_profiler"]
    _, before, load, train, text, unload = run_cells(tmp_path, monkeypatch, *cells)
    assert before == ""
    assert load == "Profiler: on; the summary follows each cell that trains\n"
    assert SUMMARY.findall(train) == SUMMARY.findall(unload) == ["20"]
    assert text.startswith("<Snapshot: 20 steps in ")


def test_import_is_enough_with_the_variable_set_in_a_cell_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [f"import torch\n%env {SWITCH}=1", "from training_profiler import profile_section"]
    cells += [TRAIN.format(steps=20), "with profile_section('mine'):\n    pass", TRAIN.format(steps=5)]
    _, imported, first, section, second = run_cells(tmp_path, monkeypatch, *cells)
    assert (imported, section) == ("", "")
    assert (SUMMARY.findall(first), "Profiler: step 25 |" in second) == (["20"], True)


SLOW = """
def slow():
    return sum(range(200_000))
"""


def test_a_stop_ends_the_run_and_starts_and_stops_around_cells_make_runs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = "import training_profiler\ntraining_profiler.stop_training_profiling()"
    start = "from training_profiler import start_training_profiling, stop_training_profiling\n"
    start += "start_training_profiling(log_every=0, sample_hz=200)\n" + SLOW
    train = TRAIN.replace("    optimizer.zero", "    slow()\n    optimizer.zero")
    cells = [TRAIN.format(steps=20), stop, TRAIN.format(steps=5)]
    cells += [start + train.format(steps=steps) + "stop_training_profiling()" for steps in (200, 150)]
    shown = run_cells(tmp_path, monkeypatch, *cells, switch="1")
    assert [SUMMARY.findall(text) for text in shown] == [["20"], ["20"], [], ["200"], ["150"]]
    assert len(list((tmp_path / "runs").glob("2*"))) == 3
    assert "In [4]:" in shown[3]
    assert "In [5]:" in shown[4]
    assert not re.search(r"ipykernel_\d", shown[3] + shown[4])
