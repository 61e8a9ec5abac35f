"""What loops are recorded as. A row has a sequence of events, the spans that it gives, and the seconds of its steps.

| letter | event |
| --- | --- |
| `d` `D` `K` | a batch of the training loader (1 s), of the validation loader, of a second one (0.5 s each) |
| `W` | workers of a loader are started (5 s) |
| `/` `;` | the training loader is empty, the validation loader is empty |
| `z` `Z` | the iterator of the training loader, of the validation loader is dropped |
| `f` `g` | a call of the model, of a second model (2 s each) |
| `l` `t` | a call of the loss, of a frozen teacher (1 s each) |
| `(` `)` | gradients are off, and on again |
| `E` `T` | the model is in eval mode, in train mode |
| `b` `u` `U` | a backward pass (3 s), an update by the optimizer, by a second one (1 s each) |
| `x` | an update that is skipped, as by a gradient scaler |
| `s` | a checkpoint (1 s) |
| `a` | a section of the program's own, `augment` (1 s) |
| `.` `,` | other work for 1 s, for 0.5 s |
| `M` | the program marks an epoch |
| `r` `v` `G` | 4 calls without gradients, 1 s after each: by a function that collects, evaluates, generates |
| `q` `Q` | 4 calls, 2 calls in eval mode and without gradients, by a function that says nothing |
| `o` `O` `c` | such calls by one with variables of acting, in one that evaluates, by one with both kinds |
| `A` | a call with gradients in eval mode, by a function that acts |
| `p` `n` `w` `y` | a method calls two modules (1 s each): alone, in another one, one again, an activation between |
"""

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.support.fake_training import EPOCH as COUNTS
from tests.support.fake_training import (
    FakeLoader,
    FakeModule,
    FakeOptimizer,
    FakeTraining,
    Figures,
    Loss,
    epochs,
    phases,
)
from tests.support.recording import FakeRun
from training_profiler.instrumentation.loop_detection.no_grad_runs import MAX_FRAMES, MAX_TEACHER_CALLS
from training_profiler.instrumentation.loop_detection.phase_detector import MAX_MISSES

MANY = 10**6
STEP = "dfbu"
EPOCH = 3 * STEP + "/"
VALIDATION = 4 * "D(f)" + ";"


class Policy(FakeModule):
    """A module that is not called itself: its methods call two modules."""

    def __init__(self, training: FakeTraining) -> None:
        super().__init__(training, FakeModule(training, seconds=1), FakeModule(training, seconds=1))
        self.body, self.head = self._modules.values()
        self.relu = Loss(training)

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

    def collect_rollout(self) -> None:
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


