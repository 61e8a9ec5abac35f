"""Each treatment does to the losses of a small real training what its row says."""

import functools
import gc
import sys
import threading
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from training_profiler.diagnosis.finding import Change, Losses
from training_profiler.diagnosis.rules import RULES
from training_profiler.instrumentation.patching import Patches
from training_profiler.sampling.compilations import Compilations
from training_profiler.trials.treatments import FAMILIES, TREATMENTS, allocator

BY_NAME = {treatment.name: treatment for treatment in TREATMENTS}
CLOSE = 1e-4  # relative; float32 has 7 digits, and a few steps let them grow


@pytest.fixture(autouse=True)
def workers_have_ended():
    """Wait for the threads that feed workers: a loader ends them when it is collected."""
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(30)


@pytest.fixture(autouse=True)
def as_many_threads_as_before():
    """Restore the number of threads, on which the last digits of the losses depend: no treatment has to."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Images(Dataset):
    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def __len__(self):
        return 24

    def __getitem__(self, index):
        image = torch.linspace(0, 1 + index, 3 * 64).reshape(3, 8, 8).sin()
        return image + self.noise * torch.randn(3, 8, 8) if self.noise else image, torch.tensor(index % 2)


def tensors() -> TensorDataset:
    return TensorDataset(*(torch.stack(part) for part in zip(*(Images()[i] for i in range(24)), strict=True)))


def model(dropout: float = 0.2) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(dropout), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2)
    )


def losses(
    data: Dataset | None = None,
    epochs: int = 3,
    set_to_none: bool = True,
    dropout: float = 0.2,
    wrap=lambda net: net,
    **arguments,
):
    """Return the losses of a training with dropout and shuffled data, as exact numbers."""
    torch.manual_seed(0)
    loader = DataLoader(Images() if data is None else data, batch_size=8, shuffle=True, **arguments)
    net = wrap(model(dropout))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    seen = []
    for _ in range(epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(net(images).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            seen.append(loss.item())
    return seen


def under(*names: str, train=losses, **arguments):
    """Return the same under treatments, which are undone."""
    patches = Patches()
    try:
        for name in names:
            BY_NAME[name].install(patches, torch)
        return train(**arguments)
    finally:
        patches.undo()


def distance(one, other) -> float:
    assert len(one) == len(other)
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, other, strict=True))


@functools.cache
def unchanged() -> tuple[float, ...]:
    return tuple(losses())


def test_prefetch_whole_batches_and_kept_workers_keep_losses_the_last_because_a_number_is_drawn():
    assert losses() == list(unchanged())
    assert under("prefetch_factor=4", num_workers=1) == list(unchanged())
    assert under("batched", data=tensors()) == list(unchanged())
    in_force = losses(num_workers=1)
    assert in_force == list(unchanged())
    assert under("persistent_workers", num_workers=1) == in_force
    assert losses(num_workers=1, persistent_workers=True) != in_force


@pytest.mark.parametrize("name", ["num_workers=1", "num_workers=2"])
def test_workers_keep_losses_where_samples_draw_no_random_numbers(name):
    assert BY_NAME[name].losses is Losses.EXACT_IF
    assert under(name) == list(unchanged())
    assert under(name, data=Images(0.1), epochs=1) != losses(Images(0.1), epochs=1)


def test_a_loader_can_do_without_workers_and_those_of_validation_keep_their_arguments():
    given = {"num_workers": 1, "timeout": 60, "prefetch_factor": 4}
    assert under("num_workers=0", **given) == losses(**given)

    def train():
        with torch.no_grad():
            validation = iter(DataLoader(Images(), num_workers=1))
        return iter(DataLoader(Images(), num_workers=1)), validation

    without, validation = under("num_workers=0", train=train)
    assert [type(each).__name__[1:6] for each in (without, validation)] == ["Singl", "Multi"]
    (training, _) = under("num_workers=2", train=train)
    assert (training._num_workers, training._prefetch_factor) == (2, 2)


def test_workers_are_kept():
    def train():
        loader = DataLoader(Images(), num_workers=1)
        return {id(iterator) for iterator in (iter(loader), iter(loader)) if next(iterator) is not None}

    assert len(under("persistent_workers", train=train)) == 1


def test_whole_batches_are_asked_for_at_once_where_torchs_own_class_is_asked(monkeypatch):
    class Own(TensorDataset):
        """A class of the user's may expect one number."""

    asked, original = [], TensorDataset.__getitem__
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, index: asked.append(index) or original(self, index))
    for data in (tensors(), Subset(Subset(tensors(), range(24)), list(range(24)))):
        asked.clear()
        under("batched", data=data, epochs=1)
        assert [len(indices) for indices in asked] == [8, 8, 8]
    asked.clear()
    under("batched", data=Own(*tensors().tensors), epochs=1)
    assert sorted(asked) == list(range(24))


