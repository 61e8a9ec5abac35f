"""The fast paths in C record what those in Python do, for any order of calls, and own their memory as they should."""

import gc
import re
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_training import FakeModule, FakeOptimizer, FakeTraining, Loss
from tests.support.recording import IMPLEMENTATIONS, FakeClock, FakeRun, implementation_of
from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.fast_path import FastPath, new_fast_path
from training_profiler.instrumentation.loop_detection.detector_fields import DetectorFields
from training_profiler.instrumentation.loop_detection.evaluated_rows import CALLS, EvaluatedRows
from training_profiler.instrumentation.loop_detection.input_sizes import InputSizes
from training_profiler.instrumentation.loop_detection.loader_passes import LoaderPass, Passes
from training_profiler.instrumentation.loop_detection.loop_begin import EarlyCalls
from training_profiler.instrumentation.loop_detection.no_grad_runs import ModuleUse, NoGradRun
from training_profiler.instrumentation.loop_detection.optimizer_update import AT_ONCE_NS, OptimizerUpdate
from training_profiler.instrumentation.loop_detection.outermost_call import ModuleCall
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING
from training_profiler.instrumentation.loop_detection.phase_detector import PhaseDetector
from training_profiler.instrumentation.loop_detection.step_detector import StepDetector
from training_profiler.instrumentation.loop_detection.step_ends import StepEnds
from training_profiler.instrumentation.open_updates import OpenUpdates
from training_profiler.instrumentation.shadow import Shadow
from training_profiler.instrumentation.training_thread import (
    BACKWARD,
    FETCH,
    FORWARD,
    FREE,
    OTHER_PATCH,
    TrainingThread,
)
from training_profiler.recording import fields
from training_profiler.recording.event_codes import STEP_END, TIME_ONLY
from training_profiler.recording.fields import Fields, field
from training_profiler.recording.implementation import native_implementation
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.step_count import StepCount

BACKWARD_ARGUMENTS = (None, False)  # whether the graph is kept, and one is created, in nearly all trainings
HEADER = Path(__file__).parents[2] / "native" / "fast_path.h"
CLASSES = (TrainingThread, ModuleCall, PhaseDetector, Passes, LoaderPass, OptimizerUpdate, OpenUpdates, InputSizes)
CLASSES += (StepDetector, EarlyCalls, DetectorFields, StepEnds, Recorder, StepCount, PatchContext)
CLASSES += (NoGradRun, ModuleUse, EvaluatedRows)
# Names in C that differ from those in Python.
NAMES = {
    ("TrainingThread", "detector"): "confirmed_detector",
    ("LoaderPass", "phase"): "kind",
    ("LoaderPass", "pass_cycle"): "cycle",
    ("OptimizerUpdate", "code_of_update"): "code",
    ("OpenUpdates", "backwards_before"): "backwards",
    ("LoopDetector", "write"): "forward_begins",
    ("LoopDetector", "steps"): "step_detector",
    ("StepEnds", "passes_followed"): "passes",
    ("StepEnds", "latest_before"): "latest",
    ("StepCount", "steps_ended"): "steps",
    ("PhaseDetector", "forwards"): "forwards_without_grad",
    ("NoGradRun", "run_calls"): "calls",
    ("NoGradRun", "latest_use"): "latest",
    **{("ModuleUse", f"use_{name}"): name for name in ("module", "caller", "call", "kind", "calls", "end_ns")},
    ("EvaluatedRows", "row_calls"): "calls",
}


class Module(FakeModule):
    _compiled_call_impl = None


class Agent(FakeModule):
    def acts(self, world, modules, inside):
        for module in modules:
            world._call(module, inside)


class Criterion(Loss):
    _compiled_call_impl = None


class Batch:
    def __init__(self, rows):
        self.shape = (rows, 2)


class Iterator:
    def __init__(self):
        self._num_yielded = 0


class OnceIterator(Iterator):
    """Makes a single pass, as an iterator of torch without workers that stay."""

    _persistent_workers = False


class Boom(Exception):
    pass


class Gradients(Fields):
    """As PatchContext has them."""

    backward_watch = field(0)
    unused_graph = field(1)
    updates_at_kept = field(2)
    has_grad_scaler = field(3)

    def __init__(self):
        self.backward_watch = self.unused_graph = self.updates_at_kept = None
        self.has_grad_scaler = False


