"""What loops are recorded as, beyond the rows of test_loops.py: failures, limits, closures, and modules that train."""

import sys

import pytest

from tests.support.fake_training import EPOCH, FakeLoader, FakeModule, Loss, epochs, phases
from training_profiler.instrumentation.loop_detection.module_calls import MAX_USUAL_CALLS, TRAINER_DEPTH
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING
from training_profiler.recording.data_loader import LoaderRegistry

THREE = {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}


def test_pending_step_is_dropped_for_manual_steps(training, model, optimizer):
    training.train(model, range(1), optimizer)
    training.detector.use_manual_steps()
    training.finish()
    assert training.steps == 0


# Fetches


def test_failing_fetch_is_not_counted(training, model, loader):
    batches = iter(loader)
    next(batches)
    one = training.detector.fetch_begins(batches, False)
    training.spend(2)
    training.detector.fetch_fails(one, is_over=False)
    model(next(batches))
    training.backward()
    stats = training.finish()
    assert stats.counts["data_loading"] == 2
    assert stats.total_s["data_loading"] == 2.0
    assert stats.self_s[""] == 2.0


def test_events_within_a_failed_fetch_are_kept(training):
    batches = iter(FakeLoader(training, 1))
    one = training.detector.fetch_begins(batches, True)
    with training.run.section("decode"):
        training.spend(2)
    training.detector.fetch_fails(one, is_over=True)
    assert training.finish().counts == {"decode": 1}


# Updates that compute the loss by a closure


@pytest.mark.parametrize(
    ("events", "evaluations", "update_s", "step_s"),
    [
        ("sb", 1, 6.0, 9.0),  # without a module, the time before the gradient is the update's
        ("lsb", 1, 1.0, 9.0),  # unless a trainer says that it computes the loss
        ("fbb", 20, 20.0, 20 * 9.0),
    ],
)
def test_closures_of_updates_compute_losses(training, model, optimizer, events, evaluations, update_s, step_s):
    do = {"s": lambda: training.spend(5), "l": training.detector.loss_begins, "f": lambda: model(0)}

    def closure():
        for event in events:
            do.get(event, training.backward)()

    training.detector.loss_begins()  # outside of an update it changes nothing
    for _ in range(2):
        training.update(optimizer, closure=closure, evaluations=evaluations)
    stats = training.finish()
    calls = {"forward_pass": events.count("f"), "backward_pass": events.count("b"), "optimizer_step": 1 / evaluations}
    assert stats.counts == {name: 2 * evaluations * count for name, count in calls.items() if count}
    assert stats.total_s["optimizer_step"] == 2 * update_s
    assert stats.step_s == [step_s] * 2


def test_update_with_closure_counts_its_last_part(training, model, optimizer):
    def closure():
        training.spend(3)
        model(0)
        training.backward()

    training.update(optimizer, 4, closure=closure)
    counted = training.codes.optimizer
    spans = [(ns, code) for ns, code in zip(*[iter(training.pending.events)] * 2, strict=True) if abs(code) == counted]
    assert [code for _, code in spans] == [counted, -counted]
    assert spans[1][0] - spans[0][0] == 4e9


def test_update_ending_with_its_closure_counts(training, optimizer):
    training.detector.update_begins()
    training.detector.update.closure_begins()
    training.spend(2)
    training.detector.update_ends(optimizer)
    assert training.finish().counts == {"optimizer_step": 1}


def test_failed_update_is_ended_by_the_next(training, optimizer):
    training.detector.update_begins()
    training.spend(1)
    training.detector.update.end()
    training.spend(1)
    training.update(optimizer)
    assert training.finish().total_s["optimizer_step"] == 2.0
    assert training.steps == 1


# Limits


