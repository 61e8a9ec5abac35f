"""Replays of CUDA graphs. A fake class stands for ``torch.cuda.CUDAGraph``, which has no instances without CUDA."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.instrumented import InstrumentedTorch, instrumented_torch
from training_profiler.instrumentation.context import FREE
from training_profiler.instrumentation.graph_captures import CapturedGraph
from training_profiler.instrumentation.loop_detection.optimizer_update import OptimizerUpdate
from training_profiler.recording.data_loader import LoaderRegistry

INPUTS = torch.ones(4, 2)


class BaseGraph:
    """The class in C++, from which torch's own inherits."""

    error: Exception | None = None
    replays = 0

    def _call(self) -> None:
        if self.error is not None:
            raise self.error

    capture_begin = capture_end = _call

    def replay(self) -> None:
        self._call()
        self.replays += 1


class Training:
    """A model and an optimizer whose steps can be captured."""

    def __init__(self, instrumented: InstrumentedTorch) -> None:
        self.instrumented = instrumented
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def compute(self) -> None:
        self.model(INPUTS).sum().backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.compute()
        self.optimizer.step()

    def warm_up(self, steps: int = 3) -> None:
        for _ in range(steps):
            self.step()

    def captured(self, *work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            for one in work:
                one()
        return graph


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()


@pytest.fixture
def graph_class(monkeypatch) -> type:
    class CUDAGraph(BaseGraph):
        def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
            super().capture_begin()

        def capture_end(self) -> None:
            super().capture_end()

        def replay(self) -> None:
            super().replay()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
    return CUDAGraph


@pytest.fixture
def instrumented(graph_class) -> Iterator[InstrumentedTorch]:
    before = dict(vars(graph_class))
    with instrumented_torch() as one:
        yield one
    assert dict(vars(graph_class)) == before


@pytest.fixture
def training(instrumented) -> Training:
    return Training(instrumented)


def gradient(training: Training) -> object:
    return torch.autograd.grad(training.model(INPUTS).sum(), training.model.weight)


# What is captured, steps before, replays, and how many of them are steps.
CAPTURED = {
    "a step": (lambda training: [training.step], 3, 200, 200),
    "a step, when nothing was trained before": (lambda training: [training.step], 0, 4, 4),
    "several updates are one step": (lambda training: [training.step] * 5, 3, 4, 4),
    "two optimizers are one step": (lambda training: [training.step, Training(training.instrumented).step], 3, 4, 4),
    "two optimizers from the first step on": (
        lambda training: [training.step, Training(training.instrumented).step],
        0,
        4,
        4,
    ),
    "without gradients": (lambda training: [lambda: training.model(INPUTS), lambda: gradient(training)], 3, 5, 0),
}


@pytest.mark.parametrize(("work", "warm_up", "replays", "steps"), CAPTURED.values(), ids=CAPTURED)
def test_replays_of_captured_updates_are_steps(training, instrumented, work, warm_up, replays, steps):
    training.warm_up(warm_up)
    graph = training.captured(*work(training))
    assert instrumented.sessions == (warm_up > 0)
    for _ in range(replays):
        graph.replay()
    assert graph.replays == replays
    recorded = {"forward_pass": warm_up, "backward_pass": warm_up, "optimizer_step": warm_up, "graph_replay": steps}
    assert instrumented.counts() == {name: count for name, count in recorded.items() if count}
    assert instrumented.steps == warm_up + steps


def test_a_capture_makes_no_step_and_nothing_in_it_is_counted(training, instrumented):
    training.warm_up(3)
    detector = instrumented.context.detector
    before = detector.backwards, detector.updates
    training.captured(training.step, training.step, lambda: nn.utils.clip_grad_norm_(training.model.parameters(), 1.0))
    assert (detector.backwards, detector.updates) == before
    assert "metrics_computation" not in instrumented.counts()
    assert instrumented.steps == 3


def test_manual_steps_are_not_ended_by_replays(training, instrumented):
    training.warm_up()
    instrumented.instrumentation.use_manual_steps()
    graph = training.captured(training.step)
    for _ in range(4):
        graph.replay()
    assert instrumented.counts()["graph_replay"] == 4
    assert instrumented.steps == 3


def test_the_time_of_a_replay_is_that_of_its_section(training, instrumented, graph_class):
    training.warm_up()
    graph = training.captured(training.step)
    graph._call = lambda: instrumented.clock.advance(1.0)
    graph.replay()
    instrumented.instrumentation.close()
    names = {name: id for id, name in instrumented.run.names.names.items()}
    total_ns = instrumented.run.totals().sections.total_ns[names["graph_replay"]]
    assert 1e9 <= total_ns < 1.001e9


def test_passes_over_a_loader_with_replays_alone_are_training(training, instrumented):
    instrumented.loaders = LoaderRegistry()
    training.warm_up()
    graph = training.captured(training.step)
    static = torch.zeros(2, 2)
    for _ in range(3):
        for (inputs,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2):
            static.copy_(inputs)
            graph.replay()
    counts = instrumented.counts()
    assert (counts["data_loading"], counts["graph_replay"]) == (12, 12)
    assert "validation_epoch" not in counts
    assert instrumented.steps == 3 + 12


def test_gradients_that_are_accumulated_by_replays_end_no_step(training, instrumented):
    training.warm_up()
    compute, update = training.captured(training.compute), training.captured(training.optimizer.step)
    for _ in range(4):
        for _ in range(2):
            compute.replay()
        update.replay()
    assert instrumented.counts()["graph_replay"] == 12
    assert instrumented.steps == 3 + 4


def test_an_update_after_the_replay_of_gradients_ends_the_step(training, instrumented):
    training.warm_up()
    compute = training.captured(training.compute)
    for _ in range(4):
        compute.replay()
        training.optimizer.step()
    counts = instrumented.counts()
    assert (counts["graph_replay"], counts["optimizer_step"], counts["backward_pass"]) == (4, 7, 3)
    assert instrumented.steps == 3 + 4


def test_an_update_inside_another_is_a_part_of_it(training, instrumented):
    inner = training.optimizer

    class Outer(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            inner.step()
            super().step()

    outer = Outer([nn.Parameter(torch.zeros(1))], lr=0.1)
    training.optimizer = outer
    graph = training.captured(training.step)
    captured = instrumented.context.captures.training_graph(graph)
    assert captured.optimizers() == [outer]


def test_an_optimizer_whose_step_is_a_replay_ends_one_step(training, instrumented):
    graph = training.captured(training.optimizer.step)

    class Replaying(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            graph.replay()

    training.optimizer = Replaying(training.model.parameters(), lr=0.1)
    training.warm_up(4)
    counts = instrumented.counts()
    assert (counts["optimizer_step"], instrumented.steps) == (4, 4)
    assert "graph_replay" not in counts


def test_replays_count_after_an_update_that_raised(training, instrumented):
    class Failing(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            raise MemoryError

    training.warm_up()
    graph = training.captured(training.step)
    training.compute()
    with pytest.raises(MemoryError):
        Failing(training.model.parameters(), lr=0.1).step()
    for _ in range(4):
        graph.replay()
    assert instrumented.counts()["graph_replay"] == 4
    assert instrumented.steps == 3 + 4


def test_a_capture_under_way_when_the_profiler_starts_is_left_alone(graph_class):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    graph = graph_class()
    graph.capture_begin()
    with instrumented_torch() as instrumented:
        optimizer.step()
        graph.capture_end()
        graph.replay()
        assert "graph_replay" not in instrumented.counts()


def test_patches_removed_during_a_capture_leave_nothing(graph_class):
    with instrumented_torch() as instrumented:
        graph = graph_class()
        graph.capture_begin()
        instrumented.instrumentation.uninstall()
        graph.capture_end()
        graph.replay()
    assert graph.replays == 1


def on_another_thread(work: Callable[[], object]) -> None:
    thread = Thread(target=work)
    thread.start()
    thread.join()


def test_a_graph_of_another_thread_may_be_replayed_in_the_training(training, instrumented):
    training.warm_up()
    graphs: list[torch.cuda.CUDAGraph] = []
    on_another_thread(lambda: graphs.append(training.captured(training.step)))
    assert instrumented.context.updates_on_other_threads == 0
    for _ in range(4):
        graphs[0].replay()
    assert instrumented.counts()["graph_replay"] == 4
    assert instrumented.steps == 3 + 4


def test_a_capture_on_another_thread_hides_nothing_of_the_training(training, instrumented):
    training.warm_up()
    other = Training(instrumented)
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with capturing(graph):
            on_another_thread(other.step)  # the training goes on, here on yet another thread
            other.optimizer.step()

    on_another_thread(capture)
    training.warm_up()
    assert instrumented.context.updates_on_other_threads == 1
    assert instrumented.counts()["forward_pass"] == 6
    assert instrumented.steps == 6


def test_replays_of_updates_on_another_thread_are_counted_as_updates_there(training, instrumented):
    training.warm_up()
    graph, gradients = training.captured(training.step), training.captured(training.compute)
    on_another_thread(graph.replay)
    on_another_thread(gradients.replay)
    assert instrumented.context.updates_on_other_threads == 1
    assert instrumented.steps == 3


def test_a_replay_that_raises_ends_no_step(training, instrumented):
    training.warm_up()
    graph = training.captured(training.step)
    graph.error = RuntimeError("CUDA error")
    with pytest.raises(RuntimeError, match="CUDA error"):
        graph.replay()
    graph.error = None
    graph.replay()
    assert instrumented.steps == 3 + 1


@pytest.mark.parametrize("fails_at", ["begin", "end"])
def test_after_a_capture_that_failed_the_training_is_recorded_again(training, instrumented, fails_at):
    training.warm_up()
    graph = torch.cuda.CUDAGraph()
    if fails_at == "end":
        graph.capture_begin()
        training.step()
    graph.error = RuntimeError("capture failed")
    with pytest.raises(RuntimeError, match="capture failed"):
        (graph.capture_end if fails_at == "end" else graph.capture_begin)()
    graph.error = None
    graph.replay()
    assert instrumented.steps == 3
    training.warm_up()
    assert instrumented.counts()["forward_pass"] == 6
    assert instrumented.steps == 6


def test_a_capture_may_end_on_another_thread(training, instrumented):
    training.warm_up()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    training.step()
    on_another_thread(graph.capture_end)
    graph.replay()
    training.warm_up()
    assert instrumented.counts()["forward_pass"] == 6
    assert instrumented.steps == 3 + 1 + 3


def test_a_graph_is_what_was_captured_last(training, instrumented):
    training.warm_up()
    graph = training.captured(training.step)
    with capturing(graph):
        training.model(INPUTS)
    graph.replay()
    assert instrumented.steps == 3
    with capturing(graph):
        training.step()
    gc.collect()
    graph.replay()
    assert instrumented.steps == 3 + 1


def test_a_replay_inside_a_capture_is_a_part_of_that_graph(training, instrumented):
    training.warm_up()
    inner = training.captured(training.step)
    outer = training.captured(inner.replay)
    assert instrumented.steps == 3
    outer.replay()
    assert instrumented.steps == 3 + 1


def test_graphs_are_forgotten_with_their_last_reference(training, instrumented):
    captures = instrumented.context.captures
    graph = training.captured(training.step)
    assert len(captures._training) == 1
    del graph
    gc.collect()
    assert captures._training == {}
    assert captures.under_way == {}


def test_replays_go_on_as_steps_when_their_optimizer_is_gone(training, instrumented):
    training.warm_up()
    graph = training.captured(training.step)
    graph.replay()
    del training.optimizer
    gc.collect()
    for _ in range(4):
        graph.replay()
    assert instrumented.counts()["graph_replay"] == 5
    assert instrumented.steps == 3 + 5


def test_a_module_that_replays_the_step_makes_no_forward_pass(training, instrumented):
    graph = training.captured(training.step)

    class Trainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = training.model

        def forward(self, inputs: torch.Tensor) -> None:
            graph.replay()

    trainer = Trainer()
    for _ in range(4):
        trainer(INPUTS)
    assert instrumented.counts() == {"graph_replay": 4}
    assert instrumented.steps == 4


class Graphed(torch.autograd.Function):
    """As torch.cuda.make_graphed_callables makes it: passes of a module by replays."""

    graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        Graphed.graphs[0].replay()
        return inputs.detach().sum(1)

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        Graphed.graphs[1].replay()
        return None, torch.ones(1, 2)


def test_graphed_callables_make_no_further_steps_and_sections(training, instrumented):
    forward = training.captured(lambda: training.model(INPUTS))
    backward = training.captured(lambda: torch.autograd.grad(training.model(INPUTS).sum(), training.model.weight))
    Graphed.graphs = forward, backward
    training.model.forward = lambda inputs: Graphed.apply(inputs, training.model.weight)
    training.warm_up(4)
    assert instrumented.counts() == {"forward_pass": 4, "backward_pass": 4, "optimizer_step": 4}
    assert (forward.replays, backward.replays) == (4, 4)
    assert instrumented.steps == 4


def test_a_graph_that_is_captured_inside_a_forward_pass_leaves_it_one_span(training, instrumented):
    inner = nn.Linear(2, 2)

    class Capturing(nn.Module):  # as compiled functions do at an early call
        def __init__(self) -> None:
            super().__init__()
            self.model = training.model

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            training.captured(lambda: inner(inputs))
            return self.model(inner(inputs))

    model = Capturing()
    for _ in range(3):
        training.optimizer.zero_grad()
        model(INPUTS).sum().backward()
        training.optimizer.step()
    assert instrumented.counts() == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}
    assert instrumented.context.training_thread.busy_with == FREE


def test_looking_at_early_steps_ends_with_the_first_replay(training, instrumented):
    training.warm_up()
    instrumented.instrumentation.early_steps.begin()
    graph = training.captured(training.step)
    assert "update_ends" in vars(instrumented.context.detector)
    graph.replay()
    assert "update_ends" not in vars(instrumented.context.detector)
    assert instrumented.steps == 3 + 1


def test_the_reason_is_given_where_no_step_was_counted_because_all_are_replayed(training, instrumented):
    graph = training.captured(training.step)
    for number in range(1, 13):
        graph.replay()
        instrumented.instrumentation.flops.step_ended(number)
    assert instrumented.instrumentation.flops.why_not == (
        "steps are replays of a CUDA graph, whose operations are not seen"
    )


@pytest.mark.parametrize(("owner", "method"), [(OptimizerUpdate, "replay_begins"), (CapturedGraph, "optimizers")])
def test_an_error_of_the_profilers_disables_it_and_the_replay_goes_on(
    training, instrumented, monkeypatch, owner, method
):
    training.warm_up()
    graph = training.captured(training.step)
    monkeypatch.setattr(owner, method, None)
    graph.replay()
    assert graph.replays == 1
    assert "all patches" in instrumented.instrumentation.missing
    graph.replay()
    assert graph.replays == 2
    instrumented.instrumentation.missing.clear()