class World:
    """A training that calls the fast paths as the patches do, and everything that can be observed of it."""

    def __init__(self, implementation, is_fast=True, looks=True):
        self.fake = FakeTraining(FakeRun(implementation=implementation))
        self.detector = self.fake.detector
        self.thread, self.updates = TrainingThread(), OpenUpdates()
        self.gradients = Gradients()
        self.fast = new_fast_path(implementation, self.thread, self.updates, self.gradients)
        self.count = self.fake.let_steps_end_quietly()
        self.thread.claim()
        self.thread.use_detector(self.detector)
        self.modules = [Module(self.fake), Module(self.fake, Module(self.fake)), Criterion(self.fake)]
        self.optimizers = [FakeOptimizer(), FakeOptimizer()]
        self.iterators = [Iterator(), Iterator()]
        self.agent = Agent(self.fake)
        self.seen = []
        self.shadow = None
        self.is_fast = is_fast
        self.looks = looks  # after each act, also inside of others

    def follow(self, acts):
        """Follow a list of acts, in which a list is what happens inside of an act."""
        for act, number, inside in acts:
            self.fake.clock.advance_ns(1 + number)
            with suppress(Boom):
                getattr(self, act)(number, inside)
            if self.looks:
                self.seen.append((act, self.thread.busy_with, len(self.detector.calls), self.detector.frame is None))

    def call(self, number, inside):
        (self._call if number % 3 else self._call_from_elsewhere)(self.modules[number % 3], inside)

    def _call_from_elsewhere(self, module, inside):
        self._call(module, inside)

    def _call(self, module, inside, error=None, **named):
        frame, args = sys._getframe(1), (Batch(len(inside) + 1),)
        call = self.fast.call_begins(module, args, named, frame) if self.is_fast else None
        is_fast = call is not None
        if call is None and self.thread.busy_with:
            self.follow(inside)
            return
        self.seen.append(is_fast)
        if call is None:
            call = self.detector.call_begins(module, args, True, frame)
            self.thread.busy_with = FREE if call.is_explored else FORWARD
        try:
            self.fake.clock.advance_ns(5)
            self.follow(inside)
            if error is not None:
                raise error
        finally:
            has_ended = is_fast and self.fast.call_ends(call, module, self.detector)
            self.seen.append((has_ended, call.code, call.is_plain))
            if not has_ended:
                self.thread.busy_with = FREE
                self.detector.call_ends(call, module)

    def named_call(self, number, inside):
        self._call(self.modules[number % 3], inside, mask=None)

    def failing_call(self, number, inside):
        self._call(self.modules[number % 3], inside, Boom())

    def step(self, number, inside):
        """Do what most trainings do in a step."""
        self.fetch(number, [])
        self._call(self.modules[0], inside)
        self._call(self.modules[2], [])
        self.backward(number, [])
        self.update(number, [])
        self.clear(number, [])

    def steps(self, number, inside):
        for _ in range(4):
            self.step(0, inside)

    def fetch(self, number, inside):
        iterator = self.iterators[number % 2]
        loader_pass = self.fast.fetch_begins(iterator) if self.is_fast else None
        if loader_pass is None and self.thread.busy_with > FORWARD:
            return
        self.seen.append(loader_pass is not None)
        if loader_pass is None:
            if self.detector.calls:
                self.detector.trains_within()
            loader_pass = self.detector.fetch_begins(iterator, iterator._num_yielded == 0)
            loader_pass.samples = 0 if number < 5 else None
            self.thread.fetch_begins()
        self.fake.clock.advance_ns(3)
        if number == 9:  # the loader is empty
            self.thread.fetch_ends(threading.get_ident())
            self.detector.fetch_fails(loader_pass, is_over=True)
            iterator._num_yielded = 0
            return
        iterator._num_yielded += 1
        batch = [(Batch(3), 1), [Batch(4)], {"x": Batch(5)}, Batch(6), [[Batch(7)]], "text"][number % 6]
        self.fast.fetch_ends(loader_pass, self.detector, batch)
        self.seen.append((loader_pass.fetches, loader_pass.samples, loader_pass.cycle, loader_pass.cycle_begin_ns))

    def backward(self, number, inside):
        has_begun = self.is_fast and self.fast.backward_begins(*BACKWARD_ARGUMENTS) is self.detector
        if not has_begun and self.thread.busy_with > FORWARD:
            return
        self.seen.append(has_begun)
        if not has_begun:
            if self.detector.calls:
                self.detector.trains_within()
                self.thread.busy_with = FREE
            self.detector.backward_begins()
        try:
            self.fake.clock.advance_ns(7)
            if has_begun:
                self.follow(inside)
        finally:
            if has_begun:
                self.fast.backward_ends(self.detector)
            else:
                self.detector.backward_ends()

    def update(self, number, inside):
        optimizer, frame = self.optimizers[number % 5 == 4], sys._getframe()
        if not (self.is_fast and self.fast.update_begins(optimizer, frame)):
            if self.thread.busy_with == FETCH:
                return
            is_outermost, had_failed = self.updates.begin(optimizer, frame)
            if had_failed:
                self.detector.update.end()
            if is_outermost:
                if self.detector.calls:
                    self.detector.trains_within()
                    self.thread.busy_with = min(self.thread.busy_with, FORWARD) and FREE
                self.detector.update_begins()
        self.follow(inside)
        self.fake.clock.advance_ns(2)
        if number == 8:
            raise Boom  # torch calls no hook then
        has_ended = self.is_fast and self.fast.update_ends(optimizer)
        self.seen.append((has_ended, len(self.updates.open)))
        if not has_ended and self.updates.end(optimizer):
            if self.updates.follows_backward(self.detector.backwards):
                self.detector.update_ends(optimizer)
            else:
                self.detector.drop_update()

    def clear(self, number, inside):
        """Clear gradients, right after an update or later."""
        if number > 4:
            self.fake.clock.advance_ns(100_000)
        code = self.fast.clearing_begins() if self.is_fast else 0
        if not code and (self.updates.open or self.thread.busy_with > FORWARD):
            return
        code = code or self.detector.update.clearing_begins()
        self.seen.append(code)
        self.fake.clock.advance_ns(2)
        self.fast.clearing_ends(code, self.detector)

    def transfer(self, number, inside):
        """Move tensors to a device."""
        detector = self.fast.transfer_begins() if self.is_fast else None
        if detector is None and self.thread.busy_with:
            return
        if detector is None and (self.updates.open or self.detector.update.is_scaling):
            return
        self.seen.append(detector is not None)
        if detector is None:
            self.detector.transfer_begins()
            self.thread.busy_with = OTHER_PATCH
        self.fake.clock.advance_ns(number)
        if detector is not None:
            self.fast.transfer_ends(detector)
        else:
            self.thread.busy_with = FREE
            self.detector.transfer_ends()

    def scaled_update(self, number, inside):
        """Update as a GradScaler does, whose own time is in pieces around it."""
        self.detector.update.scaling_begins()
        self.update(number, inside)
        self.detector.update.resume_scaling()
        self.clear(number, inside)
        self.detector.update.scaling_ends()

    def eval(self, number, inside):
        self.modules[number % 3].eval()

    def train(self, number, inside):
        self.modules[number % 3].train()

    def no_grad(self, number, inside):
        with self.fake.no_grad():
            self.follow(inside)

    def act(self, number, inside):
        """Call models without gradients again and again."""
        with self.fake.no_grad():
            for at in range(4):
                self._call(self.modules[at % 2 if number > 7 else number % 2], inside if number == 4 else [])

    def act_in_method(self, number, inside):
        """The same by a method of another module, in which one call of each is a forward pass."""
        # The frame of a method may have the address of the one before, so each begins with a module called there.
        modules = [self.modules[at] for at in ([0, 1], [0], [0, 0], [0, 1, 0], [0, 2], [0, 1, 2])[number % 6]]
        with self.fake.no_grad():
            for _ in range(3):
                self.agent.acts(self, modules, inside if number > 7 else [])

    def compile(self, number, inside):
        module = self.modules[number % 3]
        module._compiled_call_impl = None if module._compiled_call_impl else print

    def elsewhere(self, number, inside):
        """Let another thread try everything, which is not the training thread."""

        def attempt():
            found.append(self.fast.call_begins(self.modules[0], (), {}, sys._getframe()))
            found.append(self.fast.fetch_begins(self.iterators[0]))
            found.append(self.fast.backward_begins(*BACKWARD_ARGUMENTS))
            found.append(self.fast.clearing_begins())
            found.append(self.fast.update_begins(self.optimizers[0], sys._getframe()))
            found.append(self.fast.update_ends(self.optimizers[0]))
            found.append(self.fast.transfer_begins())

        found = []
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        assert found == [None, None, None, 0, False, False, None]

    def clock(self, number, inside):
        """Use a clock that costs a nanosecond."""

        def clock():
            self.fake.clock.advance_ns(1)
            return self.fake.clock()

        self.fake.recorder.use_clock(self.fake.recorder.buffer(), clock if number % 2 else None)

    def watch(self, number, inside):
        """Let methods stand in front of the detector's, or no longer."""
        if self.shadow is None:
            ends = self.detector.update_ends
            self.shadow = Shadow(self.detector, update_ends=lambda *args: (self.seen.append("update"), ends(*args)))
        else:
            self.shadow.end()
            self.shadow = None

    def quiet(self, number, inside):
        """Let the session be asked again after some steps, or some time."""
        self.fake.ask_session(self.count.steps + number, self.fake.clock() + 100 * number)

    def manual(self, number, inside):
        if number == 9:
            self.detector.use_manual_steps()

    def outcome(self):
        """Return everything that is recorded, and every answer on the way."""
        if self.shadow is not None:
            self.shadow.end()
        events = list(self.detector.pending.events)
        detector = self.detector
        counts = (detector.updates, detector.backwards, detector.phases.cycle, detector.input_sizes.pop())
        phases, run = detector.phases, detector.phases._run
        counts += (phases.forwards_without_grad, phases._run_end_ns, phases.is_unresolved, phases.is_open)
        if run is not None:
            uses = [(use.calls, use.begin_ns, use.end_ns, use.is_evaluated) for use in run._uses.values()]
            counts += (run.calls, uses, run.latest.end_ns)
        ends = (self.count.steps, self.fake.asked, list(self.fake.recorder.marks), self.fake.recorder.watermark_ns)
        return self.seen, events, self.fake.marks, counts, ends, self.thread.busy_with


