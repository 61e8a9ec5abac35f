"""Which samples of a stream several workers yield, from fingerprints."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.recording import FakeClock
from training_profiler.instrumentation.repeated_samples import (
    FIRST_BATCHES,
    TRAINED_NEEDED,
    PassPrints,
    TrainedSamples,
    sample_prints,
)
from training_profiler.model.lines import StreamRepeats
from training_profiler.model.loader_workers import MOST_PRINTS, SamplePrints, repeats_among

SAMPLES = torch.randn(400, 3, 5, generator=torch.Generator().manual_seed(1))
BATCH = 8


class Fetcher:
    """Stands for torch's object that asks the data set, one a pass."""


def of_worker(order: Iterable[int], samples: torch.Tensor = SAMPLES, cost_s: float = 0.0) -> SamplePrints:
    """Return what a worker knows that yields samples in this order, of which a batch takes 10 ms."""
    clock, cpu = FakeClock(), FakeClock()
    reads = iter(range(1 << 30))
    prints = PassPrints(clock, lambda: cpu.advance(cost_s) or cpu() if next(reads) % 2 else cpu())
    fetcher, indices = Fetcher(), list(order)
    clock.advance(1.0)
    for begin in range(0, len(indices), BATCH):
        clock.advance(0.01)
        of_batch = indices[begin : begin + BATCH]
        prints.add(fetcher, (samples[of_batch], torch.tensor(of_batch) % 10))
    prints.end()
    record = prints.record()
    assert record is not None
    return record


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(400), 400)


def drawn(seed: int, of: int = 400) -> list[int]:
    return random.Random(seed).choices(range(of), k=400)


EVERYTHING = range(400)
ALIKE = torch.zeros(400, 3, 5)
HALVES = torch.randint(2, (400, 1, 1), generator=torch.Generator().manual_seed(2)).expand(400, 3, 5) * 1.0


@pytest.mark.parametrize(
    ("workers", "times"),
    [
        ([EVERYTHING, EVERYTHING], 2.0),
        ([shuffled(1), shuffled(2), shuffled(3)], 3.0),
        ([EVERYTHING, EVERYTHING[:80]], 2.0),  # the second one is behind
        ([EVERYTHING[::2], EVERYTHING[1::2]], 1.0),
        ([EVERYTHING[::2], EVERYTHING[1::2], EVERYTHING[::2], EVERYTHING[1::2]], 2.0),
        ([EVERYTHING[:200], EVERYTHING[200:]], 1.0),
    ],
)
def test_workers_that_yield_each_sample(workers: list[Iterable[int]], times: float) -> None:
    repeats = repeats_among([of_worker(order) for order in workers])
    assert repeats is not None
    assert (repeats.workers, repeats.again, repeats.is_over) == (len(workers), 0.0, True)
    assert repeats.times == pytest.approx(times)


@pytest.mark.parametrize(
    ("orders", "samples"),
    [
        ((drawn(1), drawn(2)), SAMPLES),
        ((drawn(1, 40), drawn(2, 40)), SAMPLES),
        ((list(range(20)) * 20,) * 2, SAMPLES),  # a few samples, to see whether a model can learn them
        ((EVERYTHING[::2], EVERYTHING[1::2]), HALVES),
    ],
)
def test_samples_that_a_worker_yields_again_are_known(orders: tuple[list[int], ...], samples: torch.Tensor) -> None:
    repeats = repeats_among([of_worker(order, samples) for order in orders])
    assert repeats is not None
    assert repeats.again > 0.2


def test_too_few_samples_say_nothing() -> None:
    whole, constant = of_worker(EVERYTHING), of_worker(EVERYTHING, ALIKE)
    assert repeats_among([]) is repeats_among([whole]) is None
    assert repeats_among([constant, constant]) is None
    few = of_worker(range(15))
    assert repeats_among([few, few]) is None


def test_a_worker_without_samples_is_one_of_them() -> None:
    whole, empty = of_worker(EVERYTHING), of_worker([])
    assert repeats_among([whole, empty, whole]) == StreamRepeats(3, MOST_PRINTS, 2.0, 0.0, True, 400)


def test_another_pass_and_costly_samples_are_not_looked_at() -> None:
    prints, first, second = PassPrints(), Fetcher(), Fetcher()
    prints.add(first, SAMPLES[:8])
    prints.end()
    prints.add(second, SAMPLES[8:16])
    record = prints.record()
    assert record is not None
    assert (record.samples, record.is_over) == (8, False)
    costly, cheap = of_worker(EVERYTHING, cost_s=0.001), of_worker(EVERYTHING, cost_s=0.00001)
    assert (costly.samples, cheap.samples) == (FIRST_BATCHES * BATCH, 400)


@dataclass
class Own:
    """A batch of a class of the program's."""

    x: torch.Tensor