def test_training_without_updates_is_drained(training, model):
    for _ in range(MAX_PENDING // 8 + 10):
        model(0)
        training.backward()
    assert len(training.pending.events) < MAX_PENDING
    stats = training.finish()
    assert stats.counts == {"forward_pass": MAX_PENDING // 8 + 10, "backward_pass": MAX_PENDING // 8 + 10}
    assert stats.step_s == []


def test_overflow_of_usual_calls_keeps_counts(training):
    models = [FakeModule(training, seconds=0.001) for _ in range(MAX_USUAL_CALLS + 10)]
    for model in models * 2:
        model(0)
    assert training.finish().counts == {"forward_pass": 2 * len(models)}


def test_long_evaluation_is_drained_meanwhile(training, optimizer, loader):
    model, drains = FakeModule(training, seconds=0.25), []
    training.train(model, loader, optimizer)
    on_full = training.recorder.on_full
    training.recorder.on_full = lambda: (drains.append(training.recorder.watermark_ns), on_full())
    with training.no_grad():
        for batch in FakeLoader(training, 100, seconds=0.25):
            model(batch)
    assert len(drains) == 50
    assert len(training.pending.events) < 20
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert stats.counts == epochs(2, **phases(100))
    assert stats.total_s["validation_epoch"] == 50.0
    assert stats.step_s == [5.25] * 6


@pytest.mark.parametrize("has_fetched", [False, True])
def test_long_evaluation_without_loader_is_drained_meanwhile(training, optimizer, loader, has_fetched):
    model = FakeModule(training, seconds=0.25)
    training.train(model, loader, optimizer)
    if has_fetched:  # a batch, of which it is not known yet what it is for
        next(iter(loader))
    calls = MAX_PENDING // 4 + 1_000
    with training.no_grad():
        for _ in range(calls):
            model(0)
    assert len(training.pending.events) < MAX_PENDING
    training.train(model, loader, optimizer)
    stats = training.finish()
    assert (stats.counts["validation_epoch"], stats.counts["validation_epoch/forward_pass"]) == (1, calls)
    if not has_fetched:
        assert stats.counts == epochs(2, **{"validation_epoch": 1, "validation_epoch/forward_pass": calls})
        assert stats.total_s["validation_epoch"] == calls / 4


# Evaluations


def test_gradients_within_an_evaluation_are_no_training(training, optimizer):
    """A potential computes forces as gradients of its energy in each forward pass, in evaluations as well."""

    def gradient(*_):
        training.detector.backward_begins()
        training.clock.advance(1.0)
        training.detector.backward_ends()

    model = FakeModule(training, work=gradient)
    for _ in range(3):
        training.train(model, range(4), optimizer)
        model.eval()
        with training.no_grad():
            for _ in range(5):
                model(0)
        model.train()
    stats = training.finish()
    assert (stats.counts["validation_epoch"], stats.counts["validation_epoch/forward_pass"]) == (3, 15)
    assert stats.total_s["validation_epoch"] == 3 * 5 * 3.0
    assert (stats.counts["forward_pass"], stats.counts["optimizer_step"]) == (12, 12)
    assert stats.total_s["forward_pass"] == 12 * 3.0


@pytest.mark.parametrize(
    ("is_trained", "is_other", "evaluated"), [(True, True, 1), (True, False, 0), (False, False, 0)]
)
def test_a_batch_at_the_end_is_evaluation_of_a_loader_that_never_trained(
    training, model, optimizer, loader, is_trained, is_other, evaluated
):
    """The program may also have ended in it, perhaps because the loss is not a number."""
    other, registry = FakeLoader(training, 5), LoaderRegistry()
    known = {id(each): registry.add_inferred() for each in (loader, other)}
    training.detector.phases.passes.use_loaders(lambda iterator: known[id(iterator.loader)])
    if is_trained:
        training.train(model, loader, optimizer)
    model(next(iter(other if is_other else loader)))
    counts = training.finish().counts
    assert (counts.get("validation_epoch", 0), counts["forward_pass"]) == (evaluated, 3 * is_trained + 1 - evaluated)
    if evaluated:
        assert (known[id(loader)].of("train").batches, known[id(other)].of("val").batches) == (3, 1)
    assert sum(count for count, _ in training.detector.phases.with_grad) == evaluated


# Modules


def test_module_that_gets_its_parameters_later_has_forward_passes(training, optimizer):
    model, other = FakeModule(training, parameters=0), FakeModule(training)
    for step in range(10):
        other(0)
        with training.run.section("augment"):
            training.spend(1)
        model(0)
        training.backward()
        training.update(optimizer)
        if not step:
            model._parameters["weight"] = next(iter(other._parameters.values()))
    assert training.finish().counts["forward_pass"] == 20 - 1


def test_loop_begins_with_its_first_outermost_call(training, optimizer):
    model = FakeModule(training, FakeModule(training, FakeModule(training, FakeModule(training))), seconds=1)
    training.spend(1)
    training.train(model, range(1), optimizer)
    assert training.loop_begin_s == 1.0
    assert training.finish().step_s == [11.0]


def test_explored_first_call_is_recorded_like_others(training, optimizer):
    teacher = FakeModule(training, requires_grad=False)

    def work(_):
        with training.no_grad():
            teacher(0)
        code = 0 if training.is_busy else training.codes.data_transfer  # as the patch records it
        for each in (code, -code):
            if each:
                training.pending.record(each)
            training.spend(0.5)

    class Model(FakeModule):
        pass

    training.train(Model(training, work=work), range(3), optimizer)
    stats = training.finish()
    assert stats.counts == THREE
    assert stats.total_s["forward_pass"] == 15.0


def test_only_the_first_call_of_a_class_is_explored_and_none_of_compiled_code(training):
    calls = []
    begins = training.detector.call_begins

    class Model(FakeModule):
        pass

    inner = FakeModule(training)
    model = Model(training, inner)
    training.detector.call_begins = lambda module, *about: calls.append(module) or begins(module, *about)
    model(0)
    model(0)
    assert calls == [model, inner, model]
    assert not begins(FakeModule(training), (), False, sys._getframe()).is_explored


def test_failing_forward_pass_counts(training, optimizer, loader):
    def work(batch):
        if batch == 2:
            raise MemoryError

    model = FakeModule(training, work=work)
    for batch in loader:
        try:
            model(batch)
        except MemoryError:
            continue
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 3
    assert training.detector.calls == []
    assert stats.step_s == [7.0, 10.0]


def test_fetch_within_a_method_begins_another_forward_pass(training, loader):
    class Policy(FakeModule):
        def fit(self):
            for module in self._modules.values():
                module(next(batches))

    batches = iter(loader)
    Policy(training, FakeModule(training), FakeModule(training)).fit()
    assert training.finish().counts["forward_pass"] == 2


# Modules whose call trains


def test_class_confirmed_in_evaluation_may_still_train(training):
    model = FakeModule(training, work=lambda trains: training.backward() if trains else None)
    for trains in (False, False, True, False):
        model(trains)
    assert training.finish().counts == {"forward_pass": 3, "backward_pass": 1}


def test_trainers_are_no_forward_passes(training, model, optimizer):
    class Outer(FakeModule):
        pass

    class Inner(FakeModule):
        pass

    Outer(training, Inner(training, work=lambda: training.train(model, range(3), optimizer)))()
    assert TRAINER_DEPTH == 3
    assert training.finish().counts == THREE


def test_trainer_called_for_each_step_is_never_a_forward_pass(training, model, optimizer, loader):
    class Trainer(FakeModule):
        pass

    trainer = Trainer(training, work=lambda batch: training.train(model, [batch], optimizer), seconds=0.5)
    for batch in loader:
        trainer(batch)
    stats = training.finish()
    assert stats.counts == EPOCH
    assert stats.step_s == [7.5] * 3


def test_trainer_without_parameters_keeps_the_forward_pass_before_it(training, model, optimizer, loader):
    trainer = Loss(training)
    trainer.work = lambda: training.train(model, loader, optimizer)
    model(0)  # to see its output
    trainer()
    assert training.finish().counts == EPOCH | {"forward_pass": 4}


def test_trainer_is_not_a_forward_pass_even_if_its_enter_was_drained(training, optimizer):
    class Trainer(FakeModule):
        pass

    def fit():
        training.recorder.watermark_ns = None
        training.run.drain()
        training.recorder.watermark_ns = training.clock()
        training.backward()
        training.update(optimizer)

    Trainer(training, work=fit)()
    assert training.finish().counts == {"backward_pass": 1, "optimizer_step": 1}