@pytest.mark.parametrize("name", ["foreach", "set_to_none", "gc_freeze", "fused", "num_threads=1"])
def test_these_keep_losses_bit_for_bit_or_but_for_rounding(name):
    if BY_NAME[name].losses is Losses.CLOSE:
        assert distance(unchanged(), under(name)) < CLOSE
    else:
        assert BY_NAME[name].losses in (Losses.EXACT, Losses.EXACT_IF)
        assert under(name, set_to_none=False) == list(unchanged())


def test_a_lazy_model_is_changed_once_it_has_its_parameters():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2))
    images = torch.ones(2, 3, 8, 8)

    def train():
        model(images)  # as in the constructor of a program's model
        assert model[0].weight.is_contiguous()
        model(images).sum().backward()

    under("channels_last", train=train)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_changes_losses_by_rounding_and_what_dropout_draws_and_autocast_more():
    assert [BY_NAME[name].losses for name in ("channels_last", "autocast")] == [Losses.CLOSE, Losses.CHANGES]
    assert distance(losses(dropout=0.0), under("channels_last", dropout=0.0)) < CLOSE
    assert distance(unchanged(), under("channels_last")) > CLOSE
    assert "dropout" in Change.CHANNELS_LAST.text
    assert CLOSE < distance(unchanged(), under("autocast")) < 1
    together = ("num_workers=2", "prefetch_factor=4", "fused", "gc_freeze", "num_threads=1")
    assert distance(unchanged(), under(*together)) < CLOSE


def test_an_optimizer_is_made_with_the_argument_drops_gradients_and_freezes_what_was_made_before():
    weight = torch.zeros(2, requires_grad=True)

    def train():
        adam, sgd, _ = (
            torch.optim.AdamW([weight], foreach=True),
            torch.optim.SGD([weight], 0.1),
            torch.optim.LBFGS([weight]),
        )
        weight.sum().backward()
        sgd.zero_grad(set_to_none=False)
        return adam.defaults, sgd.defaults, weight.grad, gc.get_freeze_count()

    gc.unfreeze()  # what was there when the tests had been collected
    adam, sgd, grad, frozen = under("fused", "set_to_none", "gc_freeze", train=train)
    assert (adam["fused"], adam["foreach"], sgd["fused"], grad) == (True, None, True, None)
    assert frozen > 1000
    assert gc.get_freeze_count() == 0
    assert under("foreach", train=train)[1]["foreach"] is True


