import pytest

from tests.support.fake_training import FakeModule
from training_profiler.instrumentation.loop_detection import modules
from training_profiler.instrumentation.loop_detection.modules import CALLS_PER_CHECK, TrainableModules, is_bare


class Counted(FakeModule):
    """Counts how often it is looked through."""

    def __init__(self, *inner, parameters=1, requires_grad=True):
        super().__init__(None, *inner, parameters=parameters, requires_grad=requires_grad)
        self.looked = 0

    def parameters(self):
        self.looked += 1
        return super().parameters()


@pytest.fixture
def trainable() -> TrainableModules:
    return TrainableModules()


def test_a_module_with_a_parameter_that_wants_a_gradient_is_trainable(trainable):
    assert trainable.is_trainable(Counted())


def test_a_module_that_holds_one_is_trainable(trainable):
    assert trainable.is_trainable(Counted(Counted(parameters=0), Counted(), parameters=0))


def test_a_frozen_module_and_one_without_parameters_are_not(trainable):
    assert not trainable.is_trainable(Counted(requires_grad=False))
    assert not trainable.is_trainable(Counted(Counted(parameters=0), parameters=0))
    assert not trainable.is_trainable(Counted(parameters=0))
    assert not trainable.is_any


def test_a_module_in_train_mode_is_only_frozen_for_a_moment(trainable):
    discriminator = Counted(requires_grad=False)
    discriminator.training = True
    assert trainable.is_trainable(discriminator)


def test_a_trainable_module_is_looked_through_once(trainable):
    module = Counted()
    assert all(trainable.is_trainable(module) for _ in range(100))
    assert module.looked == 1
    assert trainable.is_any


def test_a_module_that_was_trainable_stays_so(trainable):
    module = Counted()
    trainable.is_trainable(module)
    module._parameters["0"].requires_grad = False
    assert trainable.is_trainable(module)
    assert trainable.was_trained(id(module))


def test_what_nobody_asked_about_was_not_trained(trainable):
    assert not trainable.was_trained(id(Counted()))


def test_a_frozen_module_is_looked_through_again_now_and_then(trainable):
    module = Counted(requires_grad=False)
    for _ in range(10 * CALLS_PER_CHECK):
        trainable.is_trainable(module)
    assert module.looked == 8 + 9


def test_a_module_that_is_frozen_at_first_is_found_to_be_trainable_some_calls_after(trainable):
    module = Counted(requires_grad=False)
    for _ in range(100):
        assert not trainable.is_trainable(module)
    module._parameters["0"].requires_grad = True
    answers = [trainable.is_trainable(module) for _ in range(CALLS_PER_CHECK)]
    assert answers.index(True) < CALLS_PER_CHECK
    assert answers[-1]


def test_of_a_parametrization_nothing_is_asked(trainable, monkeypatch):
    monkeypatch.setattr(Counted, "__module__", "torch.nn.utils.parametrize")
    module = Counted()
    assert not trainable.is_trainable(module)
    assert module.looked == 0


def test_it_remembers_no_more_modules_than_it_may(trainable, monkeypatch):
    monkeypatch.setattr(modules, "MAX_MODULES", 10)
    kept = [Counted(requires_grad=number % 2 == 0) for number in range(40)]
    assert [trainable.is_trainable(module) for module in kept] == [True, False] * 20
    assert len(trainable._trainable) + len(trainable._frozen) <= 11


def test_a_module_without_any_parameter_is_bare():
    assert is_bare(Counted(parameters=0))
    assert is_bare(Counted(Counted(parameters=0), parameters=0))
    assert not is_bare(Counted(requires_grad=False))
    assert not is_bare(Counted(Counted(), parameters=0))


def test_a_module_that_lives_no_longer_is_not_kept(trainable):
    class Noted(Counted):
        def __del__(self):
            gone.append(True)

    gone = []
    trainable.is_trainable(Noted())
    trainable.is_trainable(Noted(requires_grad=False))
    assert gone == [True, True]