KINDS = ("call", "named_call", "failing_call", "step", "steps", "fetch", "backward", "update", "eval", "train")
KINDS += ("clear", "scaled_update", "no_grad", "compile", "elsewhere", "clock", "watch", "manual", "quiet")
KINDS += ("act", "act", "act_in_method", "transfer", "transfer")


def acts():
    one = st.tuples(st.sampled_from(KINDS), st.integers(0, 9))
    return st.recursive(
        st.just([]),
        lambda inside: st.lists(st.builds(lambda act, inside: (*act, inside), one, inside), max_size=12),
        max_leaves=12,
    )


def followed(name, script, is_fast=True):
    world = World(implementation_of(name), is_fast)
    world.follow([("steps", 0, [])])  # by then most calls are usual ones
    world.follow(script)
    return world.outcome()


@given(acts())
def test_both_record_the_same(script):
    assert followed("C", script) == followed("Python", script)


def followed_between_steps(name, script, looks=True):
    """Follow a script, act by act, between steps whose calls C expects."""
    world = World(implementation_of(name), looks=looks)
    world.follow([("steps", 0, [])] * 18)  # sizes of inputs are looked at in each of the first 64
    world.seen.clear()
    expected = []
    for act in script:
        expected.append(name != "C" or bool(world.fast.is_step_expected))
        world.follow([act, ("steps", 0, [])])
    return world.outcome(), expected


