"""A session goes on only with the same program, arguments, settings, machine and versions."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from training_profiler.settings.settings import read_settings
from training_profiler.storage.run_folder import describe_process
from training_profiler.trials import state
from training_profiler.trials.launcher import Program
from training_profiler.trials.state import identity_of, program_files, why_another

WORDS = ("train.py", "--lr", "1e-3", "--config=conf/small.yaml", "--api-key", "not-a-digit")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder of a program that imports modules beside it."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "train.py": "import torch, data.images\nfrom models import net\nfrom json import loads\n",
        "data/__init__.py": "",
        "data/images.py": "from . import sizes\nfrom ..models.net import Net\n",
        "data/sizes.py": "SIZE = 2",
        "models/net.py": "def broken(:",
        "other.py": "x = 1",
        "conf/small.yaml": "lr: 1",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def found(*words):
    program = Program([sys.executable, *(words or WORDS)], True, "train.py")
    return identity_of(program, describe_process(read_settings()))


def names_of(*words):
    return {str(path.relative_to(Path.cwd())) for path in program_files(["python", *words], Path.cwd())}


@pytest.mark.usefixtures("project")
def test_the_files_are_those_that_are_named_and_what_they_import_beside_them():
    modules = {"train.py", "data/__init__.py", "data/images.py", "data/sizes.py", "models/net.py"}
    assert names_of("train.py") == modules
    assert names_of("-m", "data.images") == modules - {"train.py"}
    assert names_of("train.py", "--config=conf/small.yaml") == modules | {"conf/small.yaml"}


@pytest.mark.usefixtures("project")
def test_the_same_program_is_the_same_and_secrets_are_not_kept():
    before = found()
    Path("other.py").write_text("x = 2")  # not the program's
    assert why_another(before, found()) is None
    assert b"not-a-digit" not in msgspec.json.encode(before)
    longer = ("train.py", "x" * 5000)  # than the name of a file may be
    assert why_another(found(*longer), found(*longer)) is None


@pytest.mark.parametrize("name", ["train.py", "data/sizes.py", "conf/small.yaml"])
@pytest.mark.parametrize("most_bytes", [3, 1000])  # a larger file is known by its size and time
def test_a_file_that_has_changed_is_named(project, monkeypatch, name, most_bytes):
    monkeypatch.setattr(state, "MOST_READ_BYTES", most_bytes)
    before = found()
    (project / name).write_text("x = 300")
    assert why_another(before, found()) == f"{project / name} has changed"


@pytest.mark.usefixtures("project")
def test_other_arguments_are_shown():
    command = why_another(found(), found("train.py", "--lr", "1e-2", *WORDS[3:]))
    assert "--lr 1e-3" in command
    assert "--lr 1e-2" in command
    assert "not-a-digit" not in command
    assert "resembles a secret" in why_another(found(), found(*WORDS[:-1], "xyz"))


@pytest.mark.usefixtures("project")
def test_threads_and_settings_count(monkeypatch):
    before = found()
    with monkeypatch.context() as one:
        one.setenv("OMP_NUM_THREADS", "7")
        assert "OMP_NUM_THREADS" in why_another(before, found())
        assert why_another(before, found()).endswith("is 7")
    with monkeypatch.context() as one:
        one.setenv("RECTIFIED_FLOW_PROFILE_TIMING", "host")
        assert "settings.timing" in why_another(before, found())


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("meta", "host", "other", "and is other"),
        ("meta", "python", "2.7", "and is 2.7"),
        ("meta", "folder", "/elsewhere", "and is /elsewhere"),
        ("meta", "versions", {"training-profiler": None}, "and is unknown"),
        ("machine", "cores", 99, "and is 99"),
        ("machine", "gpus", [{"index": 0, "name": "A100"}], "gpu 0 was unknown, and is A100"),
    ],
)
def test_another_machine_or_version_counts(part, name, value, message):
    before = found()
    old = getattr(before, part)
    value = {**old[name], **value} if isinstance(value, dict) else value
    assert why_another(before, replace(before, **{part: {**old, name: value}})).endswith(message)
