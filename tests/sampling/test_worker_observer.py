"""What a worker measures of itself."""

import os
import sys
import threading
import traceback
from pathlib import Path

import pytest

from tests.support.golden import assert_answers
from tests.support.recording import FakeClock
from tests.support.worker_stacks import LOOP, PLACES, TRAIN, Row, rows_of, shown, stack
from training_profiler.model.location import Location
from training_profiler.sampling import worker_observer as observer_module
from training_profiler.sampling.loader_workers import Mailbox
from training_profiler.sampling.worker_observer import (
    CopiedMemory,
    FetchTimes,
    WorkerObserver,
    WorkerStackReader,
    observe_worker,
    resident_bytes,
)


def test_batches_are_timed_on_their_own_thread() -> None:
    clock = FakeClock()
    times, seen = FetchTimes(clock), []

    def fetch(ns: int) -> None:
        clock.advance(ns / 1e9)
        seen.append((times.batches, times.so_far_ns(clock())))

    clock.advance(1.0)
    for ns in (3_000, 7_000, 2_000):
        times.timed(fetch)(ns)
    assert seen == [(0, 3_000), (1, 10_000), (2, 12_000)]  # the one under way is not yet a batch
    assert (times.batches, times.fetch_ns, times.slowest_ns) == (3, 12_000, 7_000)
    assert times.so_far_ns(clock()) == 12_000


def test_an_error_passes_without_our_frames_and_does_not_count() -> None:
    times = FetchTimes()

    def fails() -> None:
        raise StopIteration

    with pytest.raises(StopIteration) as caught:
        times.timed(fails)()
    assert [frame.name for frame in traceback.extract_tb(caught.tb)][1:] == ["fails"]
    assert times.batches == 0


def test_nothing_is_observed_where_no_training_reads_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(observer_module, "Mailbox", lambda pid: Mailbox(pid, str(tmp_path)))
    threads = threading.active_count()
    observe_worker(sys._getframe().f_code)()
    assert threading.active_count() == threads
    assert os.listdir(tmp_path) == []


def test_a_worker_without_a_temporary_folder_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pid: int) -> Mailbox:
        raise FileNotFoundError(pid)

    monkeypatch.setattr(observer_module, "Mailbox", fails)
    observe_worker(sys._getframe().f_code)()


def test_a_worker_hands_over_once_more_at_its_end(tmp_path: Path) -> None:
    mailbox = Mailbox(41, str(tmp_path))
    assert mailbox.make()
    observer = WorkerObserver(test_a_worker_hands_over_once_more_at_its_end.__code__, mailbox)
    observer.start()
    observer.times.timed(lambda: None)()
    observer.stop()
    sums = mailbox.read(os.getpid())
    assert sums is not None
    assert (sums.workers, sums.batches) == (1, 1)
    assert sums.memory[0].first > 0
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_samples_show_the_line_that_runs(tmp_path: Path) -> None:
    def fetch() -> int:
        observer.sample()
        return sys._getframe().f_lineno - 1

    this = test_samples_show_the_line_that_runs.__code__
    observer = WorkerObserver(this, Mailbox(41, str(tmp_path)))
    observer.sample()  # before the first batch
    line = observer.times.timed(fetch)()
    (seen,) = observer.sums(0).lines
    assert (seen.phase, seen.file.rpartition("/")[2], seen.line, seen.samples) == (
        "start",  # no function of torch's is on the stack
        "test_worker_observer.py",
        line,
        1,
    )


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    observer = WorkerObserver(sys._getframe().f_code, Mailbox(41, str(tmp_path / "gone")))
    observer.start()
    observer.stop()
    assert not observer._thread.is_alive()
    assert observer._guard.disabled == {}


def test_memory_is_unknown_without_linux(tmp_path: Path) -> None:
    assert resident_bytes(tmp_path / "statm") is None
    (tmp_path / "statm").write_text("100 7 3")
    assert resident_bytes(tmp_path / "statm") == 7 * os.sysconf("SC_PAGE_SIZE")


MAIN_THREAD, FEEDER = 1, 2


def seen(*rows: Row, beside: tuple[Row, ...] = ()) -> tuple[str, Location | None] | None:
    frame, loop = stack(*rows)
    frames = {MAIN_THREAD: frame}
    if beside:
        frames[FEEDER], _ = stack(*beside)
    return WorkerStackReader(loop, lambda: PLACES).read(frames, MAIN_THREAD)


ITEM: Row = ("/project/data.py", "Pictures.__getitem__", "call()")


def read(text: str) -> str:
    """Return the phase and line of a stack, with another thread after "||"."""
    rows, *beside = (rows_of(each) for each in text.split(" || "))
    found = seen(*rows, beside=tuple(beside[0]) if beside else ())
    return "" if found is None else f"{found[0]} {shown(found[1])}"


def test_a_sample_has_a_phase_and_a_line() -> None:
    """Waiting for a reader is not work, and pickling beside work does not count."""
    assert_answers("workers", read)


def test_outside_of_the_loop_nothing_is_seen() -> None:
    frame, _ = stack(TRAIN, ITEM)
    _, loop = stack(LOOP)
    assert WorkerStackReader(loop, lambda: PLACES).read({MAIN_THREAD: frame}, MAIN_THREAD) is None


@pytest.mark.parametrize(
    ("private_kib", "resident_kib", "copied_kib"),
    [
        (9_000, 50_000, 8_000),  # pages that were shared
        (9_000, 58_000, 0),  # memory of its own
        (9_000, 54_000, 4_000),
        (500, 40_000, 0),
    ],
)
def test_private_memory_that_makes_no_worker_larger_was_copied(tmp_path, private_kib, resident_kib, copied_kib):
    rollup = tmp_path / "smaps_rollup"
    copied = CopiedMemory(rollup)
    text = "00400000-7fff [rollup]\nRss: {} kB\nPrivate_Dirty: {} kB\n"
    rollup.write_text(text.format(50_000, 1_000))
    copied._look()
    rollup.write_text(text.format(resident_kib, private_kib))
    copied._first = (*copied._first[:2], -(2**40))  # enough page faults
    copied._look()
    assert copied._bytes == copied_kib * 1024


def test_pages_that_others_let_go_of_are_not_copied(tmp_path):
    rollup = tmp_path / "smaps_rollup"
    copied = CopiedMemory(rollup)
    for private_kib in (1_000, 10**9):
        rollup.write_text(f"00400000-7fff [rollup]\nRss: 50000 kB\nPrivate_Dirty: {private_kib} kB\n")
        copied._look()
    assert copied._bytes < 2**30


def test_without_linux_nothing_is_known_to_be_copied(tmp_path):
    assert CopiedMemory(tmp_path / "missing").look() == 0
