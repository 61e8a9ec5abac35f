"""Files of others are opened without waiting and without following links."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from training_profiler.safety.files import (
    NotRegularFileError,
    is_folder,
    lines_of,
    may_follow,
    open_file,
    read_file,
    replace_file,
    write_output,
)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    path.with_name("target").write_bytes(b"secret")
    path.symlink_to(path.with_name("target"))


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("plant", [fifo, folder, device, link, unix_socket])
def test_only_regular_files_are_read(tmp_path: Path, plant: object) -> None:
    path = tmp_path / "f"
    plant(path)  # type: ignore[operator]
    with pytest.raises(NotRegularFileError, match="not a file"):
        read_file(path, 1000)
    if plant is not link:
        with pytest.raises(NotRegularFileError, match="not a file"):
            read_file(path, 1000, follow=True)


def test_a_named_link_to_a_file_is_followed(tmp_path: Path) -> None:
    link(tmp_path / "f")
    assert read_file(tmp_path / "f", 1000, follow=True) == b"secret"


def test_larger_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(NotRegularFileError, match="larger than 1000 bytes"):
        read_file(path, 1000)


def test_links_are_trusted_only_in_folders_of_the_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert may_follow(tmp_path / "f")
    tmp_path.chmod(0o777)
    assert not may_follow(tmp_path / "f")
    assert not may_follow(tmp_path / "gone" / "f")


def test_a_link_to_a_folder_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_folder(tmp_path)
    assert not is_folder(tmp_path / "link")
    assert not is_folder("a\0b")


def test_lines_that_are_too_long_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\n" + b"x" * 3_000_000 + b"\n\n1234\ntorn")
    with open_file(path) as file:
        assert list(lines_of(file, 4)) == [b"one", None, b"", b"1234", b"torn"]


def test_replacing_a_file_follows_no_link_and_keeps_the_users_umask(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    for name in ("f", "f.part"):
        (tmp_path / name).symlink_to(target)
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "f", b"new")
    finally:
        os.umask(before)
    assert target.read_bytes() == b"precious"
    assert (tmp_path / "f").read_bytes() == b"new"
    assert (tmp_path / "f").lstat().st_mode & 0o7777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["f", "target"]


def test_a_pipe_in_place_of_the_draft_is_replaced(tmp_path: Path) -> None:
    fifo(tmp_path / "f.part")
    replace_file(tmp_path / "f", b"new")
    assert read_file(tmp_path / "f", 10) == b"new"


def test_an_output_that_the_user_named_may_be_a_pipe_or_a_device(tmp_path: Path) -> None:
    fifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_output(tmp_path / "pipe", b"text")
    reader.join()
    assert read == [b"text"]
    (tmp_path / "null").symlink_to("/dev/null")
    write_output(tmp_path / "null", b"text")
    assert (tmp_path / "null").is_symlink()
    assert list(tmp_path.iterdir()) in ([tmp_path / "pipe", tmp_path / "null"], [tmp_path / "null", tmp_path / "pipe"])


def test_an_output_that_the_user_named_is_a_file_in_one_piece(tmp_path: Path) -> None:
    link(tmp_path / "file")
    write_output(tmp_path / "file", b"text")
    assert (tmp_path / "file").read_bytes() == b"text"
    assert (tmp_path / "target").read_bytes() == b"secret"


def test_an_open_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    with (tmp_path / "open").open("wb") as file:
        write_output(Path(f"/dev/fd/{file.fileno()}"), b"text")
    assert (tmp_path / "open").read_bytes() == b"text"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices here")
    with pytest.raises(NotRegularFileError, match="a device"):
        replace_file(tmp_path / "null", b"text")
    write_output(tmp_path / "null", b"text")
    assert (tmp_path / "null").is_char_device()
