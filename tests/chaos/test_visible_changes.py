"""What a program can find out about its interpreter and torch under ``training-profiler run``, and without us.

Each difference has a row in docs/visible-changes.md, and each row is a difference.
"""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.neighbours import output_of

pytestmark = pytest.mark.chaos
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "visible-changes.md"
SWITCH = "RECTIFIED_FLOW_PROFILE"
Views = dict[str, dict[str, Any]]  # by the moment, and by what is looked at


def views(cwd: Path, *launcher: str, **variables: str) -> Views:
    """Run the program in ``cwd`` and return what it saw at each moment."""
    shutil.rmtree(cwd / "runs", ignore_errors=True)
    output_of(cwd, launcher, "view.py", "views.json", **variables)
    return dict(json.loads((cwd / "views.json").read_text()))


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("view")


@pytest.fixture(scope="module")
def alone(cwd: Path) -> Views:
    return views(cwd)


@pytest.fixture(scope="module")
def under_run(cwd: Path) -> Views:
    return views(cwd, "-m", "training_profiler", "run")


def differences(before: Views, after: Views) -> dict[str, Any]:
    """Return what differs at any moment, by its name."""
    return {
        name: (moment, seen[name], after[moment][name])
        for moment, seen in before.items()
        for name in seen
        if seen[name] != after[moment][name]
    }


def documented() -> set[str]:
    """Return the first column of the page's first table."""
    rows = re.findall(r"^\| (.+?) \|", PAGE.read_text().partition("## Objects")[0], re.MULTILINE)
    return {row.replace("`", "") for row in rows if not row.startswith(("-", "place"))}


def test_program_sees_what_it_sees_without_us_except_for_the_table(alone: Views, under_run: Views) -> None:
    changed = differences(alone, under_run)
    assert {name: seen for name, seen in changed.items() if name not in documented()} == {}
    assert documented() - set(changed) == set()


@pytest.mark.parametrize("sections", [{}, {"VIEW_SECTIONS": "1"}], ids=["alone", "with sections"])
def test_the_variable_changes_what_run_does_except_for_its_folder(
    cwd: Path, alone: Views, sections: dict[str, str]
) -> None:
    before = views(cwd, **sections) if sections else alone
    changed = differences(before, views(cwd, **sections, **{SWITCH: "1"}))
    assert set(changed) == documented()
    assert set(changed["os.environ"][2]) - set(changed["os.environ"][1]) == {SWITCH, f"{SWITCH}_ROOT"}


def test_losses_and_random_numbers_are_the_same(alone: Views, under_run: Views) -> None:
    training = under_run["in the training"]
    for name in ("losses", "random", "default generator", "attributes", "references", "sys.getswitchinterval()"):
        assert training[name] == alone["in the training"][name]


def test_two_runs_without_us_see_the_same(cwd: Path, alone: Views) -> None:
    assert differences(alone, views(cwd)) == {}


def test_environment_has_three_variables_more(alone: Views, under_run: Views) -> None:
    environment = under_run["at the start"]["os.environ"]
    assert set(environment) - set(alone["at the start"]["os.environ"]) == {SWITCH, f"{SWITCH}_ROOT", "PYTHONPATH"}


def watched(cwd: Path, *launcher: str) -> tuple[float, Counter[str]]:
    """Return the last loss of a training, and what a mode of it saw how often."""
    printed = output_of(cwd, launcher, "watched_calls.py", **{f"{SWITCH}_STREAM": "stderr"})
    loss, seen = json.loads(printed)
    return loss, Counter(seen)


def test_a_mode_of_the_program_sees_reads_of_attributes_and_no_operations(cwd: Path) -> None:
    (loss, alone), (same, seen) = watched(cwd), watched(cwd, "-m", "training_profiler", "run")
    assert same == loss
    assert not alone - seen
    page = PAGE.read_text().partition("## Modes")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(Tensor\.\w+)`", page))
    more = {name.removeprefix("torch.").removesuffix(".__get__") for name in seen - alone}
    assert more == documented
