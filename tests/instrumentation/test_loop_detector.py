"""What loops are recorded as, beyond the rows of test_loops.py: failures, limits, closures, and modules that train."""

import sys
from types import CodeType

from tests.support.fake_training import FakeModule
from training_profiler.instrumentation.loop_detection.module_calls import MAX_USUAL_CALLS
from training_profiler.instrumentation.loop_detection.modules import MethodFrames


def test_overflow_of_usual_calls_keeps_counts(training):
    models = [FakeModule(training, seconds=0.001) for _ in range(MAX_USUAL_CALLS + 10)]
    for model in models * 2:
        model(0)
    assert training.finish().counts == {"forward_pass": 2 * len(models)}


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


def test_frames_of_methods_are_not_kept(training):
    frames = MethodFrames(FakeModule)

    class Policy(FakeModule):
        def act(self):
            return frames.outermost(sys._getframe())

    assert Policy(training).act() is not None
    assert {type(code) for code, _ in frames._is_method.values()} == {CodeType}
    assert frames.outermost(None) is None