class Program:
    """Makes events of a fake training."""

    def __init__(self, training: FakeTraining) -> None:
        self.training = training
        self.optimizers = {"u": FakeOptimizer(), "U": FakeOptimizer(), "x": FakeOptimizer()}
        self.optimizers["x"] = self.optimizers["u"]
        self.models = {
            "f": FakeModule(training),
            "g": FakeModule(training),
            "l": Loss(training),
            "t": FakeModule(training, requires_grad=False, seconds=1),
        }
        self.loaders = {"d": FakeLoader(training, MANY)}
        self.loaders |= {name: FakeLoader(training, MANY, seconds=0.5) for name in "DK"}
        self.passes = {}
        calls, policy = Calls(training, self.models["f"]), Policy(training)
        self.functions = {
            "M": training.detector.resolve_pending,
            "W": training.start_workers,
            "s": training.save,
            "b": training.backward,
            "r": calls.collect_rollout,
            "v": calls.evaluate_policy,
            "G": calls.generate,
            "q": lambda: calls.in_other_mode(4),
            "Q": lambda: calls.in_other_mode(2),
            "o": calls.gather,
            "O": calls.score,
            "c": calls.compare,
            "A": calls.select_action,
            "p": policy.step,
            "n": policy.outer,
            "w": policy.twice,
            "y": policy.rectified,
        }

    def make(self, events: str, after_each: Callable[[], object] = lambda: None, frames: int = MAX_FRAMES) -> None:
        if frames:  # the name of the test, which says that it evaluates, is too far away to be read
            self.make(events, after_each, frames - 1)
            return
        for event in events:
            if event in self.models:
                self.models[event](0)
            elif event in self.functions:
                self.functions[event]()
            else:
                self.do(event)
            after_each()

    def do(self, event: str) -> None:
        training = self.training
        match event:
            case "d" | "D" | "K":
                next(self.passes.setdefault(event, iter(self.loaders[event])))
            case "/" | ";":
                batches = self.passes.pop({"/": "d", ";": "D"}[event])
                batches.loader.batches = batches.fetched
                assert next(batches, None) is None
                batches.loader.batches = MANY
            case "z" | "Z":
                del self.passes[{"z": "d", "Z": "D"}[event]]
            case "(" | ")":
                training.is_grad_enabled = event == ")"
            case "E" | "T":
                self.models["f"].train(event == "T")
            case "u" | "U" | "x":
                training.update(self.optimizers[event], is_skipped=event == "x")
            case "a":
                with training.run.section("augment"):
                    training.spend(1)
            case _:
                training.spend({".": 1.0, ",": 0.5}[event])


class Loop(NamedTuple):
    """A sequence of events, and what it must be recorded as."""

    events: str
    counts: dict[str, int]
    step_s: list[float]
    total_s: Mapping[str, float] = MappingProxyType(
        {}
    )  # of some sections; "" is what is outside of all, without what is in them
    begin_s: float = 0.0  # of the training loop
    with_grad: tuple[int, float] = (0, 0.0)  # forward passes of evaluations, and their seconds


def counts(passes: int, updates: int | None = None, **others: int) -> dict[str, int]:
    """Return the counts of a training without a loader, and others."""
    updates = passes if updates is None else updates
    return {"forward_pass": passes, "backward_pass": passes, "optimizer_step": updates, **others}


def evaluated(times: int, calls: int, **others: int) -> dict[str, int]:
    """Return the counts of evaluations without a loader."""
    return {"validation_epoch": times, "validation_epoch/forward_pass": calls, **others}


def acted(times: int, passes: int, **others: int) -> dict[str, int]:
    """Return the counts of a training without a loader that acts so many times, and others."""
    return counts(passes, forward_without_grad=4 * times, rollout=times, **others)


