"""Real workers of a DataLoader, forked from this process with the patch of the loop."""

import gc
import hashlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.support.recording import implementation_of
from training_profiler.aggregation.loaders import worker_stats
from training_profiler.diagnosis.worker_plan import shared_lock, waiting_share
from training_profiler.instrumentation.context import PatchContext, WorkerHooks
from training_profiler.instrumentation.patches import dataloader
from training_profiler.instrumentation.patching import Patches
from training_profiler.model.loader_workers import WorkerSums
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.recorder import Recorder
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling import worker_observer as observer
from training_profiler.sampling.line_sampler import LineSampler
from training_profiler.sampling.loader_workers import Mailbox, WorkerCollector, has_later_batches

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
    pytest.mark.xdist_group("real_workers"),
    pytest.mark.flaky(reruns=1),  # real processes and samplers, on machines that may be busy
]
THIS = Path(__file__).name
POINTS = 0.03  # of a share of many samples, and three standard deviations of that of few
PART_S = 0.004  # so long that handing a batch over, which takes up to 1 ms of CPU, does not count


# Wall time of the planted parts in the worker: on a busy machine it is not divided as their CPU time.
spent_s: Counter[str] = Counter()
BLOCK = b"x" * 200_000
OF_CPU = {"read": 0.6, "transform": 0.3, "collate": 0.1}


