"""Cost of the patches in one process, installed and removed in turns: ``python -m benchmarks.patches``.

It measures a module call inside another, as nearly all module calls are; the step of the smallest training, with each
patch alone and with all; the fetch of a batch, from one loader and from two alternating ones; and moving a tensor to a
device, and to another dtype. Costs of a session (draining, sums, journal, reports, sampling) are not included; see
``unmodified_training``.
"""

import argparse
import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final
from unittest.mock import patch

from benchmarks.children import result_of
from benchmarks.figures import Figure, print_figures, print_table, spread

INNER_TARGET_US: Final = 0.2
INNER_CALLS: Final = 1000
INNER_ROUNDS: Final = 300
STEPS: Final = 100
STEP_ROUNDS: Final = 40
WARM_UP: Final = 150  # changing a class resets the interpreter's specialized lookups
FETCHED: Final = 400
FETCH_ROUNDS: Final = 40
MOVED: Final = 200
MOVES: Final = ("device", "dtype")
FETCHES: Final = {"one loader": 1, "two alternating": 2}  # how many loaders
NONE, ALL = "none", "all patches"
ALONE: Final = ("forward pass", "backward pass", "optimizer")
UPDATES_BEFORE: Final = 1 << 14  # of a training, late in a run


def skip_early_steps(instrumentation: Any) -> None:
    """Go on as after the first steps of a run, in each of which patches that were just installed look at more."""
    detector = instrumentation.context.detector
    if detector is not None:
        detector.updates = UPDATES_BEFORE
        detector.input_sizes.update_ends(UPDATES_BEFORE, perf_counter_ns())
        instrumentation.program.stop()
        instrumentation.context.fronts.place()


def run() -> list[Figure]:
    """Measure, print and return the cost of a module call that is not outermost; takes about a minute."""
    measured = result_of("benchmarks.patches", "--inside", is_on=False)
    us: dict[str, list[float]] = measured["call us"]
    added = [on - off for on, off in zip(us[ALL], us[NONE], strict=True)]
    print(f"A module call inside another: CPU us, {len(added)} interleaved rounds of {INNER_CALLS} calls")
    rows = [[name, f"{min(values):.3f}", *_cells(values)] for name, values in us.items()]
    least = min(us[ALL]) - min(us[NONE])
    print_table(["patches", "best", "median", "quartiles"], [*rows, ["difference", f"{least:.3f}", *_cells(added)]])

    us = measured["step us"]
    print(f"A step of 0.25 ms: CPU us, {len(us[NONE])} interleaved rounds of {STEPS} steps")
    rows = []
    for name, values in us.items():
        differences = [on - off for on, off in zip(values, us[NONE], strict=True)]
        rows.append([name, f"{min(values):.1f}", f"{min(values) - min(us[NONE]):+.1f}", *_cells(differences, 1)])
    print_table(["patches", "best", "added, of the best", "added, median", "quartiles"], rows)
    calls = {name: f"Fetches of a batch, {name}: CPU us, {{}} interleaved rounds of {FETCHED}" for name in FETCHES}
    calls |= {name: f"Tensors moved to a {name}: CPU us, {{}} interleaved rounds of {MOVED}" for name in MOVES}
    for call, title in calls.items():
        us = measured[call]
        added = [on - off for on, off in zip(us[ALL], us[NONE], strict=True)]
        print(title.format(len(added)))
        least = min(us[ALL]) - min(us[NONE])
        rows = [[name, f"{min(values):.3f}", *_cells(values)] for name, values in us.items()]
        print_table(["patches", "best", "median", "quartiles"], [*rows, ["difference", f"{least:.3f}", *_cells(added)]])
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


