"""The loader of a pass, with real torch loaders."""

import gc
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from training_profiler.instrumentation.loop_detection.loader_passes import MAX_LOADERS, KnownLoaders
from training_profiler.model.loader_workers import TRAIN, VAL
from training_profiler.model.program import CallSite
from training_profiler.recording.data_loader import FetchTimer, LoaderCounts, LoaderRegistry, profiled

SEVEN = TensorDataset(torch.zeros(7, 2))


@pytest.fixture
def known() -> KnownLoaders:
    return KnownLoaders(LoaderRegistry())


def names_of(known, *iterators):
    return [known.counts_of(iterator).name for iterator in iterators]


def test_loaders_are_numbered_by_first_batch(known):
    one, other = DataLoader(SEVEN), DataLoader(SEVEN)
    assert names_of(known, iter(other), iter(one), iter(other)) == ["0", "1", "0"]


@pytest.mark.parametrize("data", [lambda: SEVEN, lambda: TensorDataset(torch.zeros(4))])
def test_recreated_loader_continues_the_one_before_also_with_a_new_data_set(known, data):
    for _ in range(3):
        loader = DataLoader(data(), batch_size=2, shuffle=True)
        for_evaluation = DataLoader(data(), batch_size=2)
        assert names_of(known, iter(loader), iter(for_evaluation)) == ["0", "1"]
        del loader, for_evaluation
        gc.collect()


@pytest.mark.parametrize(
    ("inside", "is_left", "is_same_data", "names"),
    [
        ("trainer.py:9 evaluate", True, True, ["0", "0"]),
        ("trainer.py:9 evaluate", True, False, ["0", "1"]),
        ("trainer.py:9 evaluate", False, True, ["0", "1"]),  # two under way at once
        ("", True, True, ["0", "1"]),  # the program's own loaders: of folds
    ],
)
def test_a_loader_that_a_library_keeps_is_continued_by_its_next(inside, is_left, is_same_data, names):
    known = KnownLoaders(LoaderRegistry(), lambda sampler: CallSite("train.py", 3, inside=inside))
    loaders = [DataLoader(SEVEN if is_same_data or not at else TensorDataset(torch.zeros(7, 2))) for at in range(2)]
    iterators = [iter(loader) for loader in loaders]
    found = names_of(known, iterators.pop(0)) if is_left else names_of(known, iterators[0])
    assert found + names_of(known, iterators[-1]) == names
    assert not any(counts.arguments.is_remade for counts in known._registry.all)


def test_loader_with_other_signature_is_new(known):
    assert names_of(known, iter(DataLoader(SEVEN, batch_size=2))) == ["0"]
    gc.collect()
    assert names_of(known, iter(DataLoader(SEVEN, batch_size=3))) == ["1"]


@pytest.mark.parametrize(
    ("epochs", "shuffle", "passes"),
    [((0, 0, 0), True, 2), ((0, 1, 2), True, 0), ((0, 0, 1), True, 0), ((0, 0), False, 0)],
)
def test_passes_in_the_order_of_the_first_are_counted(known, epochs, shuffle, passes):
    sampler = DistributedSampler(SEVEN, num_replicas=2, rank=0, shuffle=shuffle)
    loader = DataLoader(SEVEN, sampler=sampler)
    for epoch in epochs:
        sampler.set_epoch(epoch)
        counts = known.counts_of(iter(loader))
    assert counts.arguments.same_order == passes


def test_sampler_without_weak_references_is_recognized(known):
    batches = [[0, 1], [2]]
    loader = DataLoader(SEVEN, batch_sampler=batches)
    assert names_of(known, iter(loader), iter(DataLoader([1, 2])), iter(loader)) == ["0", "1", "0"]


def test_loaders_beyond_the_limit_share_one(known):
    loaders = [DataLoader(SEVEN) for _ in range(MAX_LOADERS + 3)]
    names = names_of(known, *map(iter, loaders))
    assert names[MAX_LOADERS - 1 :] == [str(MAX_LOADERS - 1), *["(other loaders)"] * 3]


