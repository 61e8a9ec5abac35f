"""What workers hand over, summed up by loader in the process that trains."""

from pathlib import Path

import pytest

from training_profiler.loader_workers.collector import MOST_FILES, WorkerCollector, has_later_batches
from training_profiler.loader_workers.mailbox import Mailbox
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.worker_sums import MOST_LINES, WorkerLine, WorkerSums, added
from training_profiler.safety.fault_guard import FaultGuard


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


def test_workers_are_summed_up_by_loader(collector: WorkerCollector, mailbox: Mailbox) -> None:
    train, val = LoaderCounts("0"), LoaderCounts("1")
    collector.add(train, [1, 2])
    collector.add(val, [3])
    for worker, batches in ((1, 10), (2, 12), (3, 5), (4, 99)):  # the last one is unknown
        mailbox.write(worker, sums(batches))
    collector.read()
    assert train.workers is not None
    assert (train.workers.workers, train.workers.batches) == (2, 22)
    assert val.workers == sums(5)


def test_a_killed_worker_keeps_what_it_had_handed_over(collector: WorkerCollector, mailbox: Mailbox) -> None:
    counts = LoaderCounts("0")
    collector.add(counts, [1])
    mailbox.write(1, sums(10))
    collector.read()
    (mailbox.folder / "1.json").write_bytes(b"[1,")  # killed in the middle of a writing
    collector.read()
    assert counts.workers == sums(10)


def test_workers_of_many_passes_take_bounded_room_and_all_count(collector: WorkerCollector, mailbox: Mailbox) -> None:
    counts = LoaderCounts("0")
    for worker in range(3 * MOST_FILES):
        collector.add(counts, [worker])
        mailbox.write(worker, sums(1))
        collector.read()
    assert counts.workers is not None
    assert (counts.workers.workers, counts.workers.batches) == (3 * MOST_FILES, 3 * MOST_FILES)


def test_the_last_reading_is_at_the_end_and_the_folder_is_gone(collector: WorkerCollector, mailbox: Mailbox) -> None:
    counts = LoaderCounts("0")
    collector.add(counts, [1])
    mailbox.write(1, sums(10))
    collector.close()
    assert counts.workers == sums(10)
    assert not mailbox.folder.exists()


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


def test_without_a_folder_for_temporary_files_nothing_is_observed(caplog: pytest.LogCaptureFixture) -> None:
    def mailbox() -> Mailbox:
        raise FileNotFoundError("no usable temporary directory")

    guard = FaultGuard()
    collector = WorkerCollector(guard.run, mailbox=mailbox)
    collector.start(is_on=True)
    collector.expect()
    collector.add(LoaderCounts("0"), [1])
    collector.close()
    assert list(guard.disabled) == ["loader workers"]


def test_without_workers_there_is_no_folder_and_no_thread(mailbox: Mailbox) -> None:
    collector = WorkerCollector(FaultGuard().run, mailbox=lambda: mailbox)
    collector.start(is_on=False)  # sample_hz is 0
    collector.expect()
    collector.add(LoaderCounts("0"), [1])
    collector.close()
    assert not mailbox.folder.exists()
    assert collector.notes() == []


def test_a_folder_of_another_user_is_reported_and_left_alone(mailbox: Mailbox) -> None:
    mailbox.folder.mkdir(mode=0o777)
    mailbox.folder.chmod(0o777)
    collector = WorkerCollector(FaultGuard().run, mailbox=lambda: mailbox)
    collector.start(is_on=True)
    collector.expect()
    collector.close()
    assert mailbox.folder.exists()
    assert "not observed" in collector.notes()[0]


def test_a_forked_child_leaves_the_folder_to_its_parent(collector: WorkerCollector, mailbox: Mailbox) -> None:
    child = WorkerCollector(FaultGuard().run, mailbox=lambda: mailbox)
    child.start(is_on=True)
    child.expect()
    thread = child._thread
    child.after_fork_in_child()
    child.close()
    assert mailbox.folder.exists()
    assert thread is not None
    thread.stop()
    thread.join(10)


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
