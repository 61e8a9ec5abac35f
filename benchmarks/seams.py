"""What the seams cost in one process, put in place and taken out in turns: ``python -m benchmarks.seams``.

Three figures: a module call inside of another, which is all that most module calls are; the step of the smallest
training, with each seam alone and with all of them; and the fetch of a batch, from one loader or from two in turn. A
session's part (draining, sums, journal, reports, sampling) is not in it; ``unmodified_training`` has all.
"""

import argparse
import json
import sys
from collections.abc import Callable
from statistics import median
from time import thread_time_ns
from typing import Any, Final
from unittest.mock import patch

from benchmarks.children import result_of
from benchmarks.figures import Figure, print_figures, print_table, spread

INNER_TARGET_US: Final = 0.2
INNER_CALLS: Final = 1000
INNER_ROUNDS: Final = 300
STEPS: Final = 100
STEP_ROUNDS: Final = 40
WARM_UP: Final = 150  # a changed class makes the interpreter look up anew what it had specialized
FETCHED: Final = 400
FETCH_ROUNDS: Final = 40
FETCHES: Final = {"one loader": 1, "two in turn": 2}  # how many loaders
NONE, ALL = "none", "all seams"
ALONE: Final = ("forward pass", "backward pass", "optimizer")


def run() -> list[Figure]:
    """Measure, print and return the cost of a module call that is not outermost; takes about a minute."""
    measured = result_of("benchmarks.seams", "--inside", is_on=False)
    us: dict[str, list[float]] = measured["call us"]
    added = [on - off for on, off in zip(us[ALL], us[NONE], strict=True)]
    print(f"A call of a module inside of another: CPU us, {len(added)} interleaved rounds of {INNER_CALLS} calls")
    rows = [[name, f"{min(values):.3f}", *_cells(values)] for name, values in us.items()]
    least = min(us[ALL]) - min(us[NONE])
    print_table(["seams", "best", "median", "quartiles"], [*rows, ["difference", f"{least:.3f}", *_cells(added)]])

    us = measured["step us"]
    print(f"A step of 0.25 ms: CPU us, {len(us[NONE])} interleaved rounds of {STEPS} steps")
    rows = []
    for name, values in us.items():
        differences = [on - off for on, off in zip(values, us[NONE], strict=True)]
        rows.append([name, f"{min(values):.1f}", f"{min(values) - min(us[NONE]):+.1f}", *_cells(differences, 1)])
    print_table(["seams", "best", "added, of the best", "added, median", "quartiles"], rows)
    for name in FETCHES:
        us = measured[name]
        added = [on - off for on, off in zip(us[ALL], us[NONE], strict=True)]
        print(f"Fetches of a batch, {name}: CPU us, {len(added)} interleaved rounds of {FETCHED} fetches")
        least = min(us[ALL]) - min(us[NONE])
        rows = [[seams, f"{min(values):.3f}", *_cells(values)] for seams, values in us.items()]
        print_table(["seams", "best", "median", "quartiles"], [*rows, ["difference", f"{least:.3f}", *_cells(added)]])
    us, added = (
        measured["call us"],
        [on - off for on, off in zip(measured["call us"][ALL], measured["call us"][NONE], strict=True)],
    )
    least = min(us[ALL]) - min(us[NONE])
    what = "module call that is not outermost, added CPU"
    stats = [
        Figure(f"{what}, median of the rounds", median(added), INNER_TARGET_US, "us", 3),
        Figure(f"{what}, of the best rounds", least, INNER_TARGET_US, "us", 3),
    ]
    print_figures(stats)
    return stats


def _cells(values: list[float], decimals: int = 3) -> list[str]:
    lower, middle, upper = spread(values)
    return [f"{middle:.{decimals}f}", f"{lower:.{decimals}f} - {upper:.{decimals}f}"]


