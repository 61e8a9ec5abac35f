"""Replays of CUDA graphs. A fake class stands for ``torch.cuda.CUDAGraph``, which has no instances without CUDA.

| letter | event of a program (tests/support/script.py) |
| --- | --- |
| `s` `c` `u` | a step, the forward and backward pass of one, its update |
| `t` `v` | a step of another model, an update of it |
| `f` `g` `n` | a call of the model, gradients that torch.autograd.grad returns, a norm of gradients |
| `A{}` `A` | what is in braces is captured; the graph is replayed; so are `B` and `C` |
| `(` `)` `X` | a capture begins, it ends; that graph is replayed |
| `!` | what follows raises |
| `@{}` | on another thread |
| `m{}` `k{}` | a call of a module in which that happens, a step with a module in which it happens before the model |
| `L{}` | for each of four batches of a loader |
| `E` `D` `M` | an update fails, the optimizer is gone, the program marks its steps itself |
"""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.instrumented import InstrumentedTorch, instrumented_torch, on_another_thread
from tests.support.script import Events, events_of
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

    def captured(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        work()
        graph.capture_end()
        return graph


class Inside(nn.Module):
    """A module in whose call something happens, before that of a model if it has one."""

    def __init__(self, work: Callable[[], object], model: nn.Module, calls_model: bool) -> None:
        super().__init__()
        self.work, self.model, self.calls_model = work, model, calls_model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor | None:
        self.work()
        return self.model(inputs) if self.calls_model else None


class Failing(torch.optim.SGD):
    def step(self, closure: object = None) -> None:
        raise MemoryError


class Program:
    """A training that captures and replays."""

    def __init__(self, training: Training) -> None:
        self.training, self.instrumented = training, training.instrumented
        self.other, self.graphs, self.fails, self.replays = Training(self.instrumented), {}, False, 0
        model = training.model
        self.functions: dict[str, Callable[[], object]] = {
            "s": training.step,
            "c": training.compute,
            "u": lambda: training.optimizer.step(),
            "t": self.other.step,
            "v": lambda: self.other.optimizer.step(),
            "f": lambda: model(INPUTS),
            "g": lambda: torch.autograd.grad(model(INPUTS).sum(), model.weight),
            "n": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
            "M": self.instrumented.instrumentation.use_manual_steps,
        }

    def make(self, events: Events) -> None:
        for event, inside in events:
            if event in self.functions:
                self.functions[event]()
            else:
                self.do(event, lambda inside=inside: self.make(inside), bool(inside))

    def do(self, event: str, work: Callable[[], None], has_work: bool) -> None:
        training = self.training
        match event:
            case "A" | "B" | "C" if has_work:
                self.capture(self.graphs.setdefault(event, torch.cuda.CUDAGraph()), work)
            case "A" | "B" | "C" | "X":
                self.replays += not self.fails
                self.on_graph(self.graphs[event], "replay")
            case "(" | ")":
                graph = self.graphs.setdefault("X", torch.cuda.CUDAGraph())
                self.on_graph(graph, {"(": "capture_begin", ")": "capture_end"}[event])
            case "!":
                self.fails = True
            case "@":
                on_another_thread(work)
            case "m":
                Inside(work, training.model, calls_model=False)(INPUTS)
            case "k":
                training.optimizer.zero_grad()
                Inside(work, training.model, calls_model=True)(INPUTS).sum().backward()
                training.optimizer.step()
            case "L":
                for (inputs,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2):
                    torch.zeros(2, 2).copy_(inputs)
                    work()
            case "E":
                with pytest.raises(MemoryError):
                    Failing(training.model.parameters(), lr=0.1).step()
            case "D":
                del training.optimizer
                gc.collect()

    def capture(self, graph: torch.cuda.CUDAGraph, work: Callable[[], None]) -> None:
        """Capture, which begins no session and counts nothing."""
        before = self.seen()
        graph.capture_begin()
        work()
        graph.capture_end()
        assert self.seen() == before

    def seen(self) -> tuple[int, ...]:
        detector = self.instrumented.context.detector
        counted = () if detector is None else (detector.backwards, detector.updates)
        return (self.instrumented.sessions, self.instrumented.steps, *counted)

    def on_graph(self, graph: torch.cuda.CUDAGraph, method: str) -> None:
        if self.fails:
            self.fails, graph.error = False, RuntimeError("CUDA error")
            with pytest.raises(RuntimeError, match="CUDA error"):
                getattr(graph, method)()
            graph.error = None
        else:
            getattr(graph, method)()


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


LETTERS = {"forward_pass": "f", "backward_pass": "b", "optimizer_step": "u", "graph_replay": "r", "data_loading": "d"}
# What a program does, the counts of its sections, its steps, and updates on other threads.
PROGRAMS = {
    "a step is captured": ("3s A{s} 200A", "f3 b3 u3 r200", 203, 0),
    "a step, when nothing was trained before": ("A{s} 4A", "r4", 4, 0),
    "several updates are one step": ("3s A{5s} 4A", "f3 b3 u3 r4", 7, 0),
    "two optimizers are one step": ("3s A{st} 4A", "f3 b3 u3 r4", 7, 0),
    "two optimizers from the first step on": ("A{st} 4A", "r4", 4, 0),
    "without gradients": ("3s A{fg} 5A", "f3 b3 u3", 3, 0),
    "a capture makes no step and nothing in it is counted": ("3s A{ssn}", "f3 b3 u3", 3, 0),
    "manual steps are not ended by replays": ("3s M A{s} 4A", "f3 b3 u3 r4", 3, 0),
    "passes over a loader with replays alone are training": ("3s A{s} 3[L{A}]", "d12 first_fetch3 f3 b3 u3 r12", 15, 0),
    "accumulated gradients end no step": ("3s A{c}B{u} 4[2AB]", "f3 b3 u3 r12", 7, 0),
    "an update after the replay of gradients ends the step": ("3s A{c} 4[Au]", "f3 b3 u7 r4", 7, 0),
    "an update that raised comes before": ("3s A{s} cE4A", "f4 b4 u4 r4", 7, 0),
    "a graph of another thread may be replayed in the training": ("3s @{A{s}} 4A", "f3 b3 u3 r4", 7, 0),
    "a capture on another thread hides nothing of the training": ("3s @{A{@{t}v}} 3s", "f6 b6 u6", 6, 1),
    "updates on another thread are counted as updates there": ("3s A{s}B{c} @{A}@{B}", "f3 b3 u3", 3, 1),
    "a replay that raises ends no step": ("3s A{s} !A A", "f3 b3 u3 r2", 4, 0),
    "a capture fails at its begin": ("3s !(X 3s", "f6 b6 u6", 6, 0),
    "a capture fails at its end": ("3s (s!)X 3s", "f6 b6 u6", 6, 0),
    "a capture may end on another thread": ("3s (s@{)}X 3s", "f6 b6 u6 r1", 7, 0),
    "a graph is what was captured last": ("3s A{s}A{f}A", "f3 b3 u3", 3, 0),
    "and is captured again": ("3s A{s}A{f}A A{s}A", "f3 b3 u3 r1", 4, 0),
    "a replay inside a capture is a part of that graph": ("3s A{s}B{A}B", "f3 b3 u3 r1", 4, 0),
    "their optimizer is gone": ("3s A{s}A D4A", "f3 b3 u3 r5", 8, 0),
    "a module that replays the step makes no forward pass": ("A{s} 4[m{A}]", "r4", 4, 0),
    "a graph that is captured inside a forward pass leaves it one span": ("3[k{A{f}}]", "f3 b3 u3", 3, 0),
}


@pytest.mark.parametrize(("program", "counts", "steps", "elsewhere"), PROGRAMS.values(), ids=PROGRAMS)
def test_replays_of_captured_updates_are_steps(training, instrumented, program, counts, steps, elsewhere):
    instrumented.loaders = LoaderRegistry()
    made = Program(training)
    made.make(events_of(program))
    assert made.replays == sum(graph.replays for graph in made.graphs.values())
    found = [f"{LETTERS.get(name, name)}{count}" for name, count in instrumented.counts().items()]
    assert (" ".join(found), instrumented.steps) == (counts, steps)
    assert instrumented.context.updates_on_other_threads == elsewhere
    assert instrumented.context.training_thread.busy_with == FREE


def test_the_time_of_a_replay_is_that_of_its_section(training, instrumented, graph_class):
    training.warm_up()
    graph = training.captured(training.step)
    graph._call = lambda: instrumented.clock.advance(1.0)
    graph.replay()
    instrumented.instrumentation.close()
    names = {name: id for id, name in instrumented.run.names.names.items()}
    total_ns = instrumented.run.totals().sections.total_ns[names["graph_replay"]]
    assert 1e9 <= total_ns < 1.001e9


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


def test_graphs_are_forgotten_with_their_last_reference(training, instrumented):
    captures = instrumented.context.captures
    graph = training.captured(training.step)
    assert len(captures._training) == 1
    del graph
    gc.collect()
    assert captures._training == {}
    assert captures.under_way == {}


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


def test_looking_at_early_steps_ends_with_the_first_replay(training, instrumented):
    training.warm_up()
    instrumented.instrumentation.early_steps.begin(0)
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