def test_iterator_without_expected_attributes_is_unknown(known):
    assert known.counts_of(object()) is None


# In a training


def train(loader, model, optimizer, evaluated=()):
    for (inputs,) in loader:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for (inputs,) in evaluated:
            model(inputs)


@pytest.fixture
def registry(instrumented):
    instrumented.loaders = LoaderRegistry()
    return instrumented.loaders


@pytest.fixture
def model():
    return torch.nn.Linear(2, 1)


def counts_of(registry):
    return {
        str(number): [(counts.of(phase).batches, counts.of(phase).samples) for phase in (TRAIN, VAL)]
        for number, counts in enumerate(registry.all)
    }


def test_inferred_batches_and_samples_are_counted_by_phase(instrumented, registry, model):
    loader, val_loader = DataLoader(SEVEN, batch_size=2), DataLoader(SEVEN, batch_size=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        train(loader, model, optimizer, val_loader)
    assert counts_of(registry) == {"0": [(8, 14), (0, 0)], "1": [(0, 0), (6, 14)]}
    instrumented.counts()


def test_loader_is_recorded_only_when_it_changes(instrumented, registry, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(SEVEN, batch_size=2)
    train(loader, model, optimizer)
    train(loader, model, optimizer)
    instrumented.instrumentation.close()
    sums = instrumented.run.totals().loaders
    (loader_id,) = sums.tables
    assert sums.table(loader_id)[:4, 1].tolist() == [8, 8, 8, 8]
    assert loader_id == registry.all[0].loader_id


def test_manually_profiled_loader_is_not_counted_twice(instrumented, registry, model):
    counts = LoaderCounts("main")
    timer = FetchTimer(counts, instrumented.run.recorder, lambda: True)
    loader = profiled(DataLoader(SEVEN, batch_size=2), timer)
    train(loader, model, torch.optim.SGD(model.parameters(), 0.1))
    assert registry.all == []
    assert (counts.batches, counts.samples) == (4, 7)
    assert instrumented.counts()["data_loading"] == 4
    (loader_id,) = instrumented.run.totals().loaders.tables
    assert loader_id == counts.loader_id


def test_unknown_batch_size_makes_samples_unknown(instrumented, registry, model):
    loader = DataLoader(SEVEN, batch_size=2, collate_fn=lambda rows: ("text", torch.stack([row for (row,) in rows])))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _, inputs in loader:
        model(inputs).sum().backward()
        optimizer.step()
    assert counts_of(registry)["0"][0] == (4, None)
    instrumented.counts()


def test_times_are_attributed_to_the_loader_of_the_batch(instrumented, registry, model):
    first, second = (DataLoader(TensorDataset(torch.zeros(20, 2)), batch_size=2) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    iterators = iter(first), iter(second)
    for i in range(15):
        (inputs,) = next(iterators[i % 3 == 2])
        model(inputs).sum().backward()
        if i % 3 == 2:
            optimizer.step()
    instrumented.instrumentation.close()
    sums = instrumented.run.totals().loaders
    counts = [sums.table(counts.loader_id)[:5, 1].tolist() for counts in registry.all]
    assert counts == [[10, 10, 10, 0, 9], [5, 5, 5, 5, 5]]  # data, forward, backward, optimizer, between


def test_the_end_of_workers_whose_iterator_is_dropped_between_steps_is_data_loading(instrumented, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(DataLoader(SEVEN, num_workers=1))
    for _ in range(3):
        model(next(batches)[0]).sum().backward()
        optimizer.step()
    asked = batches._workers_done_event
    waited = SimpleNamespace(set=lambda: (instrumented.clock.advance(1.0), asked.set()), is_set=asked.is_set)
    batches._workers_done_event = waited
    del batches
    train([(torch.zeros(1, 2),)], model, optimizer)
    assert instrumented.counts()["data_loading"] == 3
    names, totals = instrumented.run.names.names, instrumented.run.totals().sections
    (spent_ns,) = (totals.total_ns[id] for id, name in names.items() if name == "data_loading")
    assert 1e9 <= spent_ns < 1.1e9