class Planted(Dataset):
    """60 parts of reading and 30 of a transform for each sample; ``planted_collate`` has 10."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(self.read(index))

    def read(self, index: int) -> torch.Tensor:
        begin_s, end_s = time.perf_counter(), time.thread_time() + 6 * PART_S
        while time.thread_time() < end_s:  # the line of this function
            pass
        spent_s["read"] += time.perf_counter() - begin_s
        return torch.tensor([index])

    def transform(self, sample: torch.Tensor) -> torch.Tensor:
        begin_s, end_s = time.perf_counter(), time.thread_time() + 3 * PART_S
        while time.thread_time() < end_s:
            pass
        spent_s["transform"] += time.perf_counter() - begin_s
        return sample


def planted_collate(samples: list[torch.Tensor]) -> dict[str, float]:
    begin_s, end_s = time.perf_counter(), time.thread_time() + PART_S * len(samples)
    while time.thread_time() < end_s:
        pass
    spent_s["collate"] += time.perf_counter() - begin_s
    return dict(spent_s)


class Locked(Dataset):
    """Samples that are read while a lock of all workers is held, and nothing else."""

    def __init__(self, samples: int) -> None:
        self.samples, self.lock = samples, multiprocessing.get_context("fork").Lock()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.lock:
            time.sleep(0.05)
        return torch.tensor([index])


class Observed:
    """The patch in this process, and a mailbox for its workers."""

    def __init__(self, folder: Path) -> None:
        self.mailbox = Mailbox(os.getpid(), str(folder))
        self.collector = WorkerCollector(FaultGuard().run, mailbox=lambda: self.mailbox)
        self.collector.start(is_on=True)
        self.errors: list[Exception] = []
        self.patches = Patches()
        hooks = WorkerHooks(observe=lambda loop: observer.observe_worker(loop))
        context = PatchContext(Recorder(), lambda: None, self.errors.append, hooks)
        dataloader.install_in_workers(self.patches, context, torch)

    def begin(self, loader: DataLoader) -> tuple[LoaderCounts, Any]:
        self.collector.expect()
        counts, batches = LoaderCounts("0"), iter(loader)
        self.collector.add(counts, [worker.pid for worker in batches._workers])
        return counts, batches

    def run(self, loader: DataLoader, use: Callable[[Any], None] = lambda batch: None) -> WorkerSums:
        """Take all batches of a loader; return what its workers did."""
        counts, batches = self.begin(loader)
        for batch in batches:
            use(batch)
        del batches
        self.collector.read()
        assert counts.workers is not None
        return counts.workers

    def close(self) -> None:
        self.patches.undo()
        self.collector.close()


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    monkeypatch.setattr(observer, "Mailbox", lambda pid: Mailbox(pid, str(tmp_path)))
    gc.freeze()  # what is there by now takes a second to collect
    observed = Observed(tmp_path)
    yield observed
    observed.close()
    gc.collect()  # an iterator that failed is in a traceback
    gc.unfreeze()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(60)
    assert observed.errors == []


def shares(sums: WorkerSums, function: str) -> float:
    work = sum(line.samples for line in sums.lines)
    return sum(line.samples for line in sums.lines if line.function == function) / work


def sample_often(monkeypatch: pytest.MonkeyPatch, every_s: float = 0.0012) -> None:
    monkeypatch.setattr(observer, "EVERY_S", every_s)
    monkeypatch.setattr(observer, "MOST_COST", 1.0)


def assert_near(share: float, part: str, wall_s: dict[str, float], samples: int) -> None:
    """Require a share of samples near the part's share of wall time, or between that and its share of CPU time.

    The sampler is a thread of the same process: while the machine gives this process no CPU, it takes no samples.
    """
    of_wall = wall_s[part] / sum(wall_s.values())
    least, most = sorted((of_wall, OF_CPU[part]))
    assert least - near(samples) <= share <= most + near(samples), (share, of_wall)


def near(samples: int) -> float:
    return max(POINTS, 1.5 / samples**0.5)


def test_planted_shares_are_found_within_three_points(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_often(monkeypatch)
    spent: dict[str, float] = {}
    loader = DataLoader(Planted(40), batch_size=1, num_workers=1, collate_fn=planted_collate)
    sums = observed.run(loader, spent.update)
    assert sums.batches == 40
    work = sum(line.samples for line in sums.lines)
    assert work > 500
    for function, phase in (
        ("Planted.read", "fetch"),
        ("Planted.transform", "transform"),
        ("planted_collate", "collate"),
    ):
        part = function.rpartition(".")[2].removeprefix("planted_")
        assert_near(shares(sums, function), part, spent, work)
        assert_near(sum(line.samples for line in sums.lines if line.phase == phase) / work, part, spent, work)
    # The rest of a worker's CPU time is torch's and Python's.
    assert 10 * PART_S < sums.cpu_ns / sums.batches / 1e9 < 13 * PART_S


def test_a_loader_without_workers_is_divided_within_three_points() -> None:
    spent_s.clear()
    sampler = LineSampler(time.perf_counter_ns, FaultGuard().run)
    sampler.start(1000, time.perf_counter_ns())
    for _ in DataLoader(Planted(25), batch_size=1, collate_fn=planted_collate):
        pass
    sampler.close()
    made = Counter(location.making for _, location in sampler.pop_samples() if location and location.making)
    assert made.total() > 200
    for part, phase in (("read", "fetch"), ("transform", "transform"), ("collate", "collate")):
        assert_near(made[phase] / made.total(), part, spent_s, made.total())


class Rows(Dataset):
    """Reads by much Python and one small operator a sample, which gives up the GIL for a moment."""

    def __len__(self) -> int:
        return 12_000

    def __getitem__(self, index: int) -> torch.Tensor:
        begin_s = time.perf_counter()
        row = torch.tensor([float(sum(range(1500)))] * 40)
        spent_s["read"] += time.perf_counter() - begin_s
        return row


def collate_rows(samples: list[torch.Tensor]) -> torch.Tensor:
    begin_s = time.perf_counter()
    batch = torch.stack(samples)
    hashlib.sha256(BLOCK)  # gives up the GIL for longer than a thread needs to wake up
    spent_s["collate"] += time.perf_counter() - begin_s
    return batch


def test_small_operators_do_not_hide_the_code_around_them() -> None:
    spent_s.clear()
    new_stop = implementation_of("C").new_stop
    sampler = LineSampler(time.perf_counter_ns, FaultGuard().run, new_stop=new_stop)
    sampler.start(400, time.perf_counter_ns())
    for _ in DataLoader(Rows(), batch_size=64, collate_fn=collate_rows):
        pass
    sampler.close()
    made = Counter(location.making for _, location in sampler.pop_samples() if location and location.making)
    assert made.total() > 50
    assert made["collate"] / made.total() == pytest.approx(
        spent_s["collate"] / spent_s.total(), abs=0.05 + near(made.total())
    )
    assert sampler.handed_over_ns > 0


class Numbers(IterableDataset):
    def __init__(self, end: int) -> None:
        self.end = end

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        yield from range(info.id, self.end, info.num_workers)


class Everything(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield from range(60)


@pytest.mark.parametrize(("data", "times"), [(Everything(), 2.0), (Numbers(60), 1.0)])
def test_workers_that_all_yield_the_whole_stream_are_found(data: Any, times: float, observed: Observed) -> None:
    sums = observed.run(DataLoader(data, batch_size=4, num_workers=2))
    assert (sums.workers, sums.batches) == (2, 15 * times + (times == 1))  # the end of a stream is not a batch
    repeats = sums.repeats
    assert repeats is not None
    assert (repeats.workers, repeats.samples, repeats.times) == (2, 60, times)
    assert (repeats.again, repeats.is_over) == (0.0, True)


def test_batches_of_a_list_and_a_given_context_are_counted(observed: Observed) -> None:
    loader = DataLoader(range(8), batch_size=2, num_workers=1, multiprocessing_context="fork")  # type: ignore[arg-type]
    assert observed.run(loader).batches == 4


def error_of(batches: Any) -> Exception:
    """Return the error that ends an iterator, without its traceback, which would keep the iterator alive."""
    try:
        list(batches)
    except Exception as error:
        return error.with_traceback(None)
    finally:
        batches._shutdown_workers()
    raise AssertionError("it came to its end")


class Kills(Dataset):
    """Kills its worker in the middle of a batch, once it has written its figures."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index == 60:
            wait_until(lambda: (written := self.mailbox.read(os.getpid())) is not None and written.batches == 60)
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def wait_until(is_true: Callable[[], bool], limit_s: float = 30.0) -> None:
    end_s = time.monotonic() + limit_s
    while not is_true() and time.monotonic() < end_s:
        time.sleep(0.01)


