"""What workers hand over, summed up by loader in the process that trains."""

import os
import queue
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data._utils.pin_memory import _pin_memory_loop

from training_profiler.model.loader_workers import MOST_LINES, WorkerLine, WorkerSums, added
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling import loader_workers
from training_profiler.sampling.loader_workers import (
    LEFT_OVER_S,
    MOST_FILE_BYTES,
    Mailbox,
    WorkerCollector,
    has_later_batches,
    is_pinned,
)


def sums(batches: int, *lines: WorkerLine) -> WorkerSums:
    return WorkerSums(workers=1, batches=batches, wall_ns=10, fetch_ns=batches, lines=lines)


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    return Mailbox(41, str(tmp_path))


@pytest.fixture
def collector(mailbox: Mailbox):
    collector = WorkerCollector(FaultGuard().run, mailbox=lambda: mailbox)
    collector.start(is_on=True)
    collector.expect()
    yield collector
    collector.close()


def test_what_a_killed_worker_had_handed_over_stays_until_the_last_reading(
    collector: WorkerCollector, mailbox: Mailbox
) -> None:
    counts = LoaderCounts("0")
    collector.add(counts, [1])
    mailbox.write(1, sums(10))
    collector.read()
    (mailbox.folder / "1.json").write_bytes(b"[1,")  # killed in the middle of a writing
    collector.read()
    assert counts.workers == sums(10)
    mailbox.write(1, sums(12))
    collector.close()
    assert counts.workers == sums(12)
    assert not mailbox.folder.exists()


def test_workers_of_many_passes_take_bounded_room_and_all_count(
    collector: WorkerCollector, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_workers, "MOST_FILES", 8)
    counts = LoaderCounts("0")
    for worker in range(24):
        collector.add(counts, [worker])
        mailbox.write(worker, sums(1))
        collector.read()
    assert counts.workers is not None
    assert (counts.workers.workers, counts.workers.batches) == (24, 24)
    assert len(collector._loaders[counts.loader_id]._latest) == 8


def test_the_cost_in_the_workers_is_reported_after_the_end_too(collector: WorkerCollector, mailbox: Mailbox) -> None:
    assert collector.notes() == []
    collector.add(LoaderCounts("0"), [1])
    work = WorkerSums(workers=1, batches=9, wall_ns=4_000_000_000, sampling_ns=5_000_000, idle_samples=20)
    mailbox.write(1, work)
    collector.read()
    note = "loader workers: 20 samples, 5.00 ms of CPU (0.12% of their time)"
    assert collector.notes() == [note]
    collector.close()
    assert collector.notes() == [note]


def test_a_folder_of_another_user_is_reported_and_left_alone(mailbox: Mailbox) -> None:
    mailbox.folder.mkdir(mode=0o777)
    mailbox.folder.chmod(0o777)
    collector = WorkerCollector(FaultGuard().run, mailbox=lambda: mailbox)
    collector.start(is_on=True)
    collector.expect()
    collector.close()
    assert mailbox.folder.exists()
    assert "not observed" in collector.notes()[0]


class FrozenMailbox(Mailbox):
    """The disk of the folder does not respond from one call on, until it is thawed."""

    def __init__(self, pid: int, parent: str, frozen: str) -> None:
        super().__init__(pid, parent)
        self.frozen, self.thawed = frozen, threading.Event()
        self.waited_on: set[str] = set()

    def respond(self, call: str) -> None:
        if call == self.frozen:
            self.waited_on.add(threading.current_thread().name)
            self.thawed.wait()

    def make(self) -> bool:
        self.respond("make")
        return super().make()

    def remove(self) -> None:
        self.respond("remove")
        super().remove()


@pytest.mark.parametrize(
    ("frozen", "notes"),
    [
        ("make", ["loader workers: not observed, the folder for temporary files does not respond"]),
        ("remove", []),
    ],
)
def test_a_frozen_folder_holds_neither_the_training_nor_its_end(tmp_path: Path, frozen: str, notes: list[str]) -> None:
    mailbox = FrozenMailbox(41, str(tmp_path), frozen)
    collector = WorkerCollector(FaultGuard().run, mailbox=lambda: mailbox)
    collector.start(is_on=True)
    collector.expect()
    collector.expect()  # the next pass waits no second time
    collector.add(LoaderCounts("0"), [1])
    thread = collector._thread
    collector.close()
    assert mailbox.waited_on == {"training_profiler workers"}
    assert collector.notes() == notes
    mailbox.thawed.set()
    assert thread is not None
    assert thread.join(60)
    assert not mailbox.folder.exists()


class Iterator:
    """The account of torch's iterator: tasks 5 to 8 are with the workers or back."""

    def __init__(self, *back: int, in_order: bool = True) -> None:
        self._in_order = in_order
        self._rcvd_idx, self._send_idx = 5, 9
        self._task_info = {task: (0, "batch") if task in back else (0,) for task in range(5, 9)}
        self._tasks_outstanding = 4 - len(back)


@pytest.mark.parametrize(
    ("iterator", "is_held"),
    [
        (Iterator(), False),
        (Iterator(6), True),
        (Iterator(6, 8), True),
        (Iterator(5, 6), None),
        (Iterator(6, in_order=False), None),
        (None, None),
    ],
)
def test_later_batches_wait_behind_the_one_that_is_missing(iterator: Iterator | None, is_held: bool | None) -> None:
    assert has_later_batches(iterator) is is_held


