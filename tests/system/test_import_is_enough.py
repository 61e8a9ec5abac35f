"""With the variable, any order of import, start and sections gives all steps, once. Other programs stay silent."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.system.launching import execute, execute_forked, through_run
from tests.system.scripts import ROOT, run, run_forked, write_script

SUMMARY = "=== Final Profiling Summary ("
TRAIN = """
import tests.chaos.programs.without_dynamo
def train(steps):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with profile_section("mine"):
            batch = torch.ones(4, 8)
        with profile_section("forward_pass"):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
IMPORT = "from training_profiler import *\n"
REMOVE = (
    "import sys\nfor name in [n for n in sys.modules if n.startswith('training_profiler')]: del sys.modules[name]\n"
)
PROGRAMS = {
    "import before torch": IMPORT + "import torch" + TRAIN + "train(20)",
    "import after torch": "import torch\n" + IMPORT + TRAIN + "train(20)",
    "started before torch": IMPORT + "start_training_profiling()\nimport torch" + TRAIN + "train(20)",
    "started after torch": "import torch\n" + IMPORT + "start_training_profiling()" + TRAIN + "train(20)",
    "a section before torch": IMPORT + "with profile_section('early'): pass\nimport torch" + TRAIN + "train(20)",
    "imported again": "import torch\n" + IMPORT + TRAIN + "train(10)\n" + REMOVE + IMPORT + "train(10)",
    "removed before torch": IMPORT + REMOVE + "import torch\n" + IMPORT + TRAIN + "train(20)",
}


def quick_are(programs: Iterable[str], *quick: str) -> list[Any]:
    """Return names of programs as parameters; `make test` has these, `make test-programs` the others."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.programs]) for name in programs]


UNDER_RUN = ("import before torch", "import after torch", "imported again")


@pytest.mark.parametrize("program", quick_are(PROGRAMS, "import after torch", "started before torch"))
def test_all_steps_are_counted_once(tmp_path: Path, program: str) -> None:
    outcome = (run_forked if is_forked(program) else run)(tmp_path, PROGRAMS[program])
    assert (outcome.status, outcome.stderr, outcome.stdout.count(SUMMARY)) == (0, "", 1)
    sections = outcome.report["sections"]
    names = ("mine", "forward_pass", "backward_pass", "optimizer_step")
    assert outcome.report["steps"] == 20
    assert [sections[name]["count"] for name in names] == [20, 20, 20, 20]
    assert ("early" in sections) == (program == "a section before torch")


def is_forked(program: str) -> bool:
    return PROGRAMS[program].startswith("import torch")


@pytest.mark.programs
@pytest.mark.parametrize("program", UNDER_RUN)
def test_they_are_under_run(tmp_path: Path, program: str) -> None:
    write_script(tmp_path, PROGRAMS[program])
    if is_forked(program):
        done = execute_forked(tmp_path, "script.py", RECTIFIED_FLOW_PROFILE="1")
    else:
        done = execute(tmp_path, through_run("script.py"), "1", str(ROOT))
    assert (done.status, done.stdout.count(SUMMARY)) == (0, 1), done.stderr
    assert f"{SUMMARY}20 steps)" in done.stdout


def test_start_and_stop_make_a_run_of_all_steps_each_time(tmp_path: Path) -> None:
    part = "start_training_profiling(log_every=0)\ntrain({})\nstop_training_profiling()\n"
    outcome = run_forked(tmp_path, "import torch\n" + IMPORT + TRAIN + part.format(20) + "train(3)\n" + part.format(15))
    assert outcome.stderr == ""
    assert [line for line in outcome.stdout.splitlines() if SUMMARY in line] == [
        f"{SUMMARY}{steps} steps) ===" for steps in (20, 15)
    ]


SILENT = {
    "inference": "import torch\nmodel = torch.nn.Linear(4, 4)\nfor _ in range(30): model(torch.ones(2, 4))",
    "loading with spawned workers": """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index): return torch.ones(4)
if __name__ == "__main__":
    for _ in torch.utils.data.DataLoader(Data(), 8, num_workers=1, multiprocessing_context="spawn"): pass
""",
    "a spawned child with gradients": """
import multiprocessing, torch
def work(): torch.ones(2, requires_grad=True).sum().backward()
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
""",
}


@pytest.mark.parametrize("program", quick_are(SILENT, "inference"))
def test_a_program_that_trains_nothing_prints_and_writes_nothing(tmp_path: Path, program: str) -> None:
    outcome = run(tmp_path, SILENT[program], variables={"RECTIFIED_FLOW_PROFILE_FLUSH_S": "0.05"})
    assert (outcome.status, outcome.stdout, outcome.stderr, outcome.folders) == (0, "", "", [])


def test_gradients_without_a_step_have_a_report_with_the_reason(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import torch\ntorch.ones(2, requires_grad=True).sum().backward()")
    assert "steps could not be detected: gradients were computed once" in outcome.stdout
