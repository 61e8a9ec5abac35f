import dis
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.golden import assert_answers
from training_profiler.sampling import user_code
from training_profiler.sampling.user_code import Places, UserCode, imported, places_of_this_process

LIBRARY = "/usr/lib/python3.11"
PACKAGES = "/home/ada/project/.venv/lib/python3.11/site-packages"
PLACES = Places(
    main="/home/ada/project/scripts/train.py",
    cwd="/home/ada/project",
    standard_library=(LIBRARY,),
    search_path=("/home/ada/project/scripts", "/home/ada/libraries", LIBRARY, PACKAGES),
    never=(f"{PACKAGES}/training_profiler", "/home/ada/pytorch/torch"),
)


def test_files_of_the_program_have_names_and_those_of_libraries_none():
    """What steers a terminal is escaped; code in editable form, on PYTHONPATH or typed in is the user's."""
    assert_answers("files", shown)


def shown(name):
    return str(UserCode(PLACES).shown(name.encode().decode("unicode_escape")))


TORCH = f"{PACKAGES}/torch"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (  # python -m flows.train
            {"main": f"{PACKAGES}/flows/train.py"},
            {
                f"{PACKAGES}/flows/train.py": "flows/train.py",
                f"{PACKAGES}/flows/models/unet.py": "flows/models/unet.py",
                f"{PACKAGES}/flowsheet/train.py": None,
                f"{TORCH}/optim/adam.py": None,
            },
        ),
        (  # the same in a folder that an installer wrote to
            {"main": "/opt/libraries/flows/train.py", "installed": ("/opt/libraries",)},
            {"/opt/libraries/flows/train.py": "flows/train.py", "/opt/libraries/curves/spline.py": None},
        ),
        # python -m torch.distributed.run
        ({"main": f"{TORCH}/distributed/run.py", "never": (TORCH,)}, {f"{TORCH}/distributed/run.py": None}),
        # The program has gone elsewhere since it was started by this name.
        ({"cwd": "/home/ada/project/outputs/3"}, {"scripts/train.py": "train.py", "train.py": "train.py"}),
        ({"main": None}, {"/home/ada/project/scripts/train.py": "scripts/train.py"}),  # at a prompt
    ],
)
def test_names_follow_what_was_started(changes, shown):
    code = UserCode(replace(PLACES, **changes))
    assert {filename: code.shown(filename) for filename in shown} == shown


def test_two_files_never_share_a_name():
    code = UserCode(PLACES)
    assert code.shown("/home/ada/project/scripts/data.py") == "data.py"
    assert code.shown("/home/ada/project/data.py") == "project/data.py"
    assert code.shown("/srv/project/data.py") == "/srv/project/data.py"
    assert code.shown("/home/ada/project/scripts/data.py") == "data.py"


def test_no_more_names_are_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(user_code, "MOST_FILES", 10)
    code = UserCode(PLACES)
    for number in range(100):
        assert code.shown(f"/home/ada/project/{number}.py") == f"{number}.py"
    assert len(code._names) <= 10
    assert len(code._path_of) <= 10


def test_a_folder_that_an_installer_wrote_to_has_libraries(tmp_path, monkeypatch) -> None:
    """As ``pip install --target vendored`` does; sources on PYTHONPATH, beside the project or editable have none."""
    vendored, sources = tmp_path / "vendored", tmp_path / "sources"
    (vendored / "flows-1.0.dist-info").mkdir(parents=True)
    (sources / "curves.egg-info").mkdir(parents=True)  # written by pip install --editable
    monkeypatch.syspath_prepend(str(vendored))
    monkeypatch.syspath_prepend(str(sources))
    places = replace(places_of_this_process(), main=str(tmp_path / "train.py"))
    assert [folder for folder in places.installed if folder.startswith(str(tmp_path))] == [str(vendored)]
    code = UserCode(places)
    assert code.shown(str(vendored / "flows" / "ode.py")) is None
    assert code.shown_library(str(vendored / "flows" / "ode.py")) == "flows/ode.py"
    assert code.shown_library(str(vendored / "six.py")) == "six.py"
    assert code.shown(str(sources / "curves" / "spline.py")) == "sources/curves/spline.py"
    assert code.shown_library(str(sources / "curves" / "spline.py")) is None


def test_a_project_with_installed_packages_beside_the_script_stays_the_users(tmp_path, monkeypatch) -> None:
    (tmp_path / "flows-1.0.dist-info").mkdir()
    (tmp_path / "scripts").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in places_of_this_process().installed
    monkeypatch.chdir(tmp_path / "scripts")
    assert str(tmp_path) not in places_of_this_process().installed


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import big.part\nprint()", {("big.part", True)}),
        ("import big.part as part, os\nprint(os)", {("big.part", True), ("os", False)}),
        ("from big import (\n    A as B,\n    C,\n)\nA = 1\nprint(A)", {("big", True)}),
        ("from big import A, B\ndef use():\n    return lambda: B", {("big", False)}),
        ("import big\nglobals()['big']", {("big", False)}),
        ("import big\ndef use(text):\n    return eval(text)", {("big", False)}),
        ("from big import *", {("big", False)}),
        ("def use():\n    pass\nuse()", set()),
    ],
)
def test_a_script_imports_what_it_names_or_not(script, found, monkeypatch) -> None:
    code = compile(script, "/project/train.py", "exec")
    offsets = [each.offset for each in dis.get_instructions(code)]
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__="/project/train.py"))
    assert {imported(code, offset) for offset in offsets} - {("", False)} == found
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__="/project/main.py"))
    assert not any(is_unused for offset in offsets for _, is_unused in [imported(code, offset)])  # others may use it