IDS = torch.arange(24).reshape(4, 6)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ({"ids": IDS, "mask": torch.ones(4, 6, dtype=torch.bool)}, 4),
        ([IDS.to(torch.bfloat16), torch.arange(4)], 4),
        ((IDS.numpy(), np.arange(4)), 4),
        ((IDS, torch.tensor(1)), 1),  # a sample and its label
        ((IDS, torch.arange(3)), 1),
        (["a", "b"], 1),
        ((IDS, ["a", "b", "c", "d"]), 4),
        ((IDS.t()[:, :3], ["a", "b"]), 6),
        (IDS.to("meta"), 0),
        ((IDS, torch.ones(4, requires_grad=True)), 0),
        (Own(IDS), 0),
        (7, 0),
    ],
)
def test_batches_of_many_kinds(batch: object, samples: int) -> None:
    prints = sample_prints(batch)
    assert len(prints) == samples == len(set(prints))
    assert all(0 <= each < 2**53 for each in prints)


@pytest.mark.parametrize(
    "change", [lambda x: x.add_(1), lambda x: x[:, :1].add_(1), lambda x: x[:, -1:].neg_(), lambda x: x.flip(1)]
)
def test_a_change_of_a_sample_shows_and_nothing_is_changed(change: Callable[[torch.Tensor], object]) -> None:
    samples = torch.randn(4, 60, generator=torch.Generator().manual_seed(1))
    before, changed = samples.clone(), samples.clone()
    other = change(changed)
    prints = sample_prints(samples)
    assert not set(prints) & set(sample_prints(other))
    assert torch.equal(samples, before)
    assert samples.resize_(4, 61).shape == (4, 61)  # its memory is not shared


def replica(
    ranks: int = 2, kind: str = "DistributedDataParallel", module: str = "torch.nn.parallel", **more: Any
) -> Any:
    """Return a module as if it were of torch's, with a process group of so many ranks."""
    group = SimpleNamespace(size=lambda: ranks)
    return type(kind, (), {"__module__": module, "process_group": group, **more})()


def mesh(*sizes: int) -> Any:
    parameters = [SimpleNamespace(device_mesh=SimpleNamespace(ndim=len(sizes), size=lambda: 2))]
    module = replica(kind="FSDPModule", module="torch.distributed.fsdp")
    module.parameters = lambda: iter(parameters)
    return module


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)


def trained(
    module: Any, batches: int = TRAINED_NEEDED, given: Callable[[Any], Any] = lambda batch: batch, has_grad: bool = True
) -> SamplePrints | None:
    """Return the fingerprints of a training that fetches batches and gives them to its model."""
    samples, fetcher = TrainedSamples(), Fetcher()
    for begin in range(0, batches * BATCH, BATCH):
        batch = SAMPLES[begin : begin + BATCH]
        samples.fetched(fetcher, [batch, torch.arange(BATCH) + begin])
        samples.call_begins(module, (given(batch), "name"), has_grad)
    return samples.record()


REPLICAS = {
    "DDP": replica(),
    "FSDP": replica(kind="FullyShardedDataParallel"),
    "FSDP2": mesh(2),
}


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("module", REPLICAS.values(), ids=REPLICAS)
def test_what_replicas_train_on_is_known(module: Any) -> None:
    record = trained(module)
    assert record is not None
    assert (record.samples, record.again) == (TRAINED_NEEDED * BATCH, 0)
    assert record == trained(module, given=lambda batch: batch.clone())
    on_device = trained(module, given=lambda batch: batch.to("meta"))  # of the fetched batch then, with its labels
    assert on_device is not None
    assert on_device.samples == record.samples
    assert on_device.places != record.places


@pytest.mark.usefixtures("two_ranks")
def test_modules_that_are_not_on_all_ranks_and_evaluations_do_not_count() -> None:
    assert trained(replica(ranks=1)) is None  # one for each stage of a pipeline, or part of a tensor
    assert trained(mesh(1, 2)) is None
    assert trained(replica(kind="Linear")) is None
    assert trained(replica(module="own")) is None
    assert trained(replica(), batches=TRAINED_NEEDED - 1) is None
    assert trained(replica(), has_grad=False) is None
    assert trained(replica(), given=lambda batch: batch[:, :1]) is None  # each rank has a part of the batch


@pytest.mark.usefixtures("two_ranks")
def test_one_batch_that_is_given_in_each_step_comes_again() -> None:
    record = trained(replica(), given=lambda batch: SAMPLES[:BATCH])
    assert record is not None
    assert record.again == len(record.places) == BATCH


@pytest.mark.usefixtures("two_ranks")
def test_the_first_pass_with_enough_batches_counts() -> None:
    samples, module, passes = TrainedSamples(), replica(), [Fetcher() for _ in range(3)]
    for fetcher, first, batches in zip(passes, (0, 40, 200), (3, TRAINED_NEEDED, TRAINED_NEEDED), strict=True):
        for begin in range(first, first + batches * BATCH, BATCH):
            samples.fetched(fetcher, SAMPLES[begin : begin + BATCH])
            samples.call_begins(module, (SAMPLES[begin : begin + BATCH],), True)
    record, second = samples.record(), sample_prints(SAMPLES[40 : 40 + TRAINED_NEEDED * BATCH])
    assert record is not None
    assert {each for each, _ in record.places} == set(second)


def test_one_rank_has_nothing_to_compare() -> None:
    assert trained(replica()) is None
