"""Programs of several styles: the diff applies with ``patch``, formatting stays, and the edited program trains alike.

`python -m benchmarks.tried_edits` measures that each has the gain that a trial has shown.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.launching import execute_forked
from training_profiler.storage.run_reader import newest_runs, read_run
from training_profiler.trials.edits import Edited, edited
from training_profiler.trials.results import APART, IDENTICAL, compare_losses
from training_profiler.trials.treatment import facts_of
from training_profiler.trials.treatments import TREATMENTS

pytestmark = pytest.mark.programs

STYLES = Path(__file__).parent / "programs" / "styles"
STEPS = 30
WORKERS = "num_workers=2"
# What is there before and after the edit; the rest of the file stays.
EXPECTED = {
    "loader_in_function": (WORKERS, "shuffle=training)", "shuffle=training, num_workers=2)"),
    "module_level": (WORKERS, "BATCH, True)", "BATCH, True, num_workers=2)"),
    "argparse_default": (WORKERS, "num_workers=args.workers", "num_workers=2"),
    "lines_and_comments": (WORKERS, "seed above\n", "seed above\n        num_workers=2,\n"),
    "optimizer_in_class": ("fused", "foreach = False )", "foreach = False, fused=True )"),
}

Train = Callable[[str, bool], list[tuple[str]]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that runs a copy of a program and returns its losses."""
    shutil.copytree(STYLES, tmp_path / "code")

    def train(name: str, is_profiled: bool) -> list[tuple[str]]:
        ended = execute_forked(tmp_path / "code", f"{name}.py", str(STEPS), is_profiled=is_profiled)
        assert ended.status == 0, ended.stderr
        return [(line.split()[1],) for line in ended.stdout.splitlines() if line.startswith("loss ")]

    return train


def edit_of(folder: Path, change: str) -> Edited:
    """Return the edit of a change for the program that has run in ``folder``."""
    facts = facts_of(read_run(newest_runs(folder / "runs", 1)[0]))
    (treatment,) = [each for each in TREATMENTS if each.name == change]
    return edited(treatment.edit(facts.calls), str(folder))


@pytest.mark.parametrize("name", EXPECTED)
def test_the_diff_applies_and_the_edited_program_trains_the_same(train: Train, tmp_path: Path, name: str) -> None:
    change, old, new = EXPECTED[name]
    script = tmp_path / "code" / f"{name}.py"
    before, losses = script.read_text(), train(name, True)
    found = edit_of(script.parent, change)
    assert found.manual == ()
    subprocess.run(["patch", "-p1"], cwd=script.parent, input=found.diff, text=True, check=True, capture_output=True)
    assert before.count(old) == 1
    assert script.read_text() == before.replace(old, new)
    after = train(name, False)
    assert len(losses) == len(after) == STEPS
    kind = compare_losses(after, losses, losses).kind
    assert kind == IDENTICAL if change == WORKERS else kind in (IDENTICAL, APART)


def test_arguments_that_come_from_elsewhere_are_left_to_the_reader(train: Train, tmp_path: Path) -> None:
    train("keyword_arguments", True)
    found = edit_of(tmp_path / "code", WORKERS)
    (line,) = [
        number
        for number, text in enumerate((STYLES / "keyword_arguments.py").read_text().splitlines(), 1)
        if "DataLoader(" in text
    ]
    assert found.diff == ""
    (manual,) = found.manual
    assert manual.text.startswith(f"keyword_arguments.py:{line} (")
    assert "**CONFIG" in manual.text
    assert manual.text.endswith("pass num_workers=2")