TRAININGS = {
    "steps of fetch, forward pass, backward pass and update": Loop(
        EPOCH,
        COUNTS,
        3 * [7.0],
        {"data_loading": 3.0, "first_fetch": 1.0, "forward_pass": 6.0, "backward_pass": 9.0, "optimizer_step": 3.0},
    ),
    "the loop begins with its first fetch": Loop(5 * "." + EPOCH, COUNTS, 3 * [7.0], {"": 5.0}, begin_s=5.0),
    "without a loader it begins with its first forward pass": Loop(
        3 * "....fbu", counts(3), [6.0, 10.0, 10.0], begin_s=4.0
    ),
    "time after the last step is outside of steps": Loop(EPOCH + 9 * ".", COUNTS, 3 * [7.0], {"": 9.0}),
    "a single step": Loop(STEP + "/", dict.fromkeys(COUNTS, 1), [7.0]),
    "accumulated gradients": Loop(
        2 * (3 * "dfb" + STEP) + "/", counts(8, 2, data_loading=8, first_fetch=1), 2 * [25.0]
    ),
    "workers of the training stay in its step": Loop(
        2 * ("W" + EPOCH + VALIDATION),
        epochs(2, worker_start=2, **phases(4, 2)),
        [7.0, 7.0, 7.0, 12.0, 7.0, 7.0],
        begin_s=5.0,
    ),
    "a skipped update ends no step": Loop("dfbu" + "dfbx" + "dfbu/", COUNTS, [7.0, 14.0]),
    "two optimizers in turns make one step": Loop(
        3 * "dfbugbU" + "/", counts(6, data_loading=3, first_fetch=1), 3 * [13.0]
    ),
    "two optimizers with evaluations between steps": Loop(
        3 * ("dfbugbU(" + 5 * "Dg" + ";)..") + "/",
        counts(6, data_loading=3, first_fetch=1, **phases(5, 3)),
        [13.0, 15.0, 15.0],  # with the two seconds after the step before
    ),
    "micro-batches that are fetched ahead": Loop(
        2 * ("ddd" + 3 * "fb" + "u"), counts(6, 2, data_loading=6, first_fetch=1), 2 * [19.0]
    ),
    "a loader that reads a batch ahead": Loop(
        2 * ("ddfbu" + "dfbu" + "/fbu" + VALIDATION), epochs(2, **phases(4, 2)), 2 * [8.0, 7.0, 6.0]
    ),
    "a checkpoint between steps keeps the next batch in its step": Loop(
        3 * "dfbus" + "/", epochs(1, checkpointing=3), 3 * [7.0]
    ),
    "losses that are summed over a loader": Loop(
        2 * (3 * "df" + "/bu"), epochs(2) | {"backward_pass": 2, "optimizer_step": 2}, 2 * [13.0]
    ),
    "single batches of two loaders": Loop(
        3 * "dzfDZfbu", counts(3, data_loading=6, first_fetch=6) | {"forward_pass": 6}, 3 * [9.5]
    ),
    "a pass for statistics of the data": Loop(
        5 * "D," + ";" + EPOCH, COUNTS | {"data_loading": 8, "first_fetch": 2}, 3 * [7.0], begin_s=5.0
    ),
    "a pass for statistics in each step": Loop(
        3 * "dDD;fbu" + "/", COUNTS | {"data_loading": 9, "first_fetch": 4}, 3 * [8.0]
    ),
    "a pass that is only read is not an evaluation": Loop(
        EPOCH + 4 * "D" + ";" + EPOCH,
        epochs(2) | {"data_loading": 10, "first_fetch": 3},
        [7.0, 7.0, 7.0, 9.0, 7.0, 7.0],
    ),
    "a training in eval mode": Loop("fbufbuE" + 4 * "fbu", counts(6), 6 * [6.0]),
}
FORWARD_PASSES = {
    "losses extend the forward pass": Loop(3 * "dfllbu" + "/", COUNTS, 3 * [9.0], {"forward_pass": 12.0}),
    "time between model and loss is forward pass": Loop("f,lbu", counts(1), [7.5], {"forward_pass": 3.5}),
    "a loss after other work adds its time": Loop(
        2 * "falbu", counts(2, augment=2), 2 * [8.0], {"forward_pass": 6.0, "augment": 2.0}
    ),
    "a frozen encoder adds its time": Loop(
        "f" + 2 * "tfbu", counts(2) | {"forward_pass": 3}, [9.0, 7.0], {"forward_pass": 8.0}
    ),
    "each call of the model is one": Loop(3 * "ffbu", counts(3) | {"forward_pass": 6}, 3 * [8.0]),
    "the loss is a part of those of an evaluation": Loop(
        EPOCH + 4 * "D(fl)" + ";",
        epochs(1, **phases()),
        3 * [7.0],
        {"validation_epoch/forward_pass": 12.0, "validation_epoch": 14.0},
    ),
}
WITH_WORKERS = epochs(2, **phases(4, 2), **{"validation_epoch/worker_start": 2})
EVALUATIONS = {
    "gradients are off around the loop": Loop(
        2 * (EPOCH + "E(" + 4 * "Df" + ";)T"),
        epochs(2, **phases(4, 2)),
        6 * [7.0],
        {"validation_epoch": 20.0, "validation_epoch/forward_pass": 16.0},
    ),
    "gradients are off in the loop": Loop(
        2 * (EPOCH + VALIDATION), epochs(2, **phases(4, 2)), 6 * [7.0], {"validation_epoch": 20.0}
    ),
    "eval mode with gradients": Loop(
        2 * (EPOCH + "E" + 4 * "Df" + ";T"), epochs(2, **phases(4, 2)), 6 * [7.0], with_grad=(8, 16.0)
    ),
    "train mode with gradients": Loop(
        2 * (EPOCH + 4 * "Df" + ";"),
        epochs(2, **phases(4, 2)),
        6 * [7.0],
        {"validation_epoch": 20.0},
        with_grad=(8, 16.0),
    ),
    "train mode with gradients and a loss": Loop(
        2 * (EPOCH + 4 * "Dfl" + ";s"),
        epochs(2, **phases(4, 2), checkpointing=2),
        6 * [7.0],
        {"validation_epoch": 28.0},
        with_grad=(8, 24.0),
    ),
    "a single batch, without gradients around it": Loop(
        2 * (EPOCH + "(DZf)"), epochs(2, **phases(1, 2)), 6 * [7.0], {"validation_epoch": 5.0}
    ),
    "a single batch, without gradients in its pass": Loop(
        2 * (EPOCH + "DZ(f)"), epochs(2, **phases(1, 2)), 6 * [7.0], {"validation_epoch": 5.0}
    ),
    "amid an epoch": Loop(2 * STEP + "(DZf)" + STEP + "/", epochs(1, **phases(1)), 3 * [7.0]),
    "amid an endless iterator, with gradients": Loop(
        2 * (3 * STEP + "DfDfZ"),
        epochs(2, first_fetch=1, **phases(2, 2)),
        6 * [7.0],
        with_grad=(4, 8.0),
    ),
    "an aborted one ends with its last forward pass": Loop(
        EPOCH + "(DfDfZ)....." + EPOCH,
        epochs(2, **phases(2)),
        [7.0, 7.0, 7.0, 12.0, 7.0, 7.0],
        {"validation_epoch": 5.0, "": 5.0},
    ),
    "two loaders at once": Loop(
        EPOCH + 4 * "DK(f)" + ";",
        epochs(1, **phases() | {"validation_epoch/data_loading": 8, "validation_epoch/first_fetch": 2}),
        3 * [7.0],
        {"validation_epoch": 12.0},
    ),
    "workers of its loader are a part of it, gradients off around it": Loop(
        2 * (EPOCH + "(W" + 4 * "Df" + ";)"), WITH_WORKERS, 6 * [7.0], {"validation_epoch/worker_start": 10.0}
    ),
    "workers of its loader are a part of it, gradients off in it": Loop(
        2 * (EPOCH + "W" + VALIDATION), WITH_WORKERS, 6 * [7.0], {"validation_epoch/worker_start": 10.0}
    ),
    "workers of its loader are a part of it, with gradients": Loop(
        2 * (EPOCH + "W" + 4 * "Df" + ";"),
        WITH_WORKERS,
        6 * [7.0],
        {"validation_epoch/worker_start": 10.0},
        with_grad=(8, 16.0),
    ),
    "a pass mistaken for one becomes training after some steps": Loop(
        "(df)" + 10 * STEP,
        {
            **counts(10, data_loading=10 - MAX_MISSES - 1),
            "validation_epoch": 3,
            "validation_epoch/data_loading": 4,
            "validation_epoch/first_fetch": 1,
            "validation_epoch/forward_pass": 1,
        },
        3 * [6.0] + 7 * [7.0],
        begin_s=4.0,
    ),
    "on the loader of the training": Loop(2 * (EPOCH + 3 * "d(f)" + "/"), epochs(2, **phases(3, 2)), 6 * [7.0]),
    "before the first step": Loop("(" + 4 * "Df" + ";).." + EPOCH, epochs(1, **phases()), 3 * [7.0], begin_s=12.0),
    "at the end of the run": Loop(EPOCH + "DZ(f)", epochs(1, **phases(1)), 3 * [7.0], {"validation_epoch": 2.5}),
    "without a training": Loop(VALIDATION, phases(), []),
    "before a checkpoint": Loop(
        2 * (EPOCH + VALIDATION + "s"),
        epochs(2, **phases(4, 2), checkpointing=2),
        6 * [7.0],
        {"validation_epoch": 20.0, "checkpointing": 2.0},
    ),
    "one after another": Loop(
        2 * (EPOCH + "(" + 4 * "Df" + ";" + 2 * "Df" + ";)"),
        epochs(2, **phases(6, 2) | {"validation_epoch/first_fetch": 4}),
        6 * [7.0],
        {"validation_epoch": 30.0},
    ),
    "a loader begins again in each batch": Loop(
        EPOCH + 4 * "Ddz(f)" + ";" + EPOCH,
        epochs(2, **phases(4) | {"validation_epoch/data_loading": 8, "validation_epoch/first_fetch": 5}),
        6 * [7.0],
        {"validation_epoch": 14.0},
    ),
    "a batch is read ahead": Loop(
        2 * (EPOCH + "(D" + 3 * "Df" + ";f)"), epochs(2, **phases(4, 2)), 6 * [7.0], {"validation_epoch": 20.0}
    ),
    "at each step": Loop(
        12 * (STEP + "D(f)"),
        epochs(
            4,
            first_fetch=1,
            **evaluated(12, 12),
            **{"validation_epoch/data_loading": 12, "validation_epoch/first_fetch": 1},
        ),
        12 * [7.0],
    ),
    "between fetch and forward pass": Loop(
        3 * ("d(" + 4 * "Df" + ";)fbu") + "/",
        epochs(1, **phases(4, 3)),
        [6.0, 7.0, 7.0],  # the first batch was handed out before the training was detected
        begin_s=11.0,
    ),
    "between micro-batches": Loop(
        2 * (2 * ("dfb(" + 4 * "Df" + ";)") + "u"),
        counts(4, 2, data_loading=4, first_fetch=1, **phases(4, 4)),
        2 * [13.0],
    ),
    "a module without parameters comes first": Loop(
        EPOCH + "(" + 4 * "lf" + ")" + EPOCH,
        epochs(2, **evaluated(1, 4)),
        6 * [7.0],
        {"validation_epoch": 12.0, "validation_epoch/forward_pass": 12.0, "forward_pass": 12.0},
    ),
    "sampling between steps": Loop(
        2 * STEP + "(" + 20 * "f" + ")" + STEP + "/",
        epochs(1, **evaluated(1, 20)),
        3 * [7.0],
        {"validation_epoch": 40.0},
    ),
    "sampling without a loader ends with its last call": Loop(
        3 * "fbu(f),", counts(3, **evaluated(3, 3)), [6.0, 6.5, 6.5], {"validation_epoch": 6.0}
    ),
    "eval mode with gradients and without a loader, one call": Loop(
        4 * "TfbuEf", counts(4, **evaluated(4, 4)), 4 * [6.0], with_grad=(4, 8.0)
    ),
    "eval mode with gradients and without a loader, five calls": Loop(
        4 * "TfbuEfffff", counts(4, **evaluated(4, 20)), 4 * [6.0], with_grad=(20, 40.0)
    ),
}
IN_STEPS = {
    "a frozen teacher": Loop(
        3 * "d(t)fbu" + "/", epochs(1, forward_without_grad=3), 3 * [8.0], {"forward_without_grad": 3.0}
    ),
    "a frozen teacher without a loader": Loop(
        3 * (MAX_TEACHER_CALLS * "(t)" + "fbu"),
        counts(3, forward_without_grad=3 * MAX_TEACHER_CALLS),
        3 * [MAX_TEACHER_CALLS + 6.0],
    ),
    "a target by the model itself": Loop(3 * "df(f)bu" + "/", epochs(1, forward_without_grad=3), 3 * [9.0]),
    "a target for the second update of a batch": Loop(
        3 * "dfbu(f)gbU" + "/", counts(6, data_loading=3, first_fetch=1, forward_without_grad=3), 3 * [15.0]
    ),
    "calls at the top level of a script": Loop(3 * "(ffff)fbu", counts(3, forward_without_grad=12), 3 * [14.0]),
    "a discriminator in eval mode": Loop(4 * "TfbuEfgfbU", counts(8) | {"forward_pass": 16}, 4 * [16.0]),
}
LEARN = 3 * "fbu"
ACTING = {
    "what is collected before updates": Loop(2 * ("r" + LEARN), acted(2, 6), 2 * [18.0, 6.0, 6.0], {"rollout": 22.0}),
    "in eval mode": Loop(2 * ("ErT" + LEARN), acted(2, 6), 2 * [18.0, 6.0, 6.0], {"rollout": 22.0}),
    "targets are no part of it": Loop(
        3 * "r(g)fbu", acted(3, 3) | {"forward_without_grad": 15}, 3 * [20.0], {"rollout": 33.0}
    ),
    "an evaluation shows by its name": Loop(2 * "rfburfbuv", acted(4, 4, **evaluated(2, 8)), [18.0, 18.0, 19.0, 18.0]),
    "a loader of what was collected": Loop(
        2 * ("r" + EPOCH), acted(2, 6, data_loading=6, first_fetch=2), 2 * [19.0, 7.0, 7.0]
    ),
    "a checkpoint amid it": Loop(
        "rfbu" + 2 * "rsrfbu", acted(3, 3, checkpointing=2) | {"forward_without_grad": 20}, [18.0, 30.0, 30.0]
    ),
    "at the end of the run": Loop(2 * "rfbu" + "r", acted(3, 2), 2 * [18.0]),
    "variables show it in eval mode": Loop(2 * ("o" + LEARN), acted(2, 6), 2 * [18.0, 6.0, 6.0]),
    "other functions with such variables evaluate": Loop(
        4 * "ofbuOfbu", acted(4, 8, **evaluated(4, 16)), 4 * [18.0, 7.0]
    ),
    "variables of both kinds evaluate": Loop(4 * "cfbu", counts(4, **evaluated(4, 16)), 4 * [6.0], begin_s=8.0),
    "in eval mode with gradients": Loop(
        4 * "AAAfbu", counts(4) | {"forward_pass": 16}, [6.0] + 3 * [12.0], begin_s=6.0
    ),
}
WITHOUT_A_NAME = {
    "eval mode evaluates": Loop(3 * "fbuq", counts(3, **evaluated(3, 12)), 3 * [6.0]),
    "eval mode before each single update feeds it": Loop(
        5 * "qfbu", counts(5, forward_without_grad=16, **evaluated(1, 4)), [6.0] + 4 * [14.0], begin_s=8.0
    ),
    "eval mode before some updates evaluates": Loop(
        4 * "qfbufbu", counts(8, **evaluated(4, 16)), 8 * [6.0], begin_s=8.0
    ),
    "few calls in eval mode evaluate": Loop(4 * "Qfbu", counts(4, **evaluated(4, 8)), 4 * [6.0], begin_s=4.0),
    "calls that the first update did without evaluate": Loop(
        3 * ("fbu(f)" + LEARN), counts(12, **evaluated(3, 3)), 12 * [6.0]
    ),
    "texts generated for each update feed it": Loop(3 * "EGTfbu", counts(3, forward_without_grad=12), 3 * [18.0]),
    "in train mode without any training they are none": Loop("(fff)", {"forward_without_grad": 3}, []),
    "many in train mode without any training are none": Loop("(" + 65 * "f" + ")", {"forward_without_grad": 65}, []),
    "in eval mode without any training they evaluate": Loop("E(fff)", evaluated(1, 3), []),
    "many in eval mode before the first step evaluate": Loop(
        "E(" + 65 * "f" + ")T" + LEARN, counts(3, **evaluated(1, 65)), 3 * [6.0], begin_s=130.0
    ),
    "many by another model before the first step make data": Loop(
        "(" + 65 * "g" + ")" + LEARN, counts(3, forward_without_grad=65), 3 * [6.0], begin_s=130.0
    ),
    "many calls of a frozen judge evaluate": Loop(
        3 * ("fbu(" + 65 * "t" + ")"), counts(3, **evaluated(3, 195)), 3 * [6.0]
    ),
    "frozen features of all the data are no step": Loop(
        "(" + 65 * "t" + ")" + LEARN, counts(3, **evaluated(1, 65)), 3 * [6.0], begin_s=65.0
    ),
}
METHODS = {
    "two modules": Loop(3 * "pbu", counts(3), 3 * [6.0], {"forward_pass": 6.0}),
    "each call of the method": Loop(3 * "ppbu", counts(3) | {"forward_pass": 6}, 3 * [8.0]),
    "in another method": Loop(3 * "nbu", counts(3), 3 * [6.0]),
    "an activation between": Loop(4 * "ybu", counts(4), 4 * [7.0], {"forward_pass": 12.0}),
    "a module again": Loop(3 * "wbu", counts(3) | {"forward_pass": 6}, 3 * [7.0]),
}
MANUAL = {
    "an epoch ends the evaluation": Loop(
        EPOCH + VALIDATION + "M....", epochs(1, **phases()), 3 * [7.0], {"validation_epoch": 10.0}
    ),
    "an epoch ends the pending step": Loop(2 * "fbugbU" + "M", counts(4), 2 * [12.0]),
}
LOOPS = {
    f"{kind}: {name}": loop
    for kind, loops in (
        ("training", TRAININGS),
        ("forward passes", FORWARD_PASSES),
        ("evaluation", EVALUATIONS),
        ("in steps", IN_STEPS),
        ("acting", ACTING),
        ("without a name", WITHOUT_A_NAME),
        ("methods", METHODS),
        ("manual", MANUAL),
    )
    for name, loop in loops.items()
}