@given(acts(), st.booleans())
def test_both_record_the_same_where_the_calls_of_a_step_are_expected(script, looks):
    in_c, expected = followed_between_steps("C", script, looks)
    assert in_c == followed_between_steps("Python", script, looks)[0]
    assert all(expected[:1])


ONCE = dict.fromkeys(KINDS)
INSIDE_OF_STEPS = [("step", number, [(kind, number, [])]) for kind in ONCE for number in (0, 1, 4, 8, 9)]


@pytest.mark.parametrize("looks", [True, False], ids=["looks", ""])
@pytest.mark.parametrize("act", INSIDE_OF_STEPS, ids=lambda act: f"{act[2][0][0]} {act[1]}")
def test_what_happens_inside_of_an_expected_call_is_recorded_as_in_any_other(act, looks):
    script = [act, ("steps", 0, []), act]
    in_c, expected = followed_between_steps("C", script, looks)
    assert in_c == followed_between_steps("Python", script, looks)[0]
    assert expected[0]


def test_calls_of_nearly_all_steps_are_expected():
    world = World(implementation_of("C"))
    world.follow([("steps", 0, [])] * 18)
    expected = []
    for _ in range(100):
        expected.append(bool(world.fast.is_step_expected))
        world.follow([("step", 0, [])])
    assert sum(expected) > 80
    world.fast.forget()
    assert not world.fast.is_step_expected


@pytest.mark.parametrize("number", [1, 2, 3, 4])  # lists, dictionaries, tensors, and lists of lists
def test_steps_are_expected_whatever_the_batches_are(number):
    world = World(implementation_of("C"))
    expected = []
    for _ in range(200):
        world.fetch(number, [])
        world.follow([("call", 0, []), ("call", 2, []), ("backward", 0, []), ("update", 0, []), ("clear", 0, [])])
        expected.append(bool(world.fast.is_step_expected))
    assert sum(expected[100:]) > 80
    assert world.detector.phases.passes.latest.samples > 200


def test_a_step_is_not_expected_once_python_has_changed_anything(world):
    world.follow([("steps", 0, [])] * 18)
    assert world.fast.is_step_expected
    world.detector.has_manual_steps = False
    world.seen.clear()
    world.follow([("step", 0, [])])
    assert not world.fast.is_step_expected
    world.follow([("steps", 0, [])])
    assert world.fast.is_step_expected


KINDS_OF_AGENTS = ("act", "act", "act_in_method", "act_in_method", "step", "eval", "train", "fetch", "no_grad")
KINDS_OF_AGENTS += ("failing_call", "watch", "clock", "transfer")
INSIDE = st.sampled_from([[], [("call", 1, []), ("act", 0, [])]])


@given(st.lists(st.tuples(st.sampled_from(KINDS_OF_AGENTS), st.integers(0, 9), INSIDE), max_size=12))
def test_fast_paths_record_what_the_slower_ones_do(script):
    slower = followed("Python", script, is_fast=False)[1:]
    for name in IMPLEMENTATIONS:
        assert followed(name, script)[1:] == slower


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_model_that_acts_takes_the_fast_path(name, mode):
    world = World(implementation_of(name))
    world.detector.input_sizes.rows.calls = CALLS
    world.follow([("steps", 0, []), (mode, 0, [])])
    world.seen.clear()
    world.follow([("act", 0, [])] * 5)
    answers = [seen for seen in world.seen if isinstance(seen, bool)]
    assert answers == [False, *[True] * 19]
    world.seen.clear()
    world.follow([("act_in_method", 0, [])] * 3)
    assert [seen for seen in world.seen if isinstance(seen, bool)] == [False, False, *[True] * 16]
    ends = [seen[0] for seen in world.seen if isinstance(seen, tuple) and len(seen) == 3 and isinstance(seen[0], bool)]
    assert ends == [False, False, *[True] * 16]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("what", ["function", "compiled", "eval mode", "watched", "within a call"])