def test_a_killed_worker_fails_as_without_us_and_keeps_what_it_had_written(observed: Observed) -> None:
    counts, batches = observed.begin(DataLoader(Kills(observed.mailbox), batch_size=1, num_workers=1))
    assert re.search(r"exited unexpectedly|killed by signal", str(error_of(batches)))
    observed.collector.read()
    assert counts.workers is not None
    assert counts.workers.batches == 60


class Fails(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise KeyError(index)


def test_an_error_in_a_worker_reads_as_without_us(observed: Observed) -> None:
    observed.collector.expect()
    with_us = error_of(iter(DataLoader(Fails(), num_workers=1)))
    observed.patches.undo()
    without_us = error_of(iter(DataLoader(Fails(), num_workers=1)))
    assert type(with_us) is KeyError
    assert str(with_us) == str(without_us)


class Forks(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        child = os.fork()
        if not child:
            end_s = time.thread_time() + 0.05
            while time.thread_time() < end_s:
                pass
            os._exit(0)
        os.waitpid(child, 0)
        return index


def test_a_worker_that_forks_counts_the_cpu_time_of_its_children(observed: Observed) -> None:
    sums = observed.run(DataLoader(Forks(), batch_size=1, num_workers=1))
    assert (sums.workers, sums.batches) == (1, 4)
    assert sums.cpu_ns >= 4 * 0.04 * 1e9


def test_torch_keeps_the_account_of_batches_that_wait_for_another(observed: Observed) -> None:
    batches = iter(DataLoader(Numbers(10), batch_size=2, num_workers=2))
    assert has_later_batches(batches) is False
    assert len(list(batches)) == 6


class Library(Dataset):
    """A data set of a library, as the file of its code says."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        return library_read(index)


def library_read(index: int) -> int:
    end_s = time.thread_time() + 0.01
    while time.thread_time() < end_s:
        pass
    return index


def test_a_data_set_of_a_library_is_named_by_the_librarys_line(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_often(monkeypatch)
    site = next(path for path in sys.path if path.endswith("site-packages"))
    for function, name in ((Library.__getitem__, "dataset"), (library_read, "reader")):
        renamed = function.__code__.replace(co_filename=f"{site}/arrow/{name}.py")
        monkeypatch.setattr(function, "__code__", renamed)
    sums = observed.run(DataLoader(Library(), batch_size=2, num_workers=1))
    hottest = sums.lines[0]
    assert (hottest.phase, hottest.file, hottest.function) == ("fetch", "arrow/dataset.py", "Library.__getitem__")
    assert hottest.inside.startswith("arrow/reader.py:")


def test_two_workers_that_take_turns_at_a_lock_wait_there_half_of_their_time(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_often(monkeypatch, 0.01)
    # 40 samples of 50 ms, one after the other: 2 s, with hundreds of samples a worker.
    sums = observed.run(DataLoader(Locked(40), batch_size=2, num_workers=2, multiprocessing_context="fork"))
    of = Counter[str]()
    for line in sums.lines:
        of[line.phase] += line.samples
    stats = worker_stats(sums)
    assert stats is not None
    assert 0.35 < of["shared lock"] / sum(of.values()) < 0.6, of
    lock = shared_lock(stats, 2)
    assert lock is not None
    assert f"/{THIS}:" in f"/{lock.place}"
    assert lock.place.endswith("Locked.__getitem__")
    assert stats.batch_avg_s
    assert waiting_share(stats) + stats.cpu_wait_avg_s / stats.batch_avg_s > 0.5  # on a busy machine also for a CPU