class NumberOfThreads(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.get_num_threads()


def test_the_number_of_threads_is_kept_against_the_program_but_for_workers_of_loaders():
    def train():
        torch.set_num_threads(3)
        return torch.get_num_threads(), next(iter(DataLoader(NumberOfThreads(), num_workers=1))).item()

    assert under("num_threads=2", train=train) == (2, 1)


@pytest.fixture
def compiled(monkeypatch):
    """Return the modules and the options that are compiled, instead of compiling them."""
    made = []
    monkeypatch.setattr(
        torch, "compile", lambda forward, **options: made.append((forward.__self__, options)) or forward
    )
    return made


def test_the_outermost_module_is_compiled_once(compiled):
    net, frozen = model(), model().requires_grad_(requires_grad=False)

    def train():
        frozen(torch.zeros(1, 3, 8, 8))
        net.eval()(torch.zeros(1, 3, 8, 8))
        for _ in range(2):
            net.train()(torch.zeros(1, 3, 8, 8))
        return len(nn.modules.module._global_forward_pre_hooks)

    assert under("compile", train=train) == 0
    assert compiled == [(net, {})]


def test_a_program_that_compiles_does_so_with_the_option_and_nothing_else_is_compiled(compiled):
    net = model()

    def train():
        net.forward = torch.compile(net.forward, dynamic=False)
        net(torch.zeros(1, 3, 8, 8))

    under("compile_dynamic", train=train)
    under("compile_mode=max-autotune-no-cudagraphs", train=train)
    own = {"dynamic": False}
    assert compiled == [(net, {"dynamic": True}), (net, own | {"mode": "max-autotune-no-cudagraphs"})]


def test_a_module_of_torchs_own_is_compiled_and_other_shapes_compile_again_unless_they_may_change(monkeypatch):
    original = torch.compile
    monkeypatch.setattr(torch, "compile", functools.partial(original, backend="eager"))

    def train():
        torch._dynamo.reset()
        net, compilations = nn.Sequential(nn.Linear(9, 3), nn.ReLU()), Compilations()
        compilations.start()
        try:
            for size in (2, 2, 3, 4):
                net(torch.zeros(size, 9))
            return compilations.facts()
        finally:
            compilations.close()

    once, again = under("compile_dynamic", train=train), under("compile", train=train)
    assert (once.graphs, once.recompiled) == (1, 0)
    assert (again.graphs, again.recompiled) == (2, 1)
    assert again.seconds > 0


def test_flags_of_the_process_are_set_and_restored():
    def train():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark

    before = train()
    assert under("matmul_precision", "cudnn_benchmark", train=train) == ("high", True)
    assert train() == before


@pytest.mark.parametrize("name", ["gradient_as_bucket_view", "static_graph", "bucket_cap_mb=100"])
def test_ddp_has_the_argument_and_the_losses_of_one_rank(name):
    made = []

    def wrap(net):
        made.append(nn.parallel.DistributedDataParallel(net))
        return made[-1]

    hook = sys.excepthook  # which a process group replaces
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert under(name, wrap=wrap, epochs=1) == losses(wrap=wrap, epochs=1)
    finally:
        torch.distributed.destroy_process_group()
        sys.excepthook = hook
    treated, own = made
    if name.startswith("bucket"):
        assert (treated.bucket_bytes_cap, own.bucket_bytes_cap) == (100 * 1024**2, 25 * 1024**2)
    else:
        assert (getattr(treated, name), getattr(own, name)) == (True, False)


def test_pinned_tensors_are_copied_without_waiting():
    asked = []

    class Pinned:
        device = types.SimpleNamespace(type="cpu")

        def is_pinned(self):
            return True

        def to(self, *args, **kwargs):
            asked.append(kwargs)

        cuda = to

    patches = Patches()
    BY_NAME["pin_memory"].install(patches, types.SimpleNamespace(Tensor=Pinned, utils=torch.utils))
    try:
        Pinned().to("cuda")
        Pinned().to("cuda", non_blocking=False)
        Pinned().to("cuda", torch.float32, False)
    finally:
        patches.undo()
    assert asked == [{"non_blocking": True}, {"non_blocking": False}, {}]


def test_one_batch_is_used_again_and_each_pass_is_as_long_as_before():
    def train(**arguments):
        loader = DataLoader(Images(), batch_size=2, **arguments)
        return [[id(batch[0]) for batch in list(loader)] for _ in range(2)]

    for arguments in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
        first, second = under("one_batch", train=lambda arguments=arguments: train(**arguments))
        assert (len(first), len(second)) == (12, 12)
        assert len(set(first[4:])) == 1
        assert set(second) == {first[-1]}  # a short pass would be made as it was before


def test_without_checkpoints_little_is_written_and_what_was_saved_can_be_loaded(tmp_path):
    path, weights = tmp_path / "a.pt", torch.ones(100_000)

    def train():
        torch.save({"weights": weights}, path)
        return torch.load(path)

    assert under("no_checkpoints", train=train)["weights"] is weights
    assert 0 < path.stat().st_size < 10_000
    other = tmp_path / "b.pt"
    torch.save([1], other)
    assert under("no_checkpoints", train=lambda: torch.load(other)) == [1]


def test_validation_ends_after_its_first_batch_once_there_was_a_gradient():
    def train():
        loader, weight = DataLoader(Images(), batch_size=8), torch.zeros(1, requires_grad=True)
        lengths = []
        for _ in range(2):
            with torch.no_grad():
                lengths.append(len(list(loader)))
            weight.sum().backward()
        return [*lengths, len(list(loader))]

    assert under("no_validation", train=train) == [3, 1, 3]


def test_numbers_are_not_logged(monkeypatch):
    logged = []
    mlflow = types.ModuleType("mlflow.tracking.fluent")
    vars(mlflow).update(log_metric=logged.append, log_metrics=logged.append)
    monkeypatch.setitem(sys.modules, mlflow.__name__, mlflow)
    under("no_scalars", train=lambda: mlflow.log_metric(1.0))
    mlflow.log_metric(2.0)
    assert logged == [2.0]


def test_an_allocator_is_loaded_by_the_environment():
    found = allocator("jemalloc", find=lambda name: f"lib{name}.so.2")
    assert found.environment() == {"LD_PRELOAD": "libjemalloc.so.2"}
    missing = allocator("jemalloc", find=lambda name: None)
    assert missing.reason_not(None) == "libjemalloc is not installed"


def test_names_are_unique_every_suggested_family_exists_and_none_changes_what_is_learned():
    assert len(BY_NAME) == len(TREATMENTS)
    assert {family for rule in RULES for family in rule.try_} <= set(FAMILIES)
    words = ("batch_size", "lr", "accumul", "augment")  # that change what is learned
    assert not [name for name in BY_NAME if any(word in name for word in words)]
