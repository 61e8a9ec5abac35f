"""Page faults of a thread, from files as Linux writes them, and the cost of a page."""

import resource
import sys
import time
from pathlib import Path

import pytest

from training_profiler.sampling.machine_sampler import PAGES, page_cost_s
from training_profiler.sampling.run_queue import Faults, PageFaults

TRAINING = 10


def write(root: Path, thread: int, minor: int, major: int, ticks: int, name: str = "python") -> None:
    folder = root / "proc/self/task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"{thread} ({name}) R 1 1 1 0 -1 4194304 {minor} 77 {major} 88 500 {ticks} 0 0 20 0\n")


@pytest.fixture
def faults(tmp_path: Path) -> PageFaults:
    reader = PageFaults(tmp_path, ticks_per_s=100)
    reader.use_thread(TRAINING)
    return reader


def test_a_name_may_contain_anything(tmp_path: Path, faults: PageFaults) -> None:
    write(tmp_path, TRAINING, 1, 0, 0, name="a) R 9 9 (b")
    faults.read()
    write(tmp_path, TRAINING, 8, 0, 0, name="a) R 9 9 (b")
    assert faults.read() == Faults(7, 0, 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="files of Linux")
def test_the_kernel_writes_what_the_thread_itself_reads() -> None:
    own = PageFaults()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    own.read()
    touched = bytearray(512 * 4096)
    read, after = own.read(), resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    assert read is not None
    assert touched
    assert read.minor <= after - before <= read.minor + 50


def test_the_cost_of_a_page_leaves_out_what_writing_takes() -> None:
    times_ns = iter([0, 900, 1000, 1060] + [0, 320, 420, 430] + [0, 5000, 5100, 5200] * 6)
    assert page_cost_s(lambda: next(times_ns)) == pytest.approx((320 - 100 + 10) / PAGES * 1e-9)
    begin_s, cost_s = time.thread_time(), page_cost_s()  # here
    assert 0 < cost_s * PAGES <= time.thread_time() - begin_s