class Seams:
    """Puts seams in place as a run would, and takes them out."""

    def __init__(self) -> None:
        from training_profiler.instrumentation.instrumentation import PATCHES, Instrumentation
        from training_profiler.recording.data_loader import LoaderBook
        from training_profiler.recording.recorder import Recorder

        self.names = tuple(PATCHES)
        self._all, self._table = dict(PATCHES), PATCHES
        self._recorder = Recorder()  # nobody listens: what is recorded is thrown away
        loaders = LoaderBook()
        self._watch = Instrumentation(self._recorder, lambda: lambda at_ns: None, lambda: loaders)

    def put_in(self, names: tuple[str, ...]) -> None:
        """Put the seams of these names in place, and no other."""
        import torch

        with patch.dict(self._table, {name: self._all[name] for name in names}, clear=True):
            self._watch.install(torch)

    def take_out(self) -> None:
        """Take out all, and forget what they recorded."""
        self._watch.uninstall()
        self._recorder.discard()


def in_turns(
    seams: Seams, sets: dict[str, tuple[str, ...]], rounds: int, work: Callable[[], float]
) -> dict[str, list[float]]:
    """Return what ``work`` returns with each set of seams, one entry a round."""
    found: dict[str, list[float]] = {name: [] for name in sets}
    for number in range(-1, rounds):
        for name in list(sets) if number % 2 else list(reversed(sets)):
            seams.put_in(sets[name])
            value = work()
            seams.take_out()
            if number >= 0:
                found[name].append(value)
    return found


def measure() -> dict[str, Any]:
    """Return the CPU us of calls and of steps, by the seams in place."""
    import torch

    torch.set_num_threads(1)
    seams = Seams()
    both = {NONE: (), ALL: seams.names}
    rest = tuple(name for name in seams.names if name not in ALONE)
    sets = {NONE: (), **{name: (name,) for name in ALONE}, "all others": rest, ALL: seams.names}
    return {
        "call us": in_turns(seams, both, INNER_ROUNDS, inner_call()),
        "step us": in_turns(seams, sets, STEP_ROUNDS, step()),
        **{name: in_turns(seams, both, FETCH_ROUNDS, fetches(count)) for name, count in FETCHES.items()},
    }


def inner_call() -> Callable[[], float]:
    """Return a function that returns the CPU us of calling a module that does nothing, inside of another."""
    import torch

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.inner = Inner()
            self.us = 0.0

        def forward(self, x: torch.Tensor) -> None:
            inner = self.inner
            for _ in range(WARM_UP):
                inner(x)
            begin_ns = thread_time_ns()
            for _ in range(INNER_CALLS):
                inner(x)
            self.us = (thread_time_ns() - begin_ns) / INNER_CALLS / 1e3

    outer, x = Outer(), torch.zeros(1)

    def work() -> float:
        outer(x)  # the first call of a kind is looked into
        outer(x)
        return outer.us

    return work


def fetches(loaders: int) -> Callable[[], float]:
    """Return a function that returns the CPU us of fetching a batch, from so many loaders in turn, in a training."""
    import torch
    from torch.utils.data import DataLoader

    data: Any = [(torch.zeros(8, 8), torch.zeros(8))] * (loaders + WARM_UP + FETCHED)  # the cheapest there are
    weight = torch.zeros(1, requires_grad=True)
    made = [DataLoader(data, batch_size=None) for _ in range(loaders)]

    def fetch(iterators: list[Any], count: int) -> None:
        for i in range(count):
            next(iterators[i % loaders])

    def work() -> float:
        iterators = [iter(loader) for loader in made]
        fetch(iterators, loaders)
        (weight * 2).backward()  # so that the passes are known to train
        fetch(iterators, WARM_UP)
        begin_ns = thread_time_ns()
        fetch(iterators, FETCHED)
        return (thread_time_ns() - begin_ns) / FETCHED / 1e3

    return work


def step() -> Callable[[], float]:
    """Return a function that returns the CPU us of a step of the smallest training."""
    import torch

    from benchmarks.programs.tiny_training import make

    model, criterion = make(), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x_BF, y_B1 = torch.randn(16, 8), torch.randn(16, 1)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = criterion(model(x_BF), y_B1)
            loss.backward()
            optimizer.step()

    def work() -> float:
        train(WARM_UP)
        begin_ns = thread_time_ns()
        train(STEPS)
        return (thread_time_ns() - begin_ns) / STEPS / 1e3

    return work


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().inside:
        json.dump(measure(), sys.stdout)
    else:
        run()
