"""The variable alone: the start-up file beside the package arms the profiler where the switch is on."""

import os
import shutil
import sys
import venv
from pathlib import Path

import pytest

from tests.system.launching import BOOTSTRAP, Ended, execute, stand_ins
from tests.system.scripts import ROOT
from tests.system.test_bootstrap import LIVE, script
from training_profiler.base.switch import OFF_WORDS, SWITCH

FILES = ("training_profiler.pth", "training_profiler.start", "training_profiler_start.py")
TRAINED = LIVE.replace("return None", "return 'no step was found'") + "def has_trained():\n    return True\n"
IDLE = LIVE.replace("return None", "return 'no gradient'") + "def has_trained():\n    return False\n"
MODULES = "import sys\nprint(sorted(sys.modules), [type(f).__name__ for f in sys.meta_path], sys.path)"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Return a Python whose site-packages hold what an installation puts there."""
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for name in FILES:
        shutil.copy(ROOT / name, packages)
    shutil.copytree(BOOTSTRAP, packages / "training_profiler" / "bootstrap")
    return str(tmp_path / "env" / "bin" / "python")


def packages_of(python: str) -> Path:
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    return packages


def run(cwd: Path, python: str, text: str, live: str = LIVE, profile: str | None = "1", path: str = "") -> Ended:
    command = [python, *script(cwd, text)[1:]]
    before = path + os.pathsep if path else ""
    return execute(cwd, command, profile, before + stand_ins(cwd, "", live))


def test_the_variable_alone_starts_the_profiler_after_the_import_of_torch(tmp_path: Path, python: str) -> None:
    ours = run(tmp_path, python, "print('first')\nimport torch", TRAINED)
    assert ours == Ended(0, "first\nstarted True\n", "training_profiler: nothing measured: no step was found\n")


@pytest.mark.parametrize("profile", [None, *OFF_WORDS, " OFF "])
def test_without_the_variable_nothing_of_ours_is_imported(tmp_path: Path, python: str, profile: str | None) -> None:
    ours = execute(tmp_path, [python, *script(tmp_path, MODULES)[1:]], profile)
    for name in FILES:
        (packages_of(python) / name).unlink()
    plain = execute(tmp_path, [python, "train.py"], profile)
    assert ours.stdout == plain.stdout
    assert (ours.status, ours.stderr) == (0, "")


@pytest.mark.parametrize("text", ["", "import torch", "import torch\nimport os\nos.chdir('/')"])
def test_a_program_that_never_trains_prints_nothing(tmp_path: Path, python: str, text: str) -> None:
    ours = run(tmp_path, python, text, IDLE)
    assert (ours.status, ours.stderr) == (0, "")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("folders", [1, 2])
def test_with_the_bootstrap_on_pythonpath_it_is_armed_once_and_says_why_nothing_was_measured(
    tmp_path: Path, python: str, folders: int
) -> None:
    shutil.copytree(BOOTSTRAP, tmp_path / "other" / "bootstrap")
    path = os.pathsep.join([str(BOOTSTRAP), str(tmp_path / "other" / "bootstrap")][:folders])
    ours = run(tmp_path, python, "import torch", IDLE, path=path)
    assert ours == Ended(0, "started True\n", "training_profiler: nothing measured: no gradient\n")


def test_two_installations_arm_the_first_once(tmp_path: Path, python: str) -> None:
    second = tmp_path / "second"
    shutil.copytree(packages_of(python), second)
    (packages_of(python) / "zz_second.pth").write_text(f"import site; site.addsitedir({str(second)!r})\n")
    text = "import torch, sys\nprint(sys.modules['training_profiler_hook'].__file__)"
    ours = run(tmp_path, python, text)
    assert ours.stdout.startswith(f"started True\n{packages_of(python)}")
    assert ours.stderr == ""


def test_isolated_mode_is_profiled_and_a_python_without_site_is_not(tmp_path: Path, python: str) -> None:
    stand_ins(tmp_path, "", LIVE)
    (packages_of(python) / "stand_ins.pth").write_text(f"{tmp_path / 'stand_ins'}\n")
    shutil.rmtree(packages_of(python) / "training_profiler")
    shutil.copytree(BOOTSTRAP, packages_of(python) / "training_profiler" / "bootstrap")
    shutil.copy(tmp_path / "stand_ins" / "training_profiler" / "api.py", packages_of(python) / "training_profiler")
    (packages_of(python) / "training_profiler" / "__init__.py").touch()
    script(tmp_path, "import sys\nsys.path.append('stand_ins')\nimport torch")
    assert execute(tmp_path, [python, "-I", "train.py"], "1") == Ended(0, "started True\n", "")
    assert execute(tmp_path, [python, "-S", "train.py"], "1") == Ended(0, "", "")


@pytest.mark.parametrize(("name", "value"), [(SWITCH, "maybe"), ("TRAINING_PROFILER", "2")])
def test_a_value_that_means_neither_is_said_once_when_torch_is_imported(
    tmp_path: Path, python: str, name: str, value: str
) -> None:
    path = stand_ins(tmp_path, "", LIVE)
    text = "import subprocess, sys\nprint('before', file=sys.stderr, flush=True)\nimport torch\n"
    text += "if not sys.argv[1:]: subprocess.run([sys.executable, __file__, 'child'])"
    ours = execute(tmp_path, [python, *script(tmp_path, text)[1:]], None, path, variables={name: value})
    message = f"{name}={value!r} is neither on (1, true, yes, on) nor off (0, false, no, off); example: {name}=1"
    assert ours == Ended(0, "", f"before\ntraining_profiler: nothing is measured: {message}\nbefore\n")
    quiet = execute(tmp_path, [python, "-c", "print(1)"], None, path, variables={name: value})
    assert quiet == Ended(0, "1\n", "")


def test_a_failing_hook_is_one_line_and_the_program_goes_on(tmp_path: Path, python: str) -> None:
    (packages_of(python) / "training_profiler" / "bootstrap" / "training_profiler_hook.py").write_text("1 / 0")
    ours = run(tmp_path, python, "print('trained')")
    assert ours == Ended(0, "trained\n", "training_profiler: nothing is measured: division by zero\n")


@pytest.mark.parametrize("profile", ["1", "0", ""])
def test_the_start_file_names_a_callable_that_looks_at_the_switch_as_well(tmp_path: Path, profile: str) -> None:
    (entry,) = (ROOT / "training_profiler.start").read_text().splitlines()
    (line,) = (ROOT / "training_profiler.pth").read_text().splitlines()
    assert line.startswith("import os; ")
    assert f'__import__("{entry.partition(":")[0]}")' in line
    look = "print([type(finder).__name__ for finder in sys.meta_path], len(sys.path))"
    text = f"import pkgutil, sys; sys.path.insert(0, {str(ROOT)!r}); {look}; pkgutil.resolve_name({entry!r})(); {look}"
    before, after = execute(tmp_path, [sys.executable, "-S", "-c", text], profile).stdout.splitlines()
    assert after == (before.replace("[", "['TorchFinder', ", 1) if profile == "1" else before)


def test_the_words_for_off_are_those_of_the_switch_and_the_guide_shows_the_line_whole() -> None:
    line, module = ((ROOT / name).read_text() for name in FILES[::2])
    assert line in (ROOT / "docs" / "get-started.md").read_text()
    assert f'in "{" ".join(OFF_WORDS[:-1])}".split()' in line  # it takes an empty value as 0
    words = ", ".join(f'"{word}"' for word in OFF_WORDS)
    assert f"in ({words})" in module