def test_an_acting_call_that_more_is_asked_of_takes_the_slower_path(name, what):
    world = World(implementation_of(name))
    world.follow([("steps", 0, []), ("act", 0, [])])
    if what == "function":
        world.thread.function = -1
    elif what == "within a call":
        world.detector.calls.append(world.detector.call_begins(world.modules[1], (), True, sys._getframe()))
    else:
        world.follow([({"compiled": "compile", "eval mode": "eval", "watched": "watch"}[what], 0, [])])
    world.seen.clear()
    world.follow([("act", 0, [])])
    assert [seen for seen in world.seen if isinstance(seen, bool)] == [False] * 4


def test_both_take_the_fast_path_in_nearly_all_steps():
    for name in IMPLEMENTATIONS:
        world = World(implementation_of(name))
        world.follow([("steps", 0, [])] * 20)
        fast = [seen for seen in world.seen if isinstance(seen, bool)]
        assert sum(fast) > 0.9 * len(fast), name


def test_both_ask_the_session_at_few_steps():
    for name in IMPLEMENTATIONS:
        world = World(implementation_of(name))
        world.follow([("steps", 0, [])] * 20)
        assert (world.count.steps, world.fake.asked) == (77, 8), name


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "arguments", [(True, False), (1, False), ("yes", False), (None, True), (None, None), (False, 0)], ids=repr
)
def test_a_backward_pass_that_is_not_as_most_takes_the_slower_path(name, arguments):
    world = World(implementation_of(name))
    world.follow([("steps", 0, [])])
    before = len(world.detector.pending.events)
    assert world.fast.backward_begins(*arguments) is None
    assert world.thread.busy_with == FREE
    assert len(world.detector.pending.events) == before


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("attribute", ["backward_watch", "unused_graph", "updates_at_kept"])
def test_a_backward_pass_that_more_is_asked_of_takes_the_slower_path(name, attribute):
    world = World(implementation_of(name))
    world.follow([("steps", 0, [])])
    setattr(world.gradients, attribute, 0)
    assert world.fast.backward_begins(*BACKWARD_ARGUMENTS) is None
    setattr(world.gradients, attribute, None)
    assert world.fast.backward_begins(*BACKWARD_ARGUMENTS) is world.detector


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("keeps_graph", [None, False])
def test_a_backward_pass_that_frees_its_graph_takes_the_fast_path(name, keeps_graph):
    world = World(implementation_of(name))
    world.follow([("steps", 0, [])])
    assert world.fast.backward_begins(keeps_graph, False) is world.detector
    assert world.thread.busy_with == BACKWARD
    world.fast.backward_ends(world.detector)
    assert world.thread.busy_with == FREE


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_fetch_whose_cpu_time_is_measured_takes_the_slower_path(name):
    world = World(implementation_of(name))
    world.follow([("steps", 0, [])])
    latest = world.detector.phases.passes.latest
    latest.measured_at = latest.fetches
    assert world.fast.fetch_begins(world.iterators[0]) is None
    latest.measured_at = latest.fetches + 1
    assert world.fast.fetch_begins(world.iterators[0]) is latest


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_update_that_may_be_skipped_takes_the_slower_path(name):
    world = World(implementation_of(name))
    world.follow([("steps", 0, []), ("backward", 0, [])])
    world.gradients.has_grad_scaler = True
    assert world.fast.update_begins(world.optimizers[0], sys._getframe())
    before = world.detector.updates
    assert not world.fast.update_ends(world.optimizers[0])
    world.gradients.has_grad_scaler = False
    assert world.fast.update_ends(world.optimizers[0])
    assert world.detector.updates == before + 1


@pytest.fixture
def world():
    return World(implementation_of("C"))


def test_c_serves_where_it_was_built(world):
    assert not isinstance(world.fast, FastPath)
    assert isinstance(World(implementation_of("Python")).fast, FastPath)


def test_both_languages_number_the_attributes_alike():
    in_c = {}
    for names, kind in re.findall(r"enum \{([^}]*)\};\s*/\* (\w+) \*/", HEADER.read_text()):
        in_c.setdefault(kind, []).append([name.strip().lower() for name in names.split(",")])
    enum = re.search(r"enum \{ /\* LoopDetector \*/([^}]*)\}", HEADER.read_text()).group(1)
    in_c["LoopDetector"].insert(0, [name.strip().lower() for name in enum.split(",")])
    for cls in CLASSES:
        kind = cls.__name__.replace("DetectorFields", "LoopDetector")
        numbered = {
            value.__name__.replace("shown", "at"): name.lstrip("_")
            for name, value in vars(cls).items()
            if re.fullmatch(r"(at|number|shown)\d+", getattr(value, "__name__", ""))
        }
        expected = {}
        for names in in_c[kind]:
            first = NAMES.get((kind, names[0]), names[0])
            prefix = "at" if numbered.get("at0") == first else "number"
            expected |= {f"{prefix}{at}": NAMES.get((kind, name), name) for at, name in enumerate(names)}
        assert numbered == expected