@pytest.fixture(autouse=True)
def without_simulators(monkeypatch) -> None:
    for name in ("gymnasium", "gym"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_loop_is_recorded_as_what_it_is(loop: Loop) -> None:
    training = FakeTraining()
    Program(training).make(loop.events)
    stats = training.finish()
    assert stats.counts == loop.counts
    assert stats.step_s == loop.step_s
    for name, total_s in loop.total_s.items():
        assert (stats.total_s if name else stats.self_s)[name] == total_s
    assert training.loop_begin_s == (loop.begin_s if loop.step_s else None)
    with_grad = training.detector.phases.with_grad
    assert (sum(count for count, _ in with_grad), sum(ns for _, ns in with_grad) / 1e9) == loop.with_grad


DRAINED = [TRAININGS, FORWARD_PASSES, EVALUATIONS, IN_STEPS]
TRAINED = {name: loop for loops in DRAINED for name, loop in loops.items() if loop.step_s}


@pytest.mark.parametrize("loop", TRAINED.values(), ids=TRAINED)
def test_events_may_be_drained_between_any_two(loop: Loop) -> None:
    def figures(drain: Callable[[FakeRun], None]) -> Figures:
        training = FakeTraining()

        def pause() -> None:
            training.spend(0.25)
            drain(training.run)
            training.spend(0.25)

        Program(training).make(loop.events, pause)
        return training.finish()

    assert figures(FakeRun.drain) == figures(lambda run: None)