class Batch:
    """A batch whose copy to pinned memory takes until it is allowed to end."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def pin_memory(self) -> "Batch":
        self.began.set()
        self.may_end.wait(60)
        return self


def test_the_pin_memory_thread_is_seen_at_work_and_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.set_device_index", lambda index: None)
    monkeypatch.setattr("torch.utils.data._utils.pin_memory.MP_STATUS_CHECK_INTERVAL", 0.05)  # s
    batch, made, pinned, done = Batch(), queue.Queue(), queue.Queue(), threading.Event()
    thread = threading.Thread(target=_pin_memory_loop, args=(made, pinned, 0, done, "cuda"))
    iterator = SimpleNamespace(_pin_memory_thread=thread)
    assert is_pinned(iterator) is None  # not started yet
    thread.start()
    made.put((5, batch))
    assert batch.began.wait(60)
    assert is_pinned(iterator) is True
    batch.may_end.set()
    assert pinned.get(timeout=60) == (5, batch)
    assert is_pinned(iterator) is False
    done.set()
    thread.join(60)


def test_unpacking_a_batch_is_work_of_the_pin_memory_thread() -> None:
    began, may_end = threading.Event(), threading.Event()
    names = {"wait": lambda: (began.set(), may_end.wait(60))}
    exec(compile("def rebuild_storage():\n    wait()\n", "/lib/torch/multiprocessing/reductions.py", "exec"), names)
    thread = threading.Thread(target=names["rebuild_storage"])
    thread.start()
    assert began.wait(60)
    assert is_pinned(SimpleNamespace(_pin_memory_thread=thread)) is True
    may_end.set()
    thread.join(60)
    assert is_pinned(Iterator()) is is_pinned(None) is None  # without such a thread nothing is known


def test_waiting_is_sampled_for_the_loader_that_is_waited_for(mailbox: Mailbox) -> None:
    counts, other = LoaderCounts("0"), LoaderCounts("1")
    awaited = iter([None, (counts, Iterator(6)), (counts, Iterator()), (other, Iterator()), (counts, Iterator(5))])
    collector = WorkerCollector(FaultGuard().run, lambda: next(awaited), mailbox=lambda: mailbox)
    collector.start(is_on=True)
    assert mailbox.make()
    collector.expect()
    collector.add(counts, [1])
    mailbox.write(1, sums(10))
    for _ in range(5):
        collector.sample()
    collector.close()
    assert counts.workers is not None
    assert (counts.workers.waits, counts.workers.held) == (2, 1)


def test_lines_beyond_the_limit_count_for_their_phase() -> None:
    many = [WorkerLine("fetch", "data.py", line, "f", "", 1) for line in range(1, MOST_LINES + 11)]
    both = added([sums(1, *many), sums(1, WorkerLine("fetch", "data.py", 5, "f", "", 7))])
    assert len(both.lines) == MOST_LINES + 1
    assert both.lines[0] == WorkerLine("fetch", "", 0, "", "", 10)
    assert both.lines[1] == WorkerLine("fetch", "data.py", 5, "f", "", 8)
    assert both.samples == MOST_LINES + 17


@pytest.fixture
def box(mailbox: Mailbox) -> Mailbox:
    assert mailbox.make()
    return mailbox


def test_only_its_owner_can_use_the_folder(box: Mailbox) -> None:
    assert box.folder.stat().st_mode & 0o777 == 0o700
    box.folder.chmod(0o770)
    assert not box.is_safe()


def test_a_link_in_place_of_the_folder_is_refused(mailbox: Mailbox, tmp_path: Path) -> None:
    target = tmp_path / "of_others"
    target.mkdir(mode=0o700)
    (target / "7.json").write_text("mine")
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
def test_what_is_not_a_workers_is_not_used(box: Mailbox, content: bytes) -> None:
    (box.folder / "7.json").write_bytes(content)
    assert box.read(7) is None


def test_pipes_links_and_huge_files_are_not_read(box: Mailbox) -> None:
    os.mkfifo(box.folder / "1.json")
    (box.folder / "2.json").symlink_to("/etc/passwd")
    (box.folder / "3.json").write_bytes(b"[" + b" " * MOST_FILE_BYTES + b"]")
    assert [box.read(worker) for worker in (1, 2, 3)] == [None, None, None]


def test_texts_are_fit_for_a_terminal(box: Mailbox) -> None:
    box.write(7, sums(7, WorkerLine("?", "a\x1b[2J.py", 1, "f", "", 1)))
    read = box.read(7)
    assert read is not None
    assert (read.lines[0].phase, "\x1b" in read.lines[0].file) == ("fetch", False)


def test_files_of_an_earlier_process_of_that_number_are_gone(box: Mailbox, tmp_path: Path) -> None:
    box.write(7, sums(7))
    again = Mailbox(41, str(tmp_path))
    assert again.make()
    assert again.read(7) is None


def test_folders_of_killed_trainings_are_removed_a_day_later(box: Mailbox, tmp_path: Path) -> None:
    killed = Mailbox(42, str(tmp_path))
    assert killed.make()
    box.remove_left_over()
    assert killed.folder.exists()
    then_s = killed.folder.stat().st_mtime - LEFT_OVER_S - 1
    os.utime(killed.folder, (then_s, then_s))
    box.remove_left_over()
    assert (killed.folder.exists(), box.folder.exists()) == (False, True)
