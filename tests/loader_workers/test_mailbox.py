"""The folder that workers write in: private, bounded, and gone at the end."""

import os
from pathlib import Path

import pytest

from training_profiler.loader_workers.mailbox import LEFT_OVER_S, MOST_FILE_BYTES, Mailbox
from training_profiler.model.loader_workers import WorkerLine, WorkerMemory, WorkerSums

SUMS = WorkerSums(
    workers=1,
    batches=7,
    wall_ns=900,
    fetch_ns=800,
    slowest_ns=300,
    cpu_ns=700,
    queued_ns=20,
    sampling_ns=1,
    idle_samples=2,
    lines=(WorkerLine("transform", "data.py", 31, "Blur.__call__", "", 12),),
    memory=(WorkerMemory(1, 2, 3),),
)


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    mailbox = Mailbox(41, str(tmp_path))
    assert mailbox.make()
    return mailbox


def test_what_a_worker_writes_is_read(mailbox: Mailbox) -> None:
    mailbox.write(7, SUMS)
    assert mailbox.read(7) == SUMS
    assert mailbox.read(8) is None


def test_only_its_owner_can_use_the_folder(mailbox: Mailbox) -> None:
    assert mailbox.folder.stat().st_mode & 0o777 == 0o700
    mailbox.folder.chmod(0o770)
    assert not mailbox.is_safe()


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "of_others"
    target.mkdir(mode=0o700)
    (target / "7.json").write_text("mine")
    mailbox = Mailbox(41, str(tmp_path))
    mailbox.folder.symlink_to(target)
    assert not mailbox.make()
    mailbox.remove()
    assert (target / "7.json").read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1,2",
        b"[" * 5000,
        b"[1,1,1,1,1,1,1,1,-1,0,0,[],[]]",
        b"[1,1,1e300,1,1,1,1,1,1,0,0,[],[]]",
        b"\xff" * 40,
    ],
)
def test_what_is_not_a_workers_is_not_used(mailbox: Mailbox, content: bytes) -> None:
    (mailbox.folder / "7.json").write_bytes(content)
    assert mailbox.read(7) is None


def test_pipes_links_and_huge_files_are_not_read(mailbox: Mailbox) -> None:
    os.mkfifo(mailbox.folder / "1.json")
    (mailbox.folder / "2.json").symlink_to("/etc/passwd")
    (mailbox.folder / "3.json").write_bytes(b"[" + b" " * MOST_FILE_BYTES + b"]")
    assert [mailbox.read(worker) for worker in (1, 2, 3)] == [None, None, None]


def test_texts_are_fit_for_a_terminal(mailbox: Mailbox) -> None:
    mailbox.write(7, SUMS._replace(lines=(WorkerLine("?", "a\x1b[2J.py", 1, "f", "", 1),)))
    sums = mailbox.read(7)
    assert sums is not None
    assert (sums.lines[0].phase, "\x1b" in sums.lines[0].file) == ("fetch", False)


def test_files_of_an_earlier_process_of_that_number_are_gone(mailbox: Mailbox, tmp_path: Path) -> None:
    mailbox.write(7, SUMS)
    again = Mailbox(41, str(tmp_path))
    assert again.make()
    assert again.read(7) is None


def test_the_folder_is_removed_unless_it_holds_something_else(mailbox: Mailbox) -> None:
    mailbox.write(7, SUMS)
    (mailbox.folder / "7.json.part").write_text("half")
    (mailbox.folder / "notes").write_text("mine")
    mailbox.remove()
    assert os.listdir(mailbox.folder) == ["notes"]
    (mailbox.folder / "notes").unlink()
    mailbox.remove()
    assert not mailbox.folder.exists()


def test_folders_of_killed_trainings_are_removed_a_day_later(mailbox: Mailbox, tmp_path: Path) -> None:
    killed = Mailbox(42, str(tmp_path))
    assert killed.make()
    mailbox.remove_left_over()
    assert killed.folder.exists()
    then_s = killed.folder.stat().st_mtime - LEFT_OVER_S - 1
    os.utime(killed.folder, (then_s, then_s))
    mailbox.remove_left_over()
    assert (killed.folder.exists(), mailbox.folder.exists()) == (False, True)
