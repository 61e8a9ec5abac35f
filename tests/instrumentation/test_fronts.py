"""Fronts in C make and record the calls that the patches make and record, and only calls meet one."""

import gc
import inspect
import pickle
import sys
import threading
import traceback
import weakref
from contextlib import suppress
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.support.instrumented import OPTIMIZER, InstrumentedTorch, instrumented_torch
from tests.support.recording import implementation_of, python_implementation
from training_profiler.instrumentation.fronts import BACKWARD, MODULE, TRACER, Fronts
from training_profiler.instrumentation.loop_detection import input_sizes
from training_profiler.instrumentation.patches import dynamo
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.event_codes import Fields


@pytest.fixture
def fronts():
    """An instrumentation with fronts."""
    with instrumented_torch(implementation_of("C")) as one:
        one.place_fronts()
        yield one


@pytest.fixture
def patched():
    """One whose fronts are not in place yet."""
    with instrumented_torch(implementation_of("C")) as one:
        yield one


@pytest.fixture
def compiler():
    """A dynamo that has compiled something, as it changes other modules then; ask for it before the instrumentation."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Boom(Exception):
    pass


class Model(torch.nn.Module):
    """Two layers, and what happens inside of the next call."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.inside = None

    def forward(self, x, scale=1.0):
        x = self.layers(x) * scale
        inside, self.inside = self.inside, None
        if inside is not None:
            inside()
        return x


class Agent(torch.nn.Module):
    """A policy that is not called itself."""

    def __init__(self, model):
        super().__init__()
        self.model, self.critic = model, torch.nn.Linear(2, 1)

    def value(self, x):
        return self.critic(self.model(x))


def is_front(value):
    return type(value).__name__ == "Front"


def places():
    """Return what stands in each place that has a front."""
    hooks = (OPTIMIZER._global_optimizer_pre_hooks, OPTIMIZER._global_optimizer_post_hooks)
    return [
        vars(torch.nn.Module)["__call__"],
        vars(torch.utils.data.dataloader._BaseDataLoaderIter)["__next__"],
        *(list(hook.values())[-1] for hook in hooks),
    ]


def train(model, steps=3, **named):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader([torch.ones(2)] * steps, batch_size=None):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x, **named), torch.zeros(2)).backward()
        optimizer.step()


class Program:
    """A training whose calls come in any order."""

    def __init__(self, run: InstrumentedTorch):
        torch.manual_seed(0)
        self.run = run
        self.models = [Model(), Model()]
        self.agent = Agent(self.models[0])
        self.criterion = torch.nn.MSELoss()
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in self.models]
        self.x, self.loss, self.losses = torch.ones(2, 2), None, []
        self.iterators = [self._iterator(), self._iterator()]

    def _iterator(self):
        return iter(DataLoader(torch.ones(5, 2), batch_size=2))

    def follow(self, acts):
        for act, number, inside in acts:
            with suppress(Boom):
                getattr(self, act)(number % 2, inside)

    def call(self, number, inside):
        model = self.models[number]
        model.inside = (lambda: self.follow(inside)) if inside else None
        self.loss = self.criterion(model(self.x), torch.zeros(2, 2))
        self.losses.append(self.loss.item())

    def named_call(self, number, inside):
        self.loss = self.models[number](self.x, scale=2.0).sum()

    def call_alone(self, number, inside):
        self.models[number](self.x)

    def evaluation(self, number, inside):
        self.models[number].eval()
        with torch.no_grad():
            self.losses.append(self.criterion(self.models[number](self.x), torch.zeros(2, 2)).item())
        self.models[number].train()

    def act(self, number, inside):
        with torch.no_grad():
            for _ in range(3):
                self.models[number](self.x)

    def act_in_eval_mode(self, number, inside):
        self.models[number].eval()
        self.act(number, inside)
        self.models[number].train()

    def rehearse(self, number, inside):
        self.act(number, inside)

    def infer_in_both_modes(self, number, inside):
        with torch.no_grad():
            for is_training in (True, True, False, False):
                self.models[number].train(is_training)(self.x)

    def act_in_method(self, number, inside):
        with torch.no_grad():
            for _ in range(3):
                self.losses.append(self.agent.value(self.x).sum().item())

    def call_in_method(self, number, inside):
        self.loss = self.agent.value(self.x).sum()

    def failing_call(self, number, inside):
        self.models[number].inside = self._fail
        self.models[number](self.x)

    def _fail(self):
        raise Boom

    def backward(self, number, inside):
        if self.loss is not None:
            loss, self.loss = self.loss, None
            loss.backward(retain_graph=bool(number))

    def failing_backward(self, number, inside):
        with suppress(RuntimeError):
            torch.zeros(2, requires_grad=True).backward()

    def clear(self, number, inside):
        self.optimizers[number].zero_grad()

    def clear_model(self, number, inside):
        self.models[number].zero_grad(set_to_none=True)

    def update(self, number, inside):
        self.optimizers[number].step()

    def update_with_closure(self, number, inside):
        def closure():
            loss = self.models[number](self.x).sum()
            loss.backward()
            return loss

        self.optimizers[number].step(closure)

    def fetch(self, number, inside):
        try:
            self.losses.append(next(self.iterators[number]).sum().item())
        except StopIteration:
            self.iterators[number] = self._iterator()

    def step(self, number, inside):
        for act in (self.fetch, self.clear, self.call, self.backward, self.update):
            act(number, inside)

    def elsewhere(self, number, inside):
        thread = threading.Thread(target=self.follow, args=[inside])
        thread.start()
        thread.join()


