"""Files of others are opened without waiting and without following links."""

import io
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from training_profiler.safety.files import (
    CHUNK,
    FREE_LINES,
    LEAST_LINE_BYTES,
    Lines,
    NotRegularFileError,
    is_folder,
    lines_of,
    may_follow,
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


class CountedReads(io.BytesIO):
    """Counts the calls that read it; lines are cut from what ``read`` returns."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        return super().read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        raise AssertionError("a read for each line")


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\t \n", b" "])
def test_blank_lines_are_no_lines_and_take_no_reads_of_their_own(blank: bytes) -> None:
    file = CountedReads(b"one\n" + blank * (3 * CHUNK // len(blank)) + b"\n two\n")
    assert list(lines_of(file, 10)) == [b"one", b"two"]
    assert file.reads <= 5


def test_lines_are_cut_from_pieces_of_any_length() -> None:
    text = b"one\n\n  two\n" + b"x" * 20 + b"\nthree\n" + b"y" * 11 + b"\ntorn"
    for length in range(1, len(text) + 1):
        lines = Lines(10)
        cut = [line for at in range(0, len(text), length) for line in lines.cut(text[at : at + length])]
        assert [*cut, lines.rest] == [b"one", b"two", None, b"three", None, b"torn"]


def test_a_file_of_millions_of_tiny_lines_is_refused_early() -> None:
    file = CountedReads(b"{}\n" * 3_000_000)
    with pytest.raises(NotRegularFileError, match="most of its lines are tiny"):
        list(lines_of(file, 1000))
    assert file.reads < 3
    assert len(list(lines_of(io.BytesIO(b"{}\n" * FREE_LINES), 1000))) == FREE_LINES
    line = b"x" * (LEAST_LINE_BYTES - 1) + b"\n"
    assert len(list(lines_of(io.BytesIO(line * (2 * FREE_LINES)), 1000))) == 2 * FREE_LINES


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
