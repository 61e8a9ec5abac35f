import json
import sys
from importlib import metadata

import pytest

from training_profiler.settings.settings import Settings
from training_profiler.storage import run_folder
from training_profiler.storage.run_folder import (
    describe_git,
    describe_process,
    journal_name,
    make_run_folder,
    write_json,
    write_text,
)
from training_profiler.storage.run_lookup import program_in


@pytest.fixture(autouse=True)
def one_second(monkeypatch):
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "20261121-142530")


def test_a_run_folder_is_named_after_the_time(tmp_path):
    assert make_run_folder(str(tmp_path / "runs")) == tmp_path / "runs" / "20261121-142530"


def test_a_second_run_in_the_same_second_gets_a_number(tmp_path):
    made = [make_run_folder(str(tmp_path)).name for _ in range(3)]
    assert made == ["20261121-142530", "20261121-142530-2", "20261121-142530-3"]


def test_a_run_folder_stays_where_it_is_when_the_script_changes_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_run_folder("runs") == tmp_path / "runs" / "20261121-142530"


def test_a_file_of_the_same_name_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(OSError, match="runs"):
        make_run_folder(str(tmp_path / "runs"))


def test_each_rank_has_a_journal():
    assert journal_name(3) == "rank3.jsonl"


def test_the_command_line_is_described_without_secrets(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "train.py", "--token", "X", "--lr", "1e-3"])
    command = describe_process(Settings())["command"]
    assert command.split(" ", 1)[1] == "train.py --token '***' --lr 1e-3"


def test_a_process_that_multiprocessing_spawned_has_the_command_of_its_parent(monkeypatch):
    text = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "-c", text, "--multiprocessing-fork"])
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1e-3"])
    command = describe_process(Settings())["command"]
    assert command.split(" ", 1)[1] == "train.py --lr 1e-3"
    assert program_in(command) == "train.py"


def test_the_description_of_a_run_is_json(tmp_path):
    path = tmp_path / "meta.json"
    write_json(path, describe_process(Settings(log_every=7)))
    data = json.loads(path.read_text())
    of_process = {"began", "host", "pid", "launch", "command", "folder", "python", "platform", "cpus"}
    assert set(data) == of_process | {"versions", "settings"}
    assert data["settings"]["log_every"] == 7


def test_versions_are_those_of_the_installed_packages():
    versions = describe_process(Settings())["versions"]
    assert versions == {name: metadata.version(name) for name in ("training-profiler", "torch", "numpy")}


def test_outside_of_a_git_tree_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_git(tmp_path / "train.py") is None


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_git(__file__) is None


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