LEAVES = ("act", "rehearse", "infer_in_both_modes", "act_in_eval_mode", "act_in_method", "call_in_method")
LEAVES += ("named_call", "call_alone", "evaluation", "failing_call", "backward", "failing_backward", "clear")
LEAVES += ("clear_model", "update", "update_with_closure", "fetch", "step", "step", "step")
LEAF = st.tuples(st.sampled_from(LEAVES), st.integers(0, 1), st.just([]))
ACT = st.recursive(
    LEAF,
    lambda acts: st.tuples(
        st.sampled_from(("call", "step", "elsewhere")), st.integers(0, 1), st.lists(acts, max_size=3)
    ),
    max_leaves=6,
)


def outcome_of(implementation, acts, is_early, has_fronts):
    """Return everything that can be seen of a program, and what was recorded of it."""
    most = 4096 if is_early else 0  # calls without gradients whose inputs are looked at
    with patch.object(input_sizes, "CALLS", most), instrumented_torch(implementation) as run:
        if has_fronts:
            run.place_fronts()
        program = Program(run)
        program.follow([("step", 0, []), ("step", 0, [])])
        if not is_early:
            run.instrumentation.program.stop()  # as after the first step of a run
            run.context.detector.input_sizes.is_due = False
        program.follow(acts)
        detector, thread = run.context.detector, run.context.training_thread
        uses = detector.phases.run.uses.values() if detector.phases.run else ()
        seen = (
            [
                (use.run.latest is use, use.run.key, use.run.calls, use.calls, use.end_ns, use.is_evaluated)
                for use in uses
            ],
            detector.updates,
            detector.backwards,
            thread.busy_with,
            len(detector.calls),
            run.context.open_updates.open,
        )
        marks = [list(run.run.recorder.buffer().events), run.steps]
        assert run.instrumentation.missing == {}
        run.instrumentation.close()
        totals = run.run.totals()
        return program.losses, seen, marks, totals.sections.count.tolist(), totals.dropped, totals.wall_ns


def twice(*acts):
    return [(act, 0, []) for act in 2 * acts]


@settings(max_examples=30)
@given(st.lists(ACT, max_size=12), st.booleans())
@example(twice("act", "step"), False)
@example(twice("act_in_method", "step"), False)
@example(twice("infer_in_both_modes"), False)
@example(twice("act", "rehearse"), False)
@example([("act", number, []) for number in (0, 1, 0)], False)
@example(twice("act", "act_in_eval_mode", "step"), False)
@example(twice("act", "evaluation", "act", "step"), False)
def test_fronts_record_what_the_patches_do(acts, is_early):
    outcomes = [outcome_of(implementation_of("C"), acts, is_early, has_fronts) for has_fronts in (True, False)]
    assert outcomes[0] == outcomes[1]


