"""A file of ours is only written to while its descriptor stands for it."""

import os
import resource

import pytest

from training_profiler.safety import files as descriptors
from training_profiler.safety.files import Descriptor, NotOursError, OwnFile, identity, raised


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
        with pytest.raises(FileExistsError if is_new else OSError):  # ELOOP or ENXIO
            OwnFile(path, is_new)
    assert not (tmp_path / "target").exists()


def test_a_fifo_with_a_reader_is_refused(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NotOursError, match="is not a regular file"):
        OwnFile(fifo)
    os.close(reader)


def test_descriptor_gets_a_high_number_and_its_own_is_free(tmp_path):
    low = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    high = raised(low)
    try:
        assert high >= descriptors.LOWEST
        assert not os.get_inheritable(high)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(low)
        assert os.write(high, b"x") == 1
    finally:
        os.close(high)


def test_below_a_lower_limit_it_is_above_the_standard_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptors, "LOWEST", resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 10)
    high = raised(os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT))
    try:
        assert 3 <= high < descriptors.LOWEST
    finally:
        os.close(high)


def test_a_descriptor_is_closed_while_the_number_stands_for_its_file(tmp_path):
    ours = os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT)
    kept = Descriptor(ours, identity(ours))
    assert kept.is_ours()
    kept.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(ours)
    take_number(ours, tmp_path / "theirs")
    assert not kept.is_ours()
    kept.close()
    os.fstat(ours)
    os.close(ours)
    kept.close()
