"""What loops are recorded as: each line of tests/golden/answers/loops.txt is a program, and below it what it gives.

A letter is an event (tests/support/script.py).

| letter | event |
| --- | --- |
| `d` `D` `K` | a batch of the training loader (1 s), of the validation loader, of a second one (0.5 s each) |
| `!` | a fetch of the training loader that fails after what is in braces |
| `W` `N` | workers of a loader are started (5 s); from here on loaders are counted |
| `/` `;` `>` | the training loader is empty, the validation loader is, the second one is |
| `z` `Z` | the iterator of the training loader, of the validation loader is dropped |
| `f` `g` `h` | a call of the model, of a second model (2 s each), of one that is four in each other (1 s each) |
| `l` `t` | a call of the loss, of a frozen teacher (1 s each) |
| `m` `n` | a call of a module of a class of its own, of another one; `F`: the call of the model raises |
| `(` `)` | gradients are off, and on again |
| `E` `T` | the model is in eval mode, in train mode |
| `b` `~` | a backward pass (3 s), a gradient that a module computes in its call (1 s) |
| `u` `U` | an update by the optimizer, by a second one (1 s each; with braces: a closure, which takes all of it) |
| `x` `X` | an update that is skipped, as by a gradient scaler; one that fails |
| `L` `C` | a trainer says that it computes the loss, that the closure of an update begins |
| `s` `=` | a checkpoint, a transfer (1 s each) |
| `a` | a section of the program's own, `augment` (1 s) |
| `.` `,` `'` | other work for 1 s, for 0.5 s, for 0.25 s |
| `M` `S` `R` | the program marks an epoch, marks its steps itself; all events are handed out |
| `r` `v` `G` | 4 calls without gradients, 1 s after each: by a function that collects, evaluates, generates |
| `q` `Q` | 4 calls, 2 calls in eval mode and without gradients, by a function that says nothing |
| `o` `O` `c` | such calls by one with variables of acting, in one that evaluates, by one with both kinds |
| `A` | a call with gradients in eval mode, by a function that acts |
| `p` `P` `w` `y` `k` | a method calls two modules (1 s each): alone, in another one, one again, with others between |
| `i` `j` `e` `B` `H` | a decorated method, one of the class, a static one, a generator, one that calls itself often |
| `I` `J` `V` | a function in a method, a function, a method of a class that is not a module |
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.fake_training import FakeLoader, FakeModule, FakeOptimizer, FakeTraining, Figures, Loss
from tests.support.golden import ANSWERS, assert_answers
from tests.support.recording import FakeRun
from tests.support.script import Events, events_of
from training_profiler.instrumentation.loop_detection.no_grad_runs import MAX_FRAMES
from training_profiler.model.loader_workers import TRAIN, VAL
from training_profiler.recording.data_loader import LoaderRegistry

MANY = 10**6


def passed_on(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(*args: object) -> object:
        return function(*args)

    return wrapper


def act(policy: "Policy") -> None:
    policy.body(0)
    policy.head(0)


class NoModule:
    """Has a method of the same name."""

    def step(self, policy: "Policy") -> None:
        policy.body(0)
        policy.head(0)


class Policy(FakeModule):
    """A module that is not called itself: its methods call two modules."""

    def __init__(self, training: FakeTraining, fetch: Callable[[], int]) -> None:
        super().__init__(training, FakeModule(training, seconds=1), FakeModule(training, seconds=1))
        self.body, self.head = self._modules.values()
        self.relu, self.fetch = Loss(training), fetch

    def step(self) -> None:
        self.body(0)
        self.head(0)

    def outer(self) -> None:
        self.step()

    def twice(self) -> None:
        self.step()
        self.body(0)

    def rectified(self) -> None:
        self.body(0)
        self.relu(0)
        self.head(0)

    def fit(self) -> None:
        for module in (self.body, self.head):
            module(self.fetch())

    @passed_on
    def decorated(self) -> None:
        self.body(0)
        self.head(0)

    @classmethod
    def of_class(cls, policy: "Policy") -> None:
        policy.body(0)
        policy.head(0)

    @staticmethod
    def of_nothing(policy: "Policy") -> None:
        policy.body(0)
        policy.head(0)

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.body(0)
        self.head(0)
        yield

    def within(self) -> None:
        with self.entered():
            pass

    def nested(self, depth: int = 24) -> None:
        self.nested(depth - 1) if depth else self.step()

    def with_inner(self) -> None:
        def act() -> None:
            self.body(0)
            self.head(0)

        act()


class Calls:
    """Functions that call a model, with names and variables that say why, or nothing."""

    def __init__(self, training: FakeTraining, model: FakeModule) -> None:
        self.training, self.model = training, model

    def several(self, calls: int, pause: float = 0.0) -> None:
        with self.training.no_grad():
            for _ in range(calls):
                self.model(0)
                self.training.spend(pause)

    def in_other_mode(self, calls: int, pause: float = 0.0) -> None:
        self.model.eval()
        self.several(calls, pause)
        self.model.train()

    def collect_rollout(self, inside: Events, make: Callable[[Events], None]) -> None:
        if inside:
            make(inside)
        else:
            self.several(4, 1.0)

    def evaluate_policy(self) -> None:
        self.several(4, 1.0)

    def generate(self) -> None:
        self.several(4, 1.0)

    def gather(self) -> tuple[int, int]:
        observations, rewards = 0, 0
        self.model.eval()
        with self.training.no_grad():
            for _ in range(4):
                self.model(0)
                self.training.spend(1.0)
        self.model.train()
        return observations, rewards

    def score(self) -> None:
        self.gather()

    def compare(self, rewards: int = 2, correct: int = 2) -> None:
        self.model.eval()
        with self.training.no_grad():
            for _ in range(rewards + correct):
                self.model(0)
        self.model.train()

    def select_action(self) -> None:
        self.model.eval()
        self.model(0)
        self.model.train()


class Trainer(FakeModule):
    """A class of its own, whose first call is explored."""


class OuterTrainer(FakeModule):
    """Another one."""


class Program:
    """Makes events of a fake training."""

    def __init__(self, training: FakeTraining, after_each: Callable[[], object]) -> None:
        self.training, self.after_each = training, after_each
        self.most_held = self.drains = 0
        self.on_full, training.recorder.on_full = training.recorder.on_full, self.drain
        self.inside: Events = []  # of the module that is called
        self.optimizers = {"u": FakeOptimizer(), "U": FakeOptimizer()}
        self.optimizers["x"] = self.optimizers["X"] = self.optimizers["u"]
        # Classes of their own are new to each program: the first call of a class is another one.
        classes = {kind: type(kind.__name__, (kind,), {}) for kind in (Trainer, OuterTrainer)}
        deep = FakeModule(training, FakeModule(training, FakeModule(training, seconds=1), seconds=1), seconds=1)
        self.models = {
            "f": FakeModule(training),
            "g": FakeModule(training),
            "h": FakeModule(training, deep, seconds=1),
            "l": Loss(training),
            "t": FakeModule(training, requires_grad=False, seconds=1),
            "m": classes[Trainer](training, seconds=0.5),
            "n": classes[OuterTrainer](training, seconds=0.5),
        }
        self.loaders = {"d": FakeLoader(training, MANY)}
        self.loaders |= {name: FakeLoader(training, MANY, seconds=0.5) for name in "DK"}
        self.passes, self.registry = {}, LoaderRegistry()
        detector, calls = training.detector, Calls(training, self.models["f"])
        policy = Policy(training, lambda: self.do("d", []))
        self.functions = {
            "N": self.know_loaders,
            "M": detector.resolve_pending,
            "S": detector.use_manual_steps,
            "L": detector.loss_begins,
            "C": detector.update.closure_begins,
            "~": self.gradient,
            "W": training.start_workers,
            "s": training.save,
            "=": self.transfer,
            "b": training.backward,
            "F": self.fail,
            "R": self.hand_out,
            "v": calls.evaluate_policy,
            "G": calls.generate,
            "q": lambda: calls.in_other_mode(4),
            "Q": lambda: calls.in_other_mode(2),
            "o": calls.gather,
            "O": calls.score,
            "c": calls.compare,
            "A": calls.select_action,
            "p": policy.step,
            "P": policy.outer,
            "w": policy.twice,
            "y": policy.rectified,
            "k": policy.fit,
            "i": policy.decorated,
            "j": lambda: Policy.of_class(policy),
            "e": lambda: Policy.of_nothing(policy),
            "B": policy.within,
            "H": policy.nested,
            "I": policy.with_inner,
            "J": lambda: act(policy),
            "V": lambda: NoModule().step(policy),
        }
        self.acts = calls.collect_rollout

    def begin(self, events: Events, frames: int = MAX_FRAMES) -> None:
        if frames:  # the name of the test is too far away to be read
            self.begin(events, frames - 1)
        else:
            self.make(events)

    def make(self, events: Events) -> None:
        for event, inside in events:
            if event in self.models:
                self.call(self.models[event], inside)
            elif event in self.functions:
                self.functions[event]()
            else:
                self.do(event, inside)
            self.most_held = max(self.most_held, len(self.training.pending.events))
            self.after_each()

    def call(self, model: FakeModule, inside: Events) -> None:
        model.work = (lambda *_: self.make(inside)) if inside else None
        model(0)

    def fail(self) -> None:
        self.models["f"].work = lambda *_: [][0]
        with suppress(IndexError):
            self.models["f"](0)

    def gradient(self) -> None:
        self.training.detector.backward_begins()
        self.training.spend(1.0)
        self.training.detector.backward_ends()

    def transfer(self) -> None:
        code = 0 if self.training.is_busy else self.training.codes.data_transfer  # as the patch records it
        for each in (code, -code):
            if each:
                self.training.pending.record(each)
            self.training.spend(0.5)

    def know_loaders(self) -> None:
        known = {id(loader): self.registry.add_inferred() for loader in self.loaders.values()}
        self.training.detector.phases.passes.use_loaders(lambda iterator: known[id(iterator.loader)])

    def drain(self) -> None:
        self.drains += 1
        self.on_full()

    def hand_out(self) -> None:
        self.training.recorder.watermark_ns = None
        self.training.run.drain()
        self.training.recorder.watermark_ns = self.training.clock()

    def do(self, event: str, inside: Events) -> object:
        training = self.training
        match event:
            case "d" | "D" | "K":
                return next(self.passes.setdefault(event, iter(self.loaders[event])))
            case "!" | "/" | ";" if event == "!" or inside:
                batches = self.passes.setdefault("d", iter(self.loaders["d"]))
                one = training.detector.fetch_begins(batches, batches.fetched == 0)
                self.make(inside)
                training.detector.fetch_fails(one, is_over=event != "!")
            case "/" | ";" | ">":
                batches = self.passes.pop({"/": "d", ";": "D", ">": "K"}[event])
                batches.loader.batches = batches.fetched
                assert next(batches, None) is None
                batches.loader.batches = MANY
            case "z" | "Z":
                del self.passes[{"z": "d", "Z": "D"}[event]]
            case "(" | ")":
                training.is_grad_enabled = event == ")"
            case "E" | "T":
                self.models["f"].train(event == "T")
            case "X":
                training.detector.update_begins()
                self.make(inside)
                training.detector.update.end()
            case "u" | "U" | "x":
                closure = (lambda: self.make(inside)) if inside else None
                training.update(self.optimizers[event], 0 if inside else 1, closure=closure, is_skipped=event == "x")
            case "r":
                self.acts(inside, self.make)
            case "a":
                with training.run.section("augment"):
                    training.spend(1)
            case _:
                training.spend({".": 1.0, ",": 0.5, "'": 0.25}[event])


def run(program: str, after_each: Callable[[FakeTraining], object] = lambda training: None) -> tuple[Program, Figures]:
    training = FakeTraining()
    made = Program(training, lambda: after_each(training))
    made.begin(events_of(program))
    return made, training.finish()


def answer(line: str) -> str:
    """Return the sections of a program with their counts and times, its steps, and where its loop begins."""
    program, figures = run(line.rpartition(": ")[2])
    training = program.training
    parts = []
    for name, count in figures.counts.items():
        total_s, own_s = figures.total_s.get(name, 0), figures.self_s.get(name, 0)
        parts.append(f"{name} {count}x {total_s:g} s" + f" (own {own_s:g})" * (own_s != total_s))
    steps = [f"{len(list(alike))}x {step_s:g} s" for step_s, alike in itertools.groupby(figures.step_s)]
    parts += [f"outside {figures.self_s.get('', 0):g} s", f"steps {' '.join(steps) or '-'}"]
    if training.loop_begin_s is not None:
        parts.append(f"from {training.loop_begin_s:g} s on")
    with_grad = training.detector.phases.with_grad
    if with_grad:
        parts.append(f"with gradients {sum(each for each, _ in with_grad)}x {sum(ns for _, ns in with_grad) / 1e9:g} s")
    for name, loader in zip("dDK", program.registry.all, strict=False):
        phases = [f"{count} {phase}" for phase in (TRAIN, VAL) if (count := loader.of(phase).batches)]
        if phases:
            cut = loader.of(TRAIN).cut_passes
            parts.append(f"{name} {' '.join(phases)}" + f" in {cut} cut passes" * (cut > 0))
            assert len(loader.passes) <= 256
    if program.drains > 1:
        parts.append(f"drained {program.drains}x")
    if program.most_held > 1000:
        parts.append(f"at most {program.most_held} events held")
    assert training.detector.calls == []
    return ", ".join(parts)


@pytest.fixture(autouse=True)
def without_simulators(monkeypatch) -> None:
    for name in ("gymnasium", "gym"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_loops_are_recorded_as_what_they_are() -> None:
    assert_answers("loops", answer)


def drained() -> list[str]:
    """Return the programs of sections whose heading says that any two events may be drained apart."""
    lines, is_drained = [], False
    for line in (ANSWERS / "loops.txt").read_text().splitlines():
        is_drained = "handed out" in line if line.startswith("#") else is_drained
        lines += [line] * (is_drained and not line.startswith(("#", " ")))
    return lines


@pytest.mark.parametrize("line", drained())
def test_events_may_be_handed_out_between_any_two(line: str) -> None:
    def figures(drain: Callable[[FakeRun], None]) -> Figures:
        def pause(training: FakeTraining) -> None:
            training.spend(0.25)
            drain(training.run)
            training.spend(0.25)

        return run(line.rpartition(": ")[2], pause)[1]

    assert figures(FakeRun.drain) == figures(lambda run: None)
