"""Tracers of torch make what they make without us, and nothing of their calls is recorded."""

import copy
import inspect
import pickle
import re
import sys
from functools import cache
from threading import Event, Thread

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.instrumented import instrumented_torch

X = torch.linspace(-1, 1, 32).reshape(4, 8)
STEPS = 30  # the first of them are inspected
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
torch.export.export(nn.Linear(8, 1), (X,))  # the first export imports much of torch, which changes other modules


class Model(nn.Module):
    """Layers, a method of tensors that has a patch, and what a call does besides."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.inside = None
        self.modules_on_stack = []

    def forward(self, x):
        if not torch.compiler.is_dynamo_compiling():
            frame = sys._getframe()
            while frame is not None:
                self.modules_on_stack.append(str(frame.f_globals.get("__name__")))
                frame = frame.f_back
        if self.inside is not None:
            self.inside()
        return self.layers(x.to("cpu")) * 2


def script_text(module):
    stacks = [node.sourceRange().partition("<lambda>")[0] for node in module.inlined_graph.nodes()]
    text = f"{module.inlined_graph}\n{module.graph}\n{module.code}\n{stacks}"
    return re.sub(r"___torch_mangle_\d+\.", "", text)


def graph_text(module):
    stacks = [(node.name, node.meta.get("stack_trace")) for node in module.graph.nodes]
    return f"{module.graph}\n{module.code}\n{stacks}"


class Traced(nn.Module):
    """Whose function is traced; a constant may not require a gradient."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def both(self, x):
        return self.model(x) + self.model(2 * x)


class OwnTracer(torch.fx.Tracer):
    def __init__(self):
        super().__init__()
        self.record_stack_traces = True

    def trace(self, root, concrete_args=None):
        return torch.fx.GraphModule(root, super().trace(root, concrete_args))

    def is_leaf_module(self, module, name):
        return isinstance(module, nn.ReLU)


def gradients_by_make_fx(model):
    parameters = dict(model.named_parameters())

    def gradients(parameters, x):
        with torch.enable_grad():
            output = torch.func.functional_call(model, parameters, (x,)).sum()
            return torch.autograd.grad(output, list(parameters.values()))

    return graph_text(make_fx(gradients, tracing_mode="fake")(parameters, X))


def shapes_by_fake_tensors(model):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        with mode:
            before = model(torch.empty(4, 8))
        return str((before, model(torch.empty(2, 8))))


TRACERS = {
    "jit.trace": lambda model: script_text(torch.jit.trace(model, X)),
    "jit.trace_module": lambda model: script_text(torch.jit.trace_module(Traced(model), {"both": X}).both),
    "jit.freeze": lambda model: [
        (node.kind(), node.sourceRange().partition("<lambda>")[0])  # not the parameters, which have become constants
        for node in torch.jit.freeze(torch.jit.trace(copy.deepcopy(model).eval(), X)).graph.nodes()
    ],
    "jit._get_trace_graph": lambda model: str(torch.jit._get_trace_graph(model, X)[0]),
    "fx": lambda model: graph_text(torch.fx.symbolic_trace(model)),
    "fx, with a tracer of the program's": lambda model: graph_text(OwnTracer().trace(model)),
    "make_fx": gradients_by_make_fx,
    "export": lambda model: graph_text(torch.export.export(model, (X,)).graph_module),
    "export, strict": lambda model: graph_text(torch.export.export(model, (X,), strict=True).graph_module),
    "fake tensors": shapes_by_fake_tensors,
}
every_tracer = pytest.mark.parametrize("trace", TRACERS.values(), ids=TRACERS)
# A strict export takes seconds; tests/system/test_tracing.py compares those.
QUICK = {name: trace for name, trace in TRACERS.items() if name != "export, strict"}


class Training:
    """A model, and steps of its training, the first of which are inspected."""

    def __init__(self, instrumented, model=None):
        self.instrumented = instrumented
        self.model = model or Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self, steps):
        self.instrumented.train(self.optimizer, lambda: self.model(X).sum(), steps)

    def evaluate(self, inside):
        self.model.eval()
        with torch.no_grad():
            self.model(X)
            inside()
            self.model(X)
        self.model.train()


