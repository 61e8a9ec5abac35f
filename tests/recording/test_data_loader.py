from contextlib import nullcontext

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

from tests.support.recording import FakeRun
from training_profiler.model.loader_workers import NONE_MADE, TRAIN, VAL, MadeBatches
from training_profiler.recording import data_loader
from training_profiler.recording.data_loader import (
    LoaderCounts,
    LoaderRegistry,
    batch_size,
    behind_subsets,
    loader_arguments,
)


class Tensor:
    def __init__(self, *shape):
        self.shape = shape


class Shy:
    @property
    def shape(self):
        raise RuntimeError("not yet")


class SlowLoader:
    """Yields batches of the given sizes, each after 2 s."""

    def __init__(self, run, sizes):
        self.run = run
        self.sizes = sizes
        self.sampler = "the sampler"

    def __iter__(self):
        for size in self.sizes:
            self.run.clock.advance(2)
            yield "text" if size is None else Tensor(size)
        self.run.clock.advance(1)  # finding the end takes time

    def __len__(self):
        return len(self.sizes)


@pytest.fixture
def run():
    return FakeRun()


def profiled(run, loader, is_training=True):
    counts = LoaderCounts("0")
    return data_loader.profiled(loader, timer(run, counts, is_training)), counts


def timer(run, counts, is_training=True):
    return data_loader.FetchTimer(counts, run.recorder, lambda: is_training)


class SlowToBegin(SlowLoader):
    def __iter__(self):
        self.run.clock.advance(5)
        return super().__iter__()


class Broken(SlowLoader):
    """Fails after a batch."""

    def __iter__(self):
        yield from super().__iter__()
        raise ValueError("bad file")


# Batches, whether they train, and then the batches, samples and ns of the loader; batches, samples of the training; the
# spans of ``data_loading`` and their s, the s outside; each batch is used for 10 s.
LOADERS = {
    "each fetch but the empty one": (SlowLoader, [4, 3], True, (2, 7, 4e9), (2, 7), (2, 4.0, 21.0)),
    "a batch of unknown size": (SlowLoader, [4, None, 4], True, (3, None, 6e9), (3, None), (3, 6.0, 31.0)),
    "validation": (SlowLoader, [4], False, (1, 4, 2e9), (0, 0), (1, 2.0, 11.0)),
    "an iterator takes time": (SlowToBegin, [4], True, (1, 4, 7e9), (1, 4), (1, 7.0, 11.0)),
    "an error": (Broken, [4], True, (1, 4, 2e9), (1, 4), (2, 3.0, 10.0)),
}


@pytest.mark.parametrize(("kind", "sizes", "trains", "all_of", "of_training", "spans"), LOADERS.values(), ids=LOADERS)
def test_fetches_are_counted(run, kind, sizes, trains, all_of, of_training, spans):
    loader, counts = profiled(run, kind(run, sizes), trains)
    fetches = iter(loader)
    begun = run.snapshot().sections.get("data_loading")
    assert (begun.total_s if begun else 0.0) == 5.0 * (kind is SlowToBegin)
    with pytest.raises(ValueError, match="bad file") if kind is Broken else nullcontext():
        for _ in fetches:
            run.clock.advance(10)
    assert (counts.batches, counts.samples, counts.wait_ns) == all_of
    assert (counts.of(TRAIN).batches, counts.of(TRAIN).samples) == of_training
    sections = run.snapshot().sections
    assert (sections["data_loading"].count, sections["data_loading"].total_s, sections["other"].self_s) == spans


def test_drain_during_the_last_fetch_leaves_no_section_open(run):
    class Loader(SlowLoader):
        def __iter__(self):
            yield from super().__iter__()
            run.drain()

    loader, _ = profiled(run, Loader(run, [4]))
    list(loader)
    run.spend("forward_pass", 5)
    run.clock.advance(7)
    sections = run.snapshot().sections
    assert sections["data_loading"].count == 1
    assert sections["data_loading"].self_s == 3.0  # 1 s was drained before the fetch ended
    assert sections["forward_pass"].parent is None
    assert sections["other"].self_s == 7.0


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Tensor(8, 3), 8),
        ((Tensor(8), Tensor(1)), 8),
        ([Tensor(8)], 8),
        ({"x": Tensor(8), "y": Tensor(1)}, 8),
        ({"x": [Tensor(8)]}, 8),
        (Tensor(), None),
        ((), None),
        ({}, None),
        ("text", None),
        ([[[[[Tensor(8)]]]]], None),
        (Shy(), None),
    ],
)
def test_batch_size_is_the_first_dimension_of_the_first_tensor(batch, size):
    assert batch_size(batch) == size