def test_both_languages_have_the_same_constants():
    text = HEADER.read_text() + HEADER.with_name("native.h").read_text()
    found = dict(re.findall(r"#define (\w+) \(?(\d+(?: << \d+)?)\)?", text))
    expected = {"MAX_PENDING": MAX_PENDING, "TIME_ONLY": TIME_ONLY, "AT_ONCE_NS": AT_ONCE_NS, "STEP_END": STEP_END}
    expected |= {"FIELDS": fields.FIELDS, "NUMBERS": fields.NUMBERS}
    in_c = {name: int(found[name].split(" << ")[0]) << int(found[name].partition(" << ")[2] or 0) for name in expected}
    assert in_c == expected
    assert "enum { FREE, FORWARD, FETCH, BACKWARD, OTHER_PATCH, KINDS }" in text
    assert (FREE, FORWARD, FETCH, BACKWARD, OTHER_PATCH) == (0, 1, 2, 3, 4)


def test_no_reference_is_lost_or_kept(world):
    world.follow([("steps", 0, [])] * 30)
    objects = [*world.modules, *world.optimizers, *world.iterators, world.thread, world.detector, world.updates]
    objects += [world.detector.phases, world.detector.update, world.detector.phases.passes.latest]
    objects += [world.fake.ends, world.fake.recorder, world.count]
    objects += [World._call.__code__, World.step.__code__, *world.detector._fast_path.values(), world.detector.calls]
    world.seen.clear()
    gc.collect()
    before = [sys.getrefcount(one) for one in objects]
    for act in [("steps", 0, []), ("failing_call", 0, []), ("elsewhere", 0, []), ("update", 1, [])] * 10:
        world.follow([act])
    world.seen.clear()
    gc.collect()  # a frame is in a cycle with its own variables
    after = [sys.getrefcount(one) for one in objects]
    differences = [b - a for a, b in zip(before, after, strict=True)]
    assert max(map(abs, differences)) <= 6, differences  # a leak is at least one in each of 50 steps


def test_a_cycle_through_a_fast_path_is_collected(world):
    gone = weakref.ref(world.detector)
    world.thread.fetching = {id(world)}
    world.detector.early_friend = world.fast
    world.fast = world.thread = world.detector = world.fake.detector = None
    world.fake.pending.on_clock_change = world.fake.pending.step_end_ns = None
    del world
    gc.collect()
    assert gone() is None


def test_arguments_of_other_types_are_refused(world):
    for call in (
        lambda: world.fast.call_begins(world.modules[0]),
        lambda: world.fast.call_begins(world.modules[0], None, {}, None),
        lambda: world.fast.call_ends(None, None, None),
        lambda: world.fast.fetch_ends(None, None, None),
        lambda: world.fast.backward_ends(None),
        lambda: world.fast.clearing_ends(5, None),
        lambda: world.fast.update_begins(world.optimizers[0], None),
        lambda: type(world.fast)(None, None, None),
    ):
        with pytest.raises(TypeError):
            call()
    assert world.fast.call_begins(world.modules[0], (), {}, None) is None


FIELDS = [f"at{at}" for at in range(20)]