def moments(training, do):
    """Train, and ``do`` something before the first step, between inspected ones, in evaluations, and after them."""
    do()
    for steps in (1, 2, 4):
        training.run(steps)
        do()
    training.evaluate(do)
    training.run(STEPS)
    do()
    training.evaluate(do)
    training.run(1)
    do()


@pytest.mark.parametrize("trace", QUICK.values(), ids=QUICK)
def test_a_tracer_makes_what_it_makes_without_us_and_nothing_of_it_is_recorded(trace):
    """Of the model that is trained and of another, with stacks; no frame of ours is on that of a call."""
    model, other = Model(), Model()
    alone = {}
    for is_training in (True, False):
        with torch.set_grad_enabled(is_training):
            model.train(is_training)
            alone[is_training] = [trace(each) for each in (model, other, model)]
    model.train()

    def compare(model):
        model.modules_on_stack.clear()
        assert [trace(each) for each in (model, other, model)] == alone[torch.is_grad_enabled()]
        if trace is not shapes_by_fake_tensors:  # nothing keeps a stack of these
            assert not any(name.startswith("training_profiler") for name in model.modules_on_stack)

    assert recorded_with(compare, model) == recorded_without_traces()


def recorded_with(do, model=None):
    with instrumented_torch() as instrumented:
        training = Training(instrumented, model)
        moments(training, lambda: do(training.model))
        assert instrumented.instrumentation.missing == {}
        return instrumented.steps, instrumented.counts()


@cache
def recorded_without_traces():
    return recorded_with(lambda model: None)


@every_tracer
def test_a_trace_inside_a_forward_pass_is_a_part_of_it(instrumented, trace):
    training, other = Training(instrumented), Model()
    training.model.inside = lambda: trace(other)  # also in the very first call
    training.run(4)
    assert instrumented.steps == 4
    assert instrumented.counts()["forward_pass"] == 4


@every_tracer
def test_after_a_trace_that_fails_all_patches_are_back(instrumented, trace):
    training = Training(instrumented)
    training.run(2)
    places = {(id(one.owner), one.name): getattr(one.owner, one.name) for one in replaced(instrumented)}

    def fail():
        raise Boom

    other = Model()
    other.inside = fail
    with pytest.raises(Exception):  # noqa: B017, PT011 (some tracers raise another one)
        trace(other)
    assert {(id(one.owner), one.name): getattr(one.owner, one.name) for one in replaced(instrumented)} == places
    training.run(STEPS)
    assert instrumented.steps == STEPS + 2
    assert instrumented.counts()["forward_pass"] == STEPS + 2


class Boom(Exception):
    pass


def replaced(instrumented):
    return [one for patches in instrumented.context.installed.values() for one in patches._replaced]


def test_patches_are_aside_until_the_outermost_tracer_has_ended(instrumented):
    ours, seen = torch.nn.Module.__call__, []
    model = Model()
    model.inside = lambda: seen.append((torch.nn.Module.__call__, torch.autograd.grad))
    outer = Model()  # a trace by torch.jit may have one by torch.fx in it
    outer.inside = lambda: [
        torch.fx.Tracer().trace(model),
        seen.append((torch.nn.Module.__call__, torch.autograd.grad)),
    ]
    trace_alone(outer)
    assert torch.nn.Module.__call__ is ours
    assert len(seen) >= 2
    assert {call.__qualname__ for call, _ in seen} == {"Module._wrapped_call_impl"}
    assert not any(hasattr(grad, "__wrapped__") for _, grad in seen)


def trace_alone(model):
    return torch.jit.trace(model, X, check_trace=False)


def test_another_thread_may_trace_while_the_training_goes_on(instrumented):
    training, traced = Training(instrumented), Model()
    training.run(12)
    begun, may_end, made = Event(), Event(), []
    traced.inside = lambda: [begun.set(), may_end.wait(60)]
    thread = Thread(target=lambda: made.append(trace_alone(traced)))
    thread.start()
    assert begun.wait(60)
    training.run(3)
    may_end.set()
    thread.join()
    training.run(STEPS)
    assert len(made) == 1
    assert instrumented.steps == 12 + 3 + STEPS
    counts = instrumented.counts()
    assert counts["optimizer_step"] == 12 + 3 + STEPS
    assert counts["forward_pass"] >= 12 + STEPS  # those of the three are not seen


