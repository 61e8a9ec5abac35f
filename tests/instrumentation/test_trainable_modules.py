import weakref

import pytest
import torch

from tests.support.fake_training import FakeModule
from training_profiler.instrumentation.loop_detection import modules
from training_profiler.instrumentation.loop_detection.modules import (
    CALLS_PER_CHECK,
    TrainableModules,
    is_bare,
    modules_within,
)


class Parameters(dict):
    """Counts how often its values are asked for."""

    checked = 0

    def values(self):
        self.checked += 1
        return super().values()


def module_of(*inner, parameters=1, requires_grad=True):
    module = FakeModule(None, *inner, parameters=parameters, requires_grad=requires_grad)
    module._parameters = Parameters(module._parameters)
    return module


@pytest.fixture
def trainable() -> TrainableModules:
    return TrainableModules()


def test_modules_with_a_parameter_that_needs_a_gradient_are_trainable(trainable):
    discriminator = module_of(requires_grad=False)
    discriminator.training = True
    for module in (module_of(), module_of(module_of(parameters=0), module_of(), parameters=0), discriminator):
        assert not trainable.was_trained(id(module))
        assert trainable.is_trainable(module)
        module._parameters.clear()
        assert trainable.was_trained(id(module))


def test_trainable_module_is_checked_once(trainable):
    module = module_of()
    assert all(trainable.is_trainable(module) for _ in range(100))
    module._parameters["0"].requires_grad = False
    assert trainable.is_trainable(module)
    assert module._parameters.checked == 1
    assert trainable.is_any


def test_frozen_module_is_rechecked_now_and_then(trainable):
    module = module_of(requires_grad=False)
    assert not any(trainable.is_trainable(module) for _ in range(10 * CALLS_PER_CHECK))
    assert module._parameters.checked == 8 + 9
    module._parameters["0"].requires_grad = True
    assert [trainable.is_trainable(module) for _ in range(CALLS_PER_CHECK)][-1]


def test_number_of_remembered_modules_is_limited(trainable, monkeypatch):
    monkeypatch.setattr(modules, "MAX_MODULES", 10)
    kept = [module_of(requires_grad=number % 2 == 0) for number in range(40)]
    assert [trainable.is_trainable(module) for module in kept] == [True, False] * 20
    assert len(trainable._trainable) + len(trainable._frozen) <= 11


@pytest.mark.parametrize("returned", [[], None, {"weight": 1}])
def test_the_methods_of_a_module_may_return_anything(trainable, returned):
    class Learner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.ReLU()])
            self.absent = None
            self.register_module("later", None)
            self.register_parameter("bias", None)
            self.again = self.layers[0]

        def parameters(self, required):
            return returned

        modules = named_parameters = named_modules = children = parameters

    learner = Learner()
    assert trainable.is_trainable(learner)
    assert not is_bare(learner)
    assert is_bare(torch.nn.Sequential(torch.nn.ReLU()))
    assert set(modules_within(learner)) == {learner, learner.layers, *learner.layers}
    assert len(list(modules_within(learner))) == 4


def test_modules_are_not_kept_alive(trainable):
    modules = [module_of(), module_of(requires_grad=False)]
    gone = [weakref.ref(module) for module in modules]
    list(map(trainable.is_trainable, modules))
    modules.clear()
    assert [reference() for reference in gone] == [None, None]
