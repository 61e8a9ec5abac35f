import os
from pathlib import Path

import pytest

from training_profiler.storage.run_files import has_run_of_child
from training_profiler.storage.run_folder import META, write_json

STRANGER = 1


def make_run(parent: Path, name: str, pid: int, parent_pid: int, launch: str | None = None) -> Path:
    folder = parent / name
    folder.mkdir()
    write_json(folder / META, {"pid": pid, "launch": launch, "launched": {"parent_pid": parent_pid}})
    return folder


@pytest.mark.parametrize(
    ("parent_pid", "pid", "launch", "is_found"),
    [
        (os.getpid(), 12, None, True),
        (STRANGER, 12, "a", True),  # of a server of forks
        (STRANGER, 12, "b", False),
        (STRANGER, os.getpid(), "a", False),  # an earlier run of this process
        (STRANGER, 12, None, False),
    ],
    ids=["of this process", "of a server of forks", "of another launch", "of this process itself", "of a stranger"],
)
def test_run_of_a_child_is_found(tmp_path: Path, parent_pid: int, pid: int, launch: str | None, is_found: bool) -> None:
    make_run(tmp_path, "20261121-142530", pid, parent_pid, launch)
    assert has_run_of_child(tmp_path, None, "a") is is_found


def test_own_run_is_not_that_of_a_child(tmp_path: Path) -> None:
    own = make_run(tmp_path, "20261121-142530", 12, os.getpid())
    assert not has_run_of_child(tmp_path, own, None)
    assert not has_run_of_child(tmp_path / "missing", own, None)