def test_an_instrumentation_that_ends_inside_a_trace_leaves_torch_as_it_was():
    with instrumented_torch() as instrumented:
        training = Training(instrumented)
        training.run(3)
        training.model.inside = instrumented.instrumentation.uninstall
        trace_alone(training.model)


def test_a_training_on_tensors_without_values_makes_no_steps(instrumented):
    training = Training(instrumented)
    training.run(3)
    with FakeTensorMode():
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.empty(4, 8)).sum().backward()
            optimizer.step()
    training.run(3)
    assert instrumented.steps == 6
    counts = instrumented.counts()
    assert [counts[name] for name in ("forward_pass", "backward_pass", "optimizer_step")] == [6, 6, 6]


def test_a_mode_that_was_entered_before_the_patches_may_be_left_after():
    with FakeTensorMode() as mode, instrumented_torch() as instrumented:
        mode.__exit__(None, None, None)
        training = Training(instrumented)
        training.run(3)
        assert instrumented.instrumentation.missing == {}
        assert instrumented.counts()["forward_pass"] == 3
        mode.__enter__()


def test_a_trace_by_a_function_that_was_imported_before_the_patches_is_not_recorded():
    trace = torch.jit.trace
    assert recorded_with(lambda model: trace(model, X)) == recorded_without_traces()


def square_gradient(x):
    return torch.autograd.grad([(x * x).sum()], [x])[0]


def test_scripts_may_compute_gradients(instrumented):
    """Also by a name that was bound while a patch was in place, and after its end."""
    bound = {"grad": torch.autograd.grad, "backward": torch.autograd.backward}
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        for function in bound.values():
            assert torch.jit._builtins._find_builtin(function) == f"aten::{function.__name__}"
        assert torch.jit.script(square_gradient)(x).tolist() == [2, 2]
        instrumented.instrumentation.uninstall()
    assert torch.jit._builtins._find_builtin(torch.autograd.grad) == "aten::grad"


def tracers():
    return torch.jit.trace, torch.jit.trace_module, torch.fx.Tracer.trace, FakeTensorMode.__enter__


def is_pickled(function):
    try:
        return pickle.loads(pickle.dumps(function)) is function
    except pickle.PicklingError:  # once dynamo is imported, torch.jit.trace is not torch.jit._trace.trace
        return False


def test_tracers_are_looked_up_copied_and_pickled_as_without_us(instrumented):
    pickled = list(map(is_pickled, tracers()))
    for function in tracers():
        assert copy.deepcopy(function) is function
        assert inspect.signature(function) == inspect.signature(function.__wrapped__)
        assert function.__doc__ == function.__wrapped__.__doc__
    instrumented.instrumentation.uninstall()
    assert list(map(is_pickled, tracers())) == pickled
    assert pickled[-2:] == [True, True]


def test_what_dynamo_has_wrapped_stays_wrapped():
    """So that nothing is compiled within a trace."""
    torch.compile(nn.Linear(8, 1), backend="eager")(X)
    torch._dynamo.reset()
    before, own = torch.jit.trace, torch.jit._trace.trace
    assert before is not own
    with instrumented_torch():
        assert (torch.jit.trace.__wrapped__, torch.jit._trace.trace.__wrapped__) == (before, own)
        assert script_text(torch.jit.trace(Model(), X))


def test_modes_of_the_program_see_no_operation_of_ours(instrumented):
    """In no step, also where a model is called again with the same input."""
    operations = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            operations.append(str(function))
            return function(*args, **(kwargs or {}))

    training = Training(instrumented)
    for steps in (1, 1, 1, 1, 5, STEPS):
        training.run(steps)
        operations.clear()
        with Log():
            training.model(X)
            training.model(X)
        names = [name.partition(".")[2].partition(".")[0] for name in operations]
        assert set(names) <= {"_to_copy", "t", "addmm", "relu", "detach", "mul"}
        assert names.count("detach") == 2  # of relu