@pytest.mark.parametrize("value", [None, "text", 5, [], 2**70, object()])
@pytest.mark.parametrize("name", FIELDS)
def test_state_of_other_types_is_left_to_python(world, name, value):
    world.follow([("steps", 0, [])] * 18)
    detector = world.detector
    call = next(iter(detector._fast_path.values()))
    parts = (
        detector.phases,
        detector.phases.passes,
        detector.update,
        world.fake.ends,
        world.fake.recorder,
        world.count,
    )
    for one in (world.thread, world.updates, detector, call, *parts):
        before = getattr(one, name, None)
        setattr(one, name, value)
        with suppress(Exception):
            world.fast.call_begins(world.modules[0], (), {}, sys._getframe())
        with suppress(Exception):
            world.fast.call_ends(call, world.modules[0], detector)
        with suppress(Exception):
            world.fast.fetch_begins(world.iterators[0])
        with suppress(Exception):
            world.fast.backward_begins(*BACKWARD_ARGUMENTS)
        with suppress(Exception):
            world.fast.backward_ends(detector)
        with suppress(Exception):
            world.fast.clearing_ends(world.fast.clearing_begins() or 5, detector)
        with suppress(Exception):
            world.fast.update_begins(world.optimizers[0], sys._getframe())
        with suppress(Exception):
            world.fast.update_ends(world.optimizers[0])
        setattr(one, name, before)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_clock_that_fails_is_reported(name):
    world = World(implementation_of(name))
    world.follow([("steps", 0, [])] * 3)

    def broken():
        raise Boom

    world.fake.clock.advance(1)
    world.fake.recorder.use_clock(world.fake.recorder.buffer(), broken)
    for call in (
        lambda: world.fast.fetch_begins(world.iterators[0]),
        lambda: world.fast.backward_begins(*BACKWARD_ARGUMENTS),
        world.fast.clearing_begins,
        lambda: world.fast.backward_ends(world.detector),
        lambda: world.fast.update_begins(world.optimizers[0], sys._getframe()),
    ):
        world.thread.busy_with = FREE
        with pytest.raises(Boom):
            call()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_ctrl_c_while_samples_are_counted_ends_the_fetch(name):
    class Interrupting:
        @property
        def shape(self):
            raise KeyboardInterrupt

    world = World(implementation_of(name))
    world.follow([("steps", 0, [])] * 3)
    loader_pass = world.fast.fetch_begins(world.iterators[0])
    with pytest.raises(KeyboardInterrupt):
        world.fast.fetch_ends(loader_pass, world.detector, Interrupting())
    assert world.thread.busy_with == FREE
    assert world.detector.pending.events[-1] == -world.detector.codes.data_loading


@pytest.mark.skipif(sys.platform != "linux", reason="the library is found by its name on Linux")
def test_the_grad_mode_of_torchs_library_is_that_of_its_function():
    found, asked = [], []

    def is_grad_enabled():
        asked.append(1)
        return torch.is_grad_enabled()

    for is_direct in (False, True):
        world = World(native_implementation())
        world.detector._is_grad_enabled = is_grad_enabled
        assert not is_direct or world.fast.use_library(is_grad_enabled, torch.Tensor)
        asked.clear()
        world.follow([("steps", 0, [])] * 18)
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                world.follow([("call", 0, []), ("step", 1, []), ("steps", 0, []), ("call", 1, [])])
        found.append((world.outcome(), len(asked)))
    (by_function, often), (by_library, seldom) = found
    assert by_library == by_function
    assert 2 * seldom < often


def expecting():
    """Return a world in C whose next step is expected."""
    world = World(native_implementation(), looks=False)
    world.follow([("steps", 0, [])] * 18)
    assert world.fast.is_step_expected
    return world


def looked_at(world):
    detector = world.detector
    return world.thread.busy_with, len(detector.calls), len(world.updates.open), bool(detector.update.open_code)


def from_another_thread(world):
    """Look from another thread, to which updates under way do not belong."""
    found = []
    thread = threading.Thread(target=lambda: found.append((world.thread.busy_with, len(world.detector.calls))))
    thread.start()
    thread.join()
    return found[0]


def step_with(world, inside):
    """Make a step, with acts inside of some of its calls."""
    loader_pass = world.fast.fetch_begins(world.iterators[0]) if world.detector.updates else None
    if loader_pass is None:
        world.fetch(0, [])
    else:
        world.follow(inside.get("fetch", []))
        world.fast.fetch_ends(loader_pass, world.detector, (Batch(3), 1))
    world._call(world.modules[0], inside.get("call", []))
    world._call(world.modules[2], [])
    world.backward(0, inside.get("backward", []))
    world.update(0, inside.get("update", []))


INSIDE_OF_CALLS = {
    "call": (FORWARD, 1, 0, False),
    "fetch": (FETCH, 0, 0, False),
    "backward": (BACKWARD, 0, 0, False),
    "update": (FREE, 0, 1, True),
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "another thread"])
@pytest.mark.parametrize("kind", INSIDE_OF_CALLS)
def test_whoever_looks_inside_of_an_expected_call_finds_it_under_way(kind, elsewhere):
    world, found = World(native_implementation(), looks=False), []
    look = from_another_thread if elsewhere else looked_at
    world.look = lambda number, inside: found.append(look(world))
    for _ in range(100):
        step_with(world, {})
    assert world.fast.is_step_expected
    step_with(world, {kind: [("look", 0, [])]})
    expected = INSIDE_OF_CALLS[kind]
    assert found == [expected[:2] if elsewhere else expected]
    assert looked_at(world) == (FREE, 0, 0, False)
    assert world.detector.updates == 101


def test_an_expected_update_that_raised_is_one_that_failed():
    world = expecting()
    with pytest.raises(Boom):
        world.step(8, [])
    assert len(world.updates.open) == 1
    assert not world.updates.is_running(sys._getframe())
    before = world.detector.updates
    world.follow([("steps", 0, [])])
    assert world.detector.updates == before + 4