class SwitchablePatches:
    """Installs patches as a run would, and removes them."""

    def __init__(self) -> None:
        from training_profiler.recording.data_loader import LoaderRegistry
        from training_profiler.recording.recorder import NO_LIMIT, Recorder, TrainingProgress
        from training_profiler.runtime.instrumentation import PATCHES, Instrumentation

        self.names = tuple(PATCHES)
        self._all, self._table = dict(PATCHES), PATCHES
        self._recorder = Recorder()  # without a session: events are discarded
        self._recorder.be_quiet(TrainingProgress(), NO_LIMIT, NO_LIMIT)  # nearly all steps of a run end without one
        loaders = LoaderRegistry()
        self._instrumentation = Instrumentation(self._recorder, lambda: lambda at_ns: None, lambda: loaders)

    def install(self, names: tuple[str, ...]) -> None:
        """Install the patches of these names, and no others."""
        import torch

        with patch.dict(self._table, {name: self._all[name] for name in names}, clear=True):
            self._instrumentation.install(torch)

    def skip_early_steps(self) -> None:
        """Let the patches, of which a few steps were seen, record steps as late in a run."""
        skip_early_steps(self._instrumentation)

    def uninstall(self) -> None:
        """Remove all patches, and discard what they recorded."""
        self._instrumentation.uninstall()
        self._recorder.discard()


def in_turns(
    patches: SwitchablePatches, sets: dict[str, tuple[str, ...]], rounds: int, work: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the results of ``work`` with each set of patches, one per round."""
    values: dict[str, list[float]] = {name: [] for name in sets}
    for number in range(-1, rounds):
        for name in list(sets) if number % 2 else list(reversed(sets)):
            patches.install(sets[name])
            us = work()
            patches.uninstall()
            if number >= 0:
                values[name].append(us)
    return values


def measure() -> dict[str, Any]:
    """Return the CPU us of calls and of steps, by installed patches."""
    import torch

    torch.set_num_threads(1)
    patches = SwitchablePatches()
    both = {NONE: (), ALL: patches.names}
    rest = tuple(name for name in patches.names if name not in ALONE)
    sets = {NONE: (), **{name: (name,) for name in ALONE}, "all others": rest, ALL: patches.names}
    return {
        "call us": in_turns(patches, both, INNER_ROUNDS, inner_call()),
        "step us": in_turns(patches, sets, STEP_ROUNDS, step()),
        **{name: in_turns(patches, both, FETCH_ROUNDS, fetches(count)) for name, count in FETCHES.items()},
        **{name: in_turns(patches, both, FETCH_ROUNDS, moves(name)) for name in MOVES},
    }


def inner_call() -> Callable[[], float]:
    """Return a function that returns the CPU us of calling an empty module inside another."""
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
        outer(x)  # the first call of a class is inspected
        outer(x)
        return outer.us

    return work


def fetches(loaders: int) -> Callable[[], float]:
    """Return a function that returns the CPU us of fetching a batch in a training, from ``loaders`` loaders in turn."""
    import torch
    from torch.utils.data import DataLoader

    data: Any = [(torch.zeros(8, 8), torch.zeros(8))] * (loaders + WARM_UP + FETCHED)  # the cheapest batches possible
    weight = torch.zeros(1, requires_grad=True)
    made = [DataLoader(data, batch_size=None) for _ in range(loaders)]

    def fetch(iterators: list[Any], count: int) -> None:
        for i in range(count):
            next(iterators[i % loaders])

    def work() -> float:
        iterators = [iter(loader) for loader in made]
        fetch(iterators, loaders)
        (weight * 2).backward()  # a backward pass marks the loader passes as training
        fetch(iterators, WARM_UP)
        begin_ns = thread_time_ns()
        fetch(iterators, FETCHED)
        return (thread_time_ns() - begin_ns) / FETCHED / 1e3

    return work


def moves(where: str) -> Callable[[], float]:
    """Return a function that returns the CPU us of moving a tensor, one of ``MOVES``, in a training."""
    import torch

    x, weight = torch.zeros(1), torch.zeros(1, requires_grad=True)
    to = {"device": torch.device("cpu"), "dtype": torch.float64}[where]

    def move(count: int) -> None:
        for _ in range(count):
            x.to(to)

    def work() -> float:
        (weight * 2).backward()  # from then on it is a training
        move(WARM_UP)
        begin_ns = thread_time_ns()
        move(MOVED)
        return (thread_time_ns() - begin_ns) / MOVED / 1e3

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
