"""Trainings of seconds, each with and without one planted cost: ``python savings.py NAME ROUNDS`` trains with it.

A training is a function that returns one round of it. ``benchmarks.planted_savings`` measures what the cost really is,
and what the profiler says about it.
"""

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import DataLoader, Dataset, TensorDataset

Round = Callable[[], None]
STEPS = 40  # a round


def own_s() -> float:
    """Return the time without what this thread has waited for a CPU that others had."""
    return time.perf_counter() - int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def mlp(width: int = 256, layers: int = 3) -> nn.Sequential:
    inner = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(width, 10))


def batches(width: int = 256, size: int = 64, count: int = STEPS) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(count * size, width), torch.randint(10, (count * size,))), size)


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def plain(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer | None = None) -> Round:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            descend(optimizer, cross_entropy(model(x), y))

    return train


class Vectors(Dataset):
    """Random vectors; reading one takes Python work, or waits as slow storage does."""

    def __init__(self, count: int, python_work: int = 0, waits_s: float = 0.0) -> None:
        self.vectors = torch.randn(count, 256)
        self.python_work, self.waits_s = python_work, waits_s

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.waits_s:
            time.sleep(self.waits_s)
        total = 0
        for value in range(self.python_work):
            total += value * value % 7
        return self.vectors[index] + total % 2, index % 10


def slow_transform(is_planted: bool) -> Round:
    return plain(mlp(), DataLoader(Vectors(STEPS * 64, 700 if is_planted else 0), batch_size=64))


def too_few_workers(is_planted: bool) -> Round:
    workers = {} if is_planted else {"num_workers": 4, "persistent_workers": True}
    return plain(mlp(), DataLoader(Vectors(STEPS * 16, waits_s=0.0005), batch_size=16, **workers))


def workers(is_persistent: bool) -> DataLoader:
    return DataLoader(Vectors(STEPS * 64), batch_size=64, num_workers=2, persistent_workers=is_persistent)


def new_loader_each_epoch(is_planted: bool) -> Round:
    model, kept = mlp(), None if is_planted else workers(is_persistent=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in kept or workers(is_persistent=False):
            descend(optimizer, cross_entropy(model(x), y))

    return train


def workers_not_persistent(is_planted: bool) -> Round:
    return plain(mlp(), workers(is_persistent=not is_planted))


def reads_each_norm(is_planted: bool) -> Round:
    model, loader, norms = mlp(128, 24), batches(128), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            descend(optimizer, cross_entropy(model(x), y))
            if is_planted:
                norms.append([parameter.grad.norm().item() for parameter in model.parameters()])
                norms[-1] += [parameter.detach().norm().item() for parameter in model.parameters()]

    return train


def optimizer_loop(is_planted: bool) -> Round:
    model, loader = mlp(192, 24), batches(192, size=16)
    return plain(model, loader, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=not is_planted))


class Gelu(nn.Module):
    def __init__(self, is_planted: bool) -> None:
        super().__init__()
        self.is_planted = is_planted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_planted:
            return gelu(x, approximate="tanh")
        cube = x * x * x
        inner = 0.7978845608 * (x + 0.044715 * cube)
        return 0.5 * x * (1 + torch.tanh(inner))


def small_operators(is_planted: bool) -> Round:
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), Gelu(is_planted))]
    return plain(nn.Sequential(*layers, nn.Linear(64, 10)), batches(64, size=16))