def test_another_detector_in_an_expected_call_finds_the_state_of_the_first():
    world, found = expecting(), []

    def leave(number, inside):
        world.fast.forget()
        found.append(looked_at(world))

    world.leave = leave
    world.step(0, [("leave", 0, [])])
    assert found == [(FORWARD, 1, 0, False)]
    assert looked_at(world) == (FREE, 0, 0, False)


def test_an_iterator_with_the_address_of_one_that_is_gone_begins_a_pass():
    world = World(native_implementation())
    world.iterators[0] = OnceIterator()
    world.follow([("steps", 0, [])] * 18)
    assert world.fast.is_step_expected
    first, address = world.detector.phases.passes.latest, id(world.iterators[0])
    world.iterators[0] = None
    others = [OnceIterator() for _ in range(1_000)]
    world.iterators[0] = next((one for one in others if id(one) == address), None)
    if world.iterators[0] is None:
        pytest.skip("the sanitizer keeps memory that is free")
    world.follow([("step", 0, [])])
    assert world.detector.phases.passes.latest is not first
    assert world.detector.phases.passes.latest.fetches == 1


class Moody(Module):
    """Has the mode of training from its class."""

    @property
    def training(self):
        return True

    @training.setter
    def training(self, value):
        pass


class Attentive(Module):
    """Makes up its attributes."""

    def __getattribute__(self, name):
        return super().__getattribute__(name)


@pytest.mark.parametrize("kind", [Moody, Attentive])
def test_modules_whose_classes_say_more_are_asked(kind):
    world = World(native_implementation())
    world.modules[0] = kind(world.fake)
    world.follow([("steps", 0, [])] * 18)
    assert world.fast.is_step_expected
    world.modules[0]._compiled_call_impl = print
    world.seen.clear()
    world.follow([("call", 0, [])])
    assert world.seen[0] is False


@pytest.mark.skipif(sys.platform != "linux", reason="the library is found by its name on Linux")
@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        (torch.zeros(0, 2), 0),
        (torch.zeros(()), None),
        (torch.nn.Parameter(torch.zeros(4)), 4),
        ([torch.zeros(3), 1], 3),
        (torch.zeros(7).to_sparse(), 7),
        ({"x": torch.zeros(6)}, 6),
    ],
    ids=str,
)
def test_samples_of_tensors_are_counted_alike(batch, samples):
    counted = []
    for name in IMPLEMENTATIONS:
        world = World(implementation_of(name))
        world.fast.use_library(torch.is_grad_enabled, torch.Tensor)
        world.follow([("steps", 0, [])])
        loader_pass = world.fast.fetch_begins(world.iterators[0])
        before = loader_pass.samples
        world.fast.fetch_ends(loader_pass, world.detector, batch)
        counted.append(None if loader_pass.samples is None else loader_pass.samples - before)
    assert counted == [samples, samples]


class Watching(torch.overrides.TorchFunctionMode):
    """Writes down which functions of tensors it gets to see."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def test_modes_of_the_program_see_the_read_of_a_shape_and_no_function():
    world = World(native_implementation())
    world.fast.use_library(torch.is_grad_enabled, torch.Tensor)
    world.follow([("steps", 0, [])])
    batch, loader_pass = torch.zeros(5, 2), world.fast.fetch_begins(world.iterators[0])
    with Watching() as mode:
        world.fast.fetch_ends(loader_pass, world.detector, batch)
    assert mode.seen == [torch.Tensor.shape.__get__]


class BreakingClock(FakeClock):
    """Fails at one of its readings."""

    left = 0

    def __call__(self) -> int:
        self.left -= 1
        if self.left == 0:
            raise Boom
        return super().__call__()


@pytest.mark.parametrize("reading", range(1, 12))
def test_a_clock_that_fails_in_an_expected_step_leaves_nothing_under_way(reading):
    world = World(native_implementation())
    world.follow([("steps", 0, [])] * 18)
    assert world.fast.is_step_expected
    clock = world.fake.clock
    clock.__class__ = BreakingClock
    clock.left = reading
    with pytest.raises(Boom):
        world.step(0, [])
    assert (world.thread.busy_with, world.detector.calls, world.updates.open) == (FREE, [], [])
    count, expected = world.count.steps, []
    for _ in range(12):
        world.follow([("step", 0, [])])
        expected.append(bool(world.fast.is_step_expected))
    assert world.count.steps == count + 12
    assert any(expected)


def test_a_pattern_may_be_let_go_of_while_a_call_begins():
    world = World(native_implementation())
    world.follow([("steps", 0, [])] * 18)
    clock, count = world.fake.clock, world.count.steps

    class Forgetful(FakeClock):
        def __call__(self) -> int:
            world.fast.forget()
            return super().__call__()

    for _ in range(40):
        clock.__class__ = FakeClock
        world.follow([("steps", 0, [])] * 2)
        clock.__class__ = Forgetful
        world.follow([("step", 0, [])])
    clock.__class__ = FakeClock
    assert (world.thread.busy_with, world.detector.calls, world.updates.open) == (FREE, [], [])
    assert world.count.steps == count + 40 * 9
