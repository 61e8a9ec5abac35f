"""What loops are recorded as, beyond the rows of test_loops.py: failures, limits, closures, and modules that train."""

import sys

import pytest

from tests.support.fake_training import FakeLoader, FakeModule
from training_profiler.instrumentation.loop_detection.module_calls import MAX_USUAL_CALLS
from training_profiler.recording.data_loader import LoaderRegistry

THREE = {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}


def test_overflow_of_usual_calls_keeps_counts(training):
    models = [FakeModule(training, seconds=0.001) for _ in range(MAX_USUAL_CALLS + 10)]
    for model in models * 2:
        model(0)
    assert training.finish().counts == {"forward_pass": 2 * len(models)}


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
