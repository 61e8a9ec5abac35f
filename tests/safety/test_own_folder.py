"""Files in a folder that stays open are found through it, whatever stands at its path."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.safety.test_own_file import take_number
from training_profiler.safety import files as own_folder
from training_profiler.safety.files import (
    NotOursError,
    OwnFile,
    is_in_place,
    keep_open,
    let_go,
    make_inner_folder,
    open_file,
    read_file,
    remove,
    rename_file,
    rename_open,
    replace_file,
    replaced_file,
)

OURS, THEIRS = b"ours", b"precious"
NAMES = ("f", "f.part", "g", "inner/f", "inner/f.part")


def number_of(folder: Path) -> int:
    return own_folder._open[folder].number


def fill(folder: Path, content: bytes) -> Path:
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that stays open, after it was replaced by a link to a folder of others."""
    path = fill(tmp_path / "run", OURS)
    keep_open(path)
    path.rename(tmp_path / "aside")
    path.symlink_to(fill(tmp_path / "theirs", THEIRS))
    return path


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path) -> Iterator[None]:
    """Whatever a test does, files of others stay as they are."""
    yield
    if (tmp_path / "theirs").exists():
        found = {str(path.relative_to(tmp_path / "theirs")) for path in (tmp_path / "theirs").rglob("*")}
        assert found == {*NAMES, "inner"}
        assert {(tmp_path / "theirs" / name).read_bytes() for name in NAMES} == {THEIRS}


@pytest.mark.parametrize("name", ["f", "new", "inner/f", "inner/new"])
def test_files_are_read_and_written_in_the_folder_that_was_opened(folder: Path, tmp_path: Path, name: str) -> None:
    replace_file(folder / name, b"one")
    assert read_file(folder / name, 10) == b"one"
    assert (tmp_path / "aside" / name).read_bytes() == b"one"
    file = OwnFile(folder / name)
    file.append(b", two")
    file.close()
    with open_file(folder / name) as opened:
        assert opened.read() == b"one, two"
    rename_file(folder / name, "named")
    assert (tmp_path / "aside" / name).with_name("named").read_bytes() == b"one, two"
    remove((folder / name).with_name("named"))
    assert not (tmp_path / "aside" / name).with_name("named").exists()
    assert not (tmp_path / "aside" / f"{name}.part").exists()


@pytest.mark.parametrize("name", ["inner/f", "inner/deeper/f"])
def test_no_folder_on_the_way_is_a_link(folder: Path, tmp_path: Path, name: str) -> None:
    if "deeper" in name:
        (tmp_path / "aside" / "inner" / "deeper").symlink_to(tmp_path / "theirs")
    else:
        (tmp_path / "aside" / "inner").rename(tmp_path / "before")
        (tmp_path / "aside" / "inner").symlink_to(tmp_path / "theirs")
    works: list[Callable[[], object]] = [
        lambda: replace_file(folder / name, b"x"),
        lambda: OwnFile(folder / name),
        lambda: read_file(folder / name, 100),
        lambda: remove(folder / name),
        lambda: rename_file(folder / name, "g"),
        lambda: make_inner_folder((folder / name).with_name("h")),
    ]
    for work in works:
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            work()


def test_whether_it_is_in_place(folder: Path, tmp_path: Path) -> None:
    assert not is_in_place(folder)
    folder.unlink()
    assert not is_in_place(folder)
    fill(folder, THEIRS)
    assert not is_in_place(folder)
    assert is_in_place(tmp_path / "theirs")  # never opened


@pytest.mark.parametrize("how", ["closed", "taken"])
def test_a_program_that_closed_the_descriptor_costs_the_folder_only_if_another_is_in_its_place(
    tmp_path: Path, how: str
) -> None:
    path = fill(tmp_path / "run", OURS)
    keep_open(path)
    number = number_of(path)
    os.close(number)
    if how == "taken":
        take_number(number, tmp_path / "of the program")
    replace_file(path / "f", b"one")
    assert (path / "f").read_bytes() == b"one"
    assert (number_of(path) != number) == (how == "taken")
    fill(tmp_path / "theirs", THEIRS)
    os.close(number_of(path))
    path.rename(tmp_path / "aside")
    path.symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        replace_file(path / "f", b"two")
    path.unlink()
    path.mkdir()
    with pytest.raises(NotOursError, match="is no longer what was opened"):
        replace_file(path / "f", b"two")
    assert os.listdir(path) == []
    if how == "taken":
        os.close(number)  # left alone


def test_a_link_is_not_kept_open(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        keep_open(tmp_path / "run")


def test_a_renamed_folder_stays_open(tmp_path: Path) -> None:
    keep_open(fill(tmp_path / "run", OURS))
    number = number_of(tmp_path / "run")
    rename_open(tmp_path / "run", tmp_path / "named")
    assert number_of(tmp_path / "named") == number
    let_go(tmp_path / "named")
    assert own_folder._open == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_new_folder_at_the_path_of_an_old_one_is_opened(tmp_path: Path) -> None:
    keep_open(fill(tmp_path / "run", OURS))
    before = number_of(tmp_path / "run")
    keep_open(tmp_path / "run")
    assert number_of(tmp_path / "run") == before
    (tmp_path / "run").rename(tmp_path / "old")
    (tmp_path / "run").mkdir()
    keep_open(tmp_path / "run")
    replace_file(tmp_path / "run" / "f", b"one")
    assert (tmp_path / "run" / "f").read_bytes() == b"one"


def test_without_descriptors_of_folders_paths_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set())
    path = fill(tmp_path / "run", OURS)
    keep_open(path)
    assert own_folder._open == {}
    replace_file(path / "f", b"one")
    make_inner_folder(path / "new")
    rename_file(path / "g", "h")
    remove(path / "h")
    assert ((path / "f").read_bytes(), (path / "new").is_dir(), (path / "h").exists()) == (b"one", True, False)


def test_an_error_leaves_the_old_file_and_no_draft(folder: Path, tmp_path: Path) -> None:
    def fail() -> None:
        with replaced_file(folder / "f") as descriptor:
            os.write(descriptor, b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "aside" / "f").read_bytes() == OURS
    assert not (tmp_path / "aside" / "f.part").exists()