def test_fronts_stand_where_calls_come_by(fronts):
    assert all(map(is_front, places()))
    fronts.context.fronts.withdraw()
    assert not any(map(is_front, places()))
    fronts.context.fronts.place()  # nothing was traced meanwhile
    assert all(map(is_front, places()))


def test_usual_calls_have_no_frame_of_ours(fronts):
    seen = []

    class Observed(Model):
        def forward(self, x):
            seen.append(any("training_profiler" in frame.filename for frame in traceback.extract_stack()))
            return super().forward(x)

    model = Observed()
    train(model, 70)  # sizes of inputs are read in the first steps
    fronts.instrumentation.program.stop()  # as after the first step of a run
    before, seen[:] = fronts.instrumentation.repeated_calls, []
    train(model, 5)
    seen.append(fronts.instrumentation.repeated_calls - before)
    assert seen == [True] + [False] * 4 + [4]  # at the first batch of a pass it is decided what the pass is for


def test_programs_that_look_find_the_patch(fronts):
    patch = torch.nn.Module.__call__
    assert inspect.isfunction(patch)
    assert Model().__call__.__func__ is patch
    assert super(Model, model := Model()).__call__.__self__ is model
    assert inspect.isfunction(torch.utils.data.dataloader._BaseDataLoaderIter.__next__)
    assert pickle.loads(pickle.dumps(patch)) is patch
    assert inspect.signature(patch) == inspect.signature(patch.__wrapped__)


def test_error_of_the_program_is_as_without_fronts(fronts):
    model = Model()
    train(model)
    model.inside = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError) as raised:
        train(model)
    assert not [entry for entry in raised.traceback if "training_profiler/" in str(entry.path)]
    assert fronts.context.training_thread.busy_with == 0
    with pytest.raises(TypeError, match="positional argument"):
        model()
    with pytest.raises(TypeError):
        vars(torch.nn.Module)["__call__"]()


@pytest.mark.parametrize("at", range(1, 12))
def test_error_of_ours_is_not_the_programs(fronts, at):
    """The clock fails at each reading of a step in turn."""
    model = Model()
    train(model)
    readings = iter(range(1, 1000))
    clock = fronts.run.recorder.clock

    def failing():
        if next(readings) == at:
            raise Boom
        return clock()

    seen = []
    fronts.context.training_thread.confirmed_detector.pending.host_clock = failing
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader([torch.ones(2)] * 3, batch_size=None):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert len(seen) == 3


def test_interrupt_inside_a_call_goes_on_and_ends_it(fronts):
    model = Model()
    train(model)

    def interrupt():
        raise KeyboardInterrupt

    model.inside = interrupt
    with pytest.raises(KeyboardInterrupt):
        train(model)
    thread = fronts.context.training_thread
    assert (thread.busy_with, thread.confirmed_detector.calls) == (0, [])


def test_fronts_come_after_the_first_steps_of_a_run(patched):
    patched.context.fronts.dynamo.is_idle = True
    patched.at_step_ends = lambda: patched.instrumentation.step_ended(patched.steps, False)
    seen = []

    class Observed(Model):
        def forward(self, x):
            seen.append(all(map(is_front, places())))
            return super().forward(x)

    train(Observed(), 12)
    assert seen == [False] * 10 + [True] * 2


def test_compiling_withdraws_them_for_good(compiler, patched):
    patched.context.fronts.dynamo.is_idle = True
    patched.context.fronts.place()
    model = Model()
    train(model)
    seen = []

    def backend(graph, inputs):
        seen.append(vars(torch.nn.Module)["__call__"])
        return graph

    compiled = torch.compile(model, backend=backend)
    train(compiled)
    assert seen
    assert not any(map(is_front, [*seen, *places()]))
    patched.context.fronts.place()
    assert not patched.context.fronts.are_placed


