""""""

import sys
from importlib import metadata

import pytest

from tests.support.golden import assert_answers
from training_profiler.settings.settings import Settings
from training_profiler.storage import run_folder
from training_profiler.storage.run_folder import (
    describe_git,
    describe_process,
    earlier_run,
    make_run_folder,
    masked,
    program_in,
    typed_program,
    write_json,
    write_text,
)


@pytest.fixture(autouse=True)
def one_second(monkeypatch):
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "20261121-142530")


def test_a_second_run_in_the_same_second_gets_a_number_and_a_file_in_place_of_the_folder_is_an_error(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    made = [make_run_folder(folder) for folder in ("runs", str(tmp_path / "runs"), "runs")]
    assert made == [tmp_path / "runs" / f"20261121-142530{number}" for number in ("", "-2", "-3")]  # where it was
    (tmp_path / "other").write_text("")
    with pytest.raises(OSError, match="other"):
        make_run_folder(str(tmp_path / "other"))


def test_an_earlier_run_has_the_same_program_and_is_the_newest_of_them(tmp_path):
    commands = {"1": "python train.py", "2": "python train.py --lr 1", "3": "python other.py", "4": "python train.py"}
    for name, command in commands.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "meta.json", {"command": command})
    (tmp_path / "5").mkdir()  # without a description
    assert [earlier_run(tmp_path / name) for name in "1345"] == [None, None, tmp_path / "2", None]


KERNEL = "python -m ipykernel_launcher -f kernel.json"


def test_the_program_of_a_command_can_be_typed_again():
    commands = (
        "python -u -W error a/train.py 'x y'",
        "python -m pkg.train --n 1",
        "python -c pass",
        "python",
        "'",
        KERNEL,
    )
    assert [(program_in(each), typed_program(each)) for each in commands] == [
        ("train.py", "a/train.py 'x y'"),
        ("pkg.train", "-m pkg.train --n 1"),
        *[(None, None)] * 4,
    ]


SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["train.py", "--token", "X", "--lr", "1e-3"], "train.py --token '***' --lr 1e-3"),
        (["-c", SPAWN, "--multiprocessing-fork"], "train.py --lr 1e-3"),  # that of its parent
    ],
)
def test_the_command_line_is_described_without_secrets(monkeypatch, typed, kept):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", *typed])
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1e-3"])
    command = describe_process(Settings())["command"]
    assert (command.split(" ", 1)[1], program_in(command)) == (kept, "train.py")


def test_versions_are_those_of_the_installed_packages():
    versions = describe_process(Settings())["versions"]
    assert versions == {name: metadata.version(name) for name in ("training-profiler", "torch", "numpy")}


@pytest.mark.parametrize(("name", "value"), [("GIT_CEILING_DIRECTORIES", "{0.parent}"), ("PATH", "")])
def test_outside_of_a_git_tree_and_without_git_there_is_no_commit(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value.format(tmp_path))
    assert describe_git(tmp_path / "train.py" if value else __file__) is None


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path):
    theirs, path = tmp_path / "theirs", tmp_path / "report.txt"
    theirs.write_text("theirs")
    path.symlink_to(theirs)
    path.with_name("report.txt.part").symlink_to(theirs)
    write_text(path, "ours")
    assert (theirs.read_text(), path.read_text(), path.is_symlink()) == ("theirs", "ours", False)


def test_json_is_written_in_one_piece(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"nan": float("nan")})
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == "old"


def shown(*words):
    """Return words as they are kept; an X is part of a secret."""
    found = " ".join(masked(words)).replace("*** ***", "***")
    assert "X" not in found.replace("X-Api-Key", "").replace("X-Amz", "")
    return found


def test_values_with_secret_names_or_that_look_like_secrets_are_masked_and_harmless_words_stay():
    assert_answers("secrets", lambda line: shown(*line.split()))
    assert_answers("secret_words", shown)