def test_iterator_stays_an_iterator(run):
    counts = LoaderCounts("0")
    loader = data_loader.profiled(iter(SlowLoader(run, [4, 5])), timer(run, counts))
    assert iter(loader) is loader
    assert [next(loader).shape, next(loader).shape] == [(4,), (5,)]
    with pytest.raises(StopIteration):
        next(loader)
    assert run.snapshot().sections["data_loading"].count == 2


def test_pass_has_length_and_attributes_of_the_own_iterator(run):
    class Pass(list):
        spare = "of the iterator"

        def __next__(self):
            return self.pop(0)

        def __iter__(self):
            return self

    class Loader:
        def __iter__(self):
            return Pass([Tensor(1), Tensor(2)])

    loader, counts = profiled(run, Loader())
    fetches = iter(loader)
    assert (len(fetches), fetches.spare) == (2, "of the iterator")
    assert next(fetches).shape == (1,)
    assert counts.batches == 1


def test_drain_interval_returns_each_batch_once():
    registry = LoaderRegistry()
    assert registry.drain_interval() == (None, None)
    first, second = registry.counts_of("a", "first"), registry.counts_of("b", "second")
    assert registry.drain_interval() == (0, 0)
    first.add(32, 0, True)
    second.add(8, 0, True)
    second.add(100, 0, False)
    assert registry.drain_interval() == (2, 40)
    assert registry.drain_interval() == (0, 0)
    first.add(None, 0, True)
    assert registry.drain_interval() == (1, None)


class Pass:
    """The counts of one inferred pass."""

    def __init__(self, batches, samples, phase=None, made=NONE_MADE):
        self.fetches, self.samples, self.phase, self.made = batches, samples, phase, made
        self.is_cut = False


def test_discard_clears_the_loader(run):
    run.recorder.buffer().record_loader(3, 0)
    run.recorder.discard()
    assert run.recorder.buffer().loader_id == 0


def test_ended_pass_is_counted_once():
    counts = LoaderCounts("0")
    one = Pass(3, 12)
    counts.passes.append(one)
    assert counts.batches == 0  # its phase is not known yet
    one.phase = TRAIN
    for _ in range(2):
        assert (counts.of(TRAIN).batches, counts.of(TRAIN).samples, counts.of(VAL).batches) == (3, 12, 0)
        counts.end_pass(one)
    assert (counts.passes, counts.of(TRAIN).batches, counts.of(TRAIN).samples) == ([], 3, 12)


def test_batches_that_the_training_made_itself_are_counted_with_their_cpu_time():
    counts = LoaderCounts("0")
    ended, under_way = Pass(3, 12, TRAIN, MadeBatches(3, 3_000)), Pass(2, 8, TRAIN, MadeBatches(2, 1_000))
    counts.passes += [ended, under_way]
    counts.end_pass(ended)
    assert counts.of(TRAIN).made == MadeBatches(5, 4_000)
    assert counts.of(VAL).made == MadeBatches(0, 0)


def test_inferred_batches_are_part_of_an_epoch():
    registry = LoaderRegistry()
    inferred = registry.add_inferred()
    inferred.passes.append(Pass(2, 8, TRAIN))
    registry.begin_epoch()
    inferred.passes.append(Pass(3, 12, TRAIN))
    inferred.passes.append(Pass(5, 20, VAL))
    assert registry.epoch_counts() == (3, 12)


def test_unnamed_loaders_skip_numbers_in_use():
    registry = LoaderRegistry()
    names = [registry.counts_of(object(), "1").name, registry.add_inferred().name, registry.add_inferred().name]
    assert names == ["1", "0", "2"]


def test_a_batch_is_made_by_a_function_of_torch_or_of_the_program():
    data = TensorDataset(torch.zeros(8, 2))
    own = DataLoader(data, collate_fn=lambda samples: samples)
    assert [
        loader_arguments(loader).collate for loader in (DataLoader(data), DataLoader(data, batch_size=None), own)
    ] == [
        "default_collate",
        "default_convert",
        "own",
    ]
    assert loader_arguments(iter(DataLoader(data)), "_").collate == "default_collate"


def test_the_data_set_of_a_subset_is_the_one_behind_it():
    data = TensorDataset(torch.zeros(8, 2))
    part, _ = random_split(Subset(data, range(8)), [4, 4])
    arguments = loader_arguments(DataLoader(part))
    assert (arguments.data_set, arguments.fetches_batches) == ("TensorDataset", False)
    assert behind_subsets(data) is data
    loop = Subset(data, range(8))
    loop.dataset = loop
    assert behind_subsets(loop) is loop