class PerSample(nn.Module):
    def __init__(self, is_planted: bool) -> None:
        super().__init__()
        self.is_planted, self.first, self.last = is_planted, nn.Linear(128, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_planted:
            return self.last(self.first(x).tanh())
        rows = [self.last(self.first(row).tanh()) for row in x]
        return torch.stack(rows)


def loop_in_forward(is_planted: bool) -> Round:
    return plain(PerSample(is_planted), batches(128))


def double_precision(is_planted: bool) -> Round:
    dtype = torch.float64 if is_planted else torch.float32
    model, loader = mlp(512).to(dtype), batches(512, size=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            descend(optimizer, cross_entropy(model(x.to(dtype)), y))

    return train


def two_backwards(is_planted: bool) -> Round:
    model, loader = mlp(384, 4), batches(384)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            out = model(x)
            loss, penalty = cross_entropy(out, y), out.square().mean()
            optimizer.zero_grad()
            if is_planted:
                loss.backward(retain_graph=True)
                penalty.backward()
            else:
                (loss + penalty).backward()
            optimizer.step()

    return train


def evaluates(every: int, with_gradient: bool = False, count: int = 10) -> Round:
    model, loader, held_out = mlp(384), batches(384), batches(384, count=count)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for step, (x, y) in enumerate(loader, 1):
            model.train()
            descend(optimizer, cross_entropy(model(x), y))
            if step % every == 0:
                model.eval()
                with contextlib.nullcontext() if with_gradient else torch.no_grad():
                    sum(float(cross_entropy(model(x), y)) for x, y in held_out)

    return train


def evaluates_too_often(is_planted: bool) -> Round:
    return evaluates(every=4 if is_planted else STEPS)


def evaluates_with_gradient(is_planted: bool) -> Round:
    return evaluates(every=STEPS, with_gradient=is_planted, count=150)


def saves_too_often(is_planted: bool) -> Round:
    model, loader, every = mlp(512), batches(512), 2 if is_planted else STEPS
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=True)
    folder = Path(tempfile.mkdtemp())

    def train() -> None:
        for step, (x, y) in enumerate(loader, 1):
            descend(optimizer, cross_entropy(model(x), y))
            if step % every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")

    return train


def formats_a_log(is_planted: bool) -> Round:
    model, loader, log = mlp(), batches(), io.StringIO()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            descend(optimizer, loss)
            if is_planted:
                for name, parameter in model.named_parameters():
                    print(name, parameter.grad, parameter.mean().item(), parameter.std().item(), file=log)

    return train


def growing_list(is_planted: bool) -> Round:
    model, loader, history = mlp(), batches(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            descend(optimizer, loss)
            if is_planted:
                history.extend(loss.detach().expand(200).tolist())
                sum(value * value for value in history)

    return train


def clips_in_a_loop(is_planted: bool) -> Round:
    model, loader = mlp(96, 32), batches(96, size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            if is_planted:
                for parameter in model.parameters():
                    limit = parameter.grad.abs().quantile(0.99).item()
                    parameter.grad.clamp_(-limit, limit)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()

    return train


def ragged() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for step in range(STEPS):
        size = 33 + step % 7
        yield torch.randn(size, 256), torch.randint(10, (size,))


def recompiles(is_planted: bool) -> Round:
    def train() -> None:
        torch._dynamo.reset()
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        compiled = torch.compile(model, backend="aot_eager", dynamic=not is_planted)
        for x, y in ragged():
            descend(optimizer, cross_entropy(compiled(x), y))

    return train


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = mlp(), nn.Linear(10, 10)
        self.backbone.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def frozen_backbone(is_planted: bool) -> Round:
    model, loader = Frozen(), batches()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
    images, labels = loader.dataset.tensors
    with torch.no_grad():
        kept = DataLoader(TensorDataset(model.backbone(images), labels), loader.batch_size)

    def train() -> None:
        for x, y in loader if is_planted else kept:
            descend(optimizer, cross_entropy(model(x) if is_planted else model.head(x), y))

    return train


class Decoder(nn.Module):
    def __init__(self, is_planted: bool, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.is_planted, self.words = is_planted, nn.Embedding(100, 48)
        self.layer, self.last = kind(48, 48, batch_first=True), nn.Linear(48, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if not self.is_planted:
            return self.last(self.layer(self.words(tokens))[0])
        rows, state = [], None
        for at in range(tokens.shape[1]):
            row, state = self.layer(self.words(tokens[:, at : at + 1]), state)
            rows.append(self.last(row))
        return torch.cat(rows, 1)


def decodes(is_planted: bool, kind: type[nn.RNNBase]) -> Round:
    model, tokens = Decoder(is_planted, kind), torch.randint(100, (STEPS * 8, 24))
    loader, optimizer = DataLoader(TensorDataset(tokens), 8), torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for (each,) in loader:
            descend(optimizer, cross_entropy(model(each)[:, :-1].flatten(0, 1), each[:, 1:].flatten()))

    return train


def gru_for_each_token(is_planted: bool) -> Round:
    return decodes(is_planted, nn.GRU)


def lstm_for_each_token(is_planted: bool) -> Round:
    return decodes(is_planted, nn.LSTM)


def updates_batch_norms(is_planted: bool) -> Round:
    inner = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU())]
    model, loader = nn.Sequential(*inner, nn.Linear(256, 10)), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    average = torch.optim.swa_utils.AveragedModel(model)

    def train() -> None:
        for x, y in loader:
            descend(optimizer, cross_entropy(model(x), y))
        average.update_parameters(model)
        if is_planted:
            torch.optim.swa_utils.update_bn(loader, average)

    return train


def validates_with(held_out: DataLoader) -> Round:
    model, loader = mlp(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        model.train()
        for x, y in loader:
            descend(optimizer, cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            sum(float(cross_entropy(model(x), y)) for x, y in held_out)

    return train


def validation_workers(is_planted: bool) -> Round:
    return validates_with(DataLoader(Vectors(STEPS * 64), batch_size=64, num_workers=2 if is_planted else 0))


def single_samples_in_validation(is_planted: bool) -> Round:
    return validates_with(batches(size=1 if is_planted else 64, count=640 if is_planted else 10))


def decodes_one_by_one(is_planted: bool) -> Round:
    model = nn.Sequential(nn.Embedding(32, 64), nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 32))
    texts = TensorDataset(torch.randint(32, (64 * STEPS, 9)))
    loader, held_out = DataLoader(texts, batch_size=64), DataLoader(TensorDataset(texts.tensors[0][:96]), batch_size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def decode(context: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            context = torch.cat([context, model(context[:, -8:]).argmax(1, keepdim=True)], 1)
        return context

    def train() -> None:
        model.train()
        for (text,) in loader:
            descend(optimizer, cross_entropy(model(text[:, :8]), text[:, 8]))
        model.eval()
        with torch.no_grad():
            for (text,) in held_out:
                starts = text[:, :8]
                made = [decode(start[None]) for start in starts] if is_planted else [decode(starts)]
                torch.cat(made).float().mean().item()

    return train


def metric_by_another_pass(is_planted: bool) -> Round:
    model, loader = mlp(384), batches(384)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        right = 0
        for x, y in loader:
            out = model(x)
            descend(optimizer, cross_entropy(out, y))
            if is_planted:
                with torch.no_grad():
                    out = model(x)
            right += int((out.argmax(1) == y).sum())

    return train


def teacher_with_gradients(is_planted: bool) -> Round:
    student, teacher, loader = mlp(), mlp(384), batches(384)
    first = nn.Linear(384, 256)
    optimizer = torch.optim.SGD([*first.parameters(), *student.parameters()], lr=0.01)

    def train() -> None:
        for x, _ in loader:
            with contextlib.nullcontext() if is_planted else torch.no_grad():
                target = teacher(x + 0.1 * torch.randn_like(x))
            loss = (student(first(x)) - target).square().mean()
            optimizer.zero_grad()
            teacher.zero_grad()
            loss.backward()
            optimizer.step()

    return train


def anomaly_detection(is_planted: bool) -> Round:
    model, loader = mlp(96, 8), batches(96, size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            with torch.autograd.set_detect_anomaly(is_planted):
                descend(optimizer, cross_entropy(model(x), y))

    return train


class CellLoop(nn.Module):
    def __init__(self, is_planted: bool) -> None:
        super().__init__()
        self.is_planted, self.last = is_planted, nn.Linear(64, 10)
        self.layer = nn.LSTMCell(64, 64) if is_planted else nn.LSTM(64, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_planted:
            return self.last(self.layer(x)[0][:, -1])
        state = x.new_zeros(len(x), 64), x.new_zeros(len(x), 64)
        for at in range(x.shape[1]):
            state = self.layer(x[:, at], state)
        return self.last(state[0])


def lstm_cell_for_each_step(is_planted: bool) -> Round:
    data = TensorDataset(torch.randn(STEPS * 32, 30, 64), torch.randint(10, (STEPS * 32,)))
    return plain(CellLoop(is_planted), DataLoader(data, 32))


def dense_embedding(is_planted: bool) -> Round:
    table, model = nn.EmbeddingBag(100_000, 16, sparse=not is_planted), mlp(16)
    adam = torch.optim.Adam if is_planted else torch.optim.SparseAdam
    optimizers = adam(table.parameters()), torch.optim.Adam(model.parameters())
    ids, labels = torch.randint(100_000, (STEPS, 64, 5)), torch.randint(10, (STEPS, 64))

    def train() -> None:
        for rows, y in zip(ids, labels, strict=True):
            loss = cross_entropy(model(table(rows)), y)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    return train


class Turns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn, self.last = orthogonal(nn.Linear(48, 48, bias=False)), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.tanh(self.turn(x))
        return self.last(x)


def weights_computed_again(is_planted: bool) -> Round:
    model, loader = Turns(), batches(48, size=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in loader:
            with contextlib.nullcontext() if is_planted else parametrize.cached():
                loss = cross_entropy(model(x), y)
            descend(optimizer, loss)

    return train


PROGRAMS: dict[str, Callable[[bool], Round]] = {
    make.__name__: make
    for make in (
        *(slow_transform, too_few_workers, new_loader_each_epoch, workers_not_persistent),
        *(reads_each_norm, optimizer_loop, small_operators, loop_in_forward, double_precision, two_backwards),
        *(evaluates_too_often, evaluates_with_gradient, saves_too_often, formats_a_log, growing_list),
        *(clips_in_a_loop, recompiles, frozen_backbone, gru_for_each_token, lstm_for_each_token, updates_batch_norms),
        *(single_samples_in_validation, decodes_one_by_one),
        *(lstm_cell_for_each_step, dense_embedding, weights_computed_again),
        *(validation_workers, metric_by_another_pass, teacher_with_gradients, anomaly_detection),
    )
}


def main() -> None:
    """Train with the planted cost."""
    name, rounds = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = PROGRAMS[name](True)
    for _ in range(rounds):
        train()


if __name__ == "__main__":
    main()
