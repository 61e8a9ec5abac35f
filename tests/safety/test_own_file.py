"""A file of ours is only written to while its descriptor stands for it."""

import os

import pytest

from training_profiler.safety.own_file import NotOursError, OwnFile


def descriptor_of(file):
    return file._descriptor.number


def take_number(number, path):
    """Open ``path`` under the number of a descriptor that the program closed."""
    theirs = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(theirs, number)
    if theirs != number:
        os.close(theirs)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank0.jsonl"


def test_data_is_appended(path):
    file = OwnFile(path)
    file.append(b"one\n")
    file.append(b"two\n")
    assert (path.read_bytes(), file.size, file.reopened) == (b"one\ntwo\n", 8, 0)
    file.close()


def test_a_number_that_the_program_got_is_left_alone(path, tmp_path):
    file = OwnFile(path)
    file.append(b"one\n")
    number = descriptor_of(file)
    take_number(number, tmp_path / "theirs")
    file.append(b"two\n")
    file.close()
    os.write(number, b"theirs")  # neither closed nor written to
    os.close(number)
    assert (path.read_bytes(), (tmp_path / "theirs").read_bytes()) == (b"one\ntwo\n", b"theirs")
    assert file.reopened == 1


def test_a_closed_descriptor_is_opened_again(path):
    file = OwnFile(path)
    os.close(descriptor_of(file))
    file.append(b"one\n")
    file.close()
    assert (path.read_bytes(), file.reopened) == (b"one\n", 1)


def test_a_number_of_the_program_is_not_closed(path, tmp_path):
    file = OwnFile(path)
    number = descriptor_of(file)
    take_number(number, tmp_path / "theirs")
    file.close()
    os.close(number)


def replace_by_link(path, theirs):
    path.unlink()
    path.symlink_to(theirs)


def replace_by_file(path, theirs):
    path.rename(path.with_name("before"))
    path.write_bytes(theirs.read_bytes())


def replace_by_fifo(path, theirs):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_file, replace_by_fifo])
def test_another_file_at_the_path_is_not_written_to(path, tmp_path, replace):
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    file = OwnFile(path)
    os.close(descriptor_of(file))
    replace(path, theirs)
    with pytest.raises(OSError):  # noqa: PT011 - the system says ELOOP or ENXIO, or it is NotOursError
        file.append(b"ours")
    with pytest.raises(NotOursError, match="is closed"):
        file.append(b"ours")
    file.close()
    assert theirs.read_bytes() == b"theirs"


@pytest.mark.parametrize("is_new", [False, True])
def test_links_and_fifos_are_refused(tmp_path, is_new):
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(tmp_path / "target")
    os.mkfifo(fifo)
    for path in (link, fifo):
        with pytest.raises(OSError):  # noqa: PT011 - ELOOP, EEXIST or ENXIO
            OwnFile(path, is_new)
    assert not (tmp_path / "target").exists()


def test_a_fifo_with_a_reader_is_refused(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NotOursError, match="is not a regular file"):
        OwnFile(fifo)
    os.close(reader)


def test_a_file_that_must_be_new_is_new(path):
    path.write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        OwnFile(path, is_new=True)


def test_a_file_whose_folder_got_another_name_is_found(path, tmp_path):
    (tmp_path / "a").mkdir()
    file = OwnFile(tmp_path / "a" / "journal")
    (tmp_path / "a").rename(tmp_path / "b")
    file.moved(tmp_path / "b" / "journal")
    os.close(descriptor_of(file))
    file.append(b"one")
    file.close()
    assert (tmp_path / "b" / "journal").read_bytes() == b"one"