@pytest.mark.parametrize(("backends", "may"), [({1: None}, False), ({1: None, 2: "inductor"}, True), (None, True)])
def test_fronts_stay_away_from_what_was_compiled_before(monkeypatch, backends, may):
    monkeypatch.setattr(sys.modules[dynamo.DYNAMO], "cached_backends", backends)
    assert dynamo._may_have_traced() is may
    with instrumented_torch(implementation_of("C")) as run:
        run.context.fronts.place()
        assert run.context.fronts.are_placed is not may


def test_no_fronts_without_a_known_tracer():
    made = []
    implementation = implementation_of("C")._replace(front=lambda *arguments: made.append(arguments))
    fronts = Fronts(implementation, made.append, made.append)
    watch = fronts.dynamo
    fronts.offer(made.append, MODULE, train, train)
    watch.begin(sys.modules[TRACER], patches := Patches(), True)
    fronts.place()
    patches.undo()
    watch.begin(object(), patches, False)
    fronts.place()
    assert made == [True]  # sections ask, and no front was made


def test_no_fronts_in_python():
    with instrumented_torch(python_implementation("a test asks for it")) as run:
        run.context.fronts.dynamo.is_idle = True
        run.context.fronts.place()
        train(Model())
        assert not any(map(is_front, places()))


@pytest.mark.parametrize(("at", "acts"), [(3, False), (4, False), (5, False), *((at, True) for at in range(3, 9))])
def test_a_module_may_end_the_session_where_its_mode_is_read(fronts, at, acts):
    reads = iter(range(1, 100))

    class Ending(torch.nn.Linear):
        @property
        def training(self):
            if next(reads) == at:
                fronts.instrumentation.uninstall()
            return True

        @training.setter
        def training(self, mode):
            pass

    train(Model())
    fronts.instrumentation.program.stop()
    fronts.context.detector.input_sizes.is_due = False
    model = Ending(2, 2)
    with patch.object(input_sizes, "CALLS", 0), torch.no_grad():
        for _ in range(5 * acts):
            model(torch.ones(2))
    if not acts:
        train(model, 5)
    assert fronts.context.detector is None


def test_front_that_a_program_took_outlives_the_session(fronts):
    taken = vars(torch.nn.Module)["__call__"]
    train(Model())
    fronts.instrumentation.uninstall()
    assert taken(Model(), torch.ones(2)).shape == (2,)


def test_function_of_a_module_stays_the_same_object(patched):
    taken = torch.autograd.backward
    patched.context.fronts.dynamo.is_idle = True
    patched.context.fronts.place()
    assert torch.autograd.backward is taken


def test_module_that_has_compiled_code_runs_its_compiled_code(fronts):
    model = Model()
    train(model)
    model._compiled_call_impl = lambda x: "compiled"
    assert model(torch.ones(2)) == "compiled"
    outer = torch.nn.Sequential(model)
    assert outer(torch.ones(2)) == "compiled"


def test_calls_leave_no_references(fronts):
    model, x = Model(), torch.ones(2)
    train(model, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(x, scale=2.0).sum().backward()
        optimizer.step()
        model.inside = fail
        with suppress(Boom):
            model(x)

    def fail():
        raise Boom

    def counted():
        values = [model, x, optimizer, fronts.context.detector, fronts.context.fronts.usual, *places()]
        return list(map(sys.getrefcount, values))

    step()
    before = counted()
    for _ in range(100):
        step()
    assert counted() == before


def test_front_is_freed_with_its_instrumentation():
    class Original:
        def __call__(self, module):
            return "made"

    original = Original()
    gone = weakref.ref(original)
    with instrumented_torch(implementation_of("C")) as run:
        front = run.context.fronts.in_front_of(BACKWARD, original, original, None)
        original.front = front
        assert front("module") == "made"
    del front, original
    gc.collect()
    assert gone() is None


def test_wrong_arguments_are_refused(fronts):
    usual = fronts.context.fronts.usual
    with pytest.raises(ValueError, match="kind 9"):
        fronts.context.fronts.in_front_of(9, print, print, None)
    with pytest.raises(TypeError):
        implementation_of("C").front(MODULE, None, print, print, None, print, type)
    for parts in ((1, 2), (object(),) * 32):
        with pytest.raises(TypeError, match="parts"):
            usual.use(Fields, parts)
