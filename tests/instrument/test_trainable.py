import pytest

from training_profiler.instrument import trainable
from training_profiler.instrument.trainable import LOOKED_AT_EACH, Trainable, is_bare

from .fake_training import FakeModule


class Counted(FakeModule):
    """Counts how often it is looked through."""

    def __init__(self, *inner, parameters=1, requires_grad=True):
        super().__init__(None, *inner, parameters=parameters, requires_grad=requires_grad)
        self.looked = 0

    def parameters(self):
        self.looked += 1
        return super().parameters()


@pytest.fixture
def modules() -> Trainable:
    return Trainable()


def test_a_module_with_a_parameter_that_wants_a_gradient_is_trainable(modules):
    assert modules.is_trainable(Counted())


def test_a_module_that_holds_one_is_trainable(modules):
    assert modules.is_trainable(Counted(Counted(parameters=0), Counted(), parameters=0))


def test_a_frozen_module_and_one_without_parameters_are_not(modules):
    assert not modules.is_trainable(Counted(requires_grad=False))
    assert not modules.is_trainable(Counted(Counted(parameters=0), parameters=0))
    assert not modules.is_trainable(Counted(parameters=0))
    assert not modules.is_any


def test_a_module_in_train_mode_is_only_frozen_for_a_moment(modules):
    discriminator = Counted(requires_grad=False)
    discriminator.training = True
    assert modules.is_trainable(discriminator)


def test_a_trainable_module_is_looked_through_once(modules):
    module = Counted()
    assert all(modules.is_trainable(module) for _ in range(100))
    assert module.looked == 1
    assert modules.is_any


def test_a_module_that_was_trainable_stays_so(modules):
    module = Counted()
    modules.is_trainable(module)
    module._parameters["0"].requires_grad = False
    assert modules.is_trainable(module)
    assert modules.was_trained(id(module))


def test_what_nobody_asked_about_was_not_trained(modules):
    assert not modules.was_trained(id(Counted()))


def test_a_frozen_module_is_looked_through_again_now_and_then(modules):
    module = Counted(requires_grad=False)
    for _ in range(10 * LOOKED_AT_EACH):
        modules.is_trainable(module)
    assert module.looked == 8 + 9


def test_a_module_that_is_frozen_at_first_is_found_to_be_trainable_some_calls_after(modules):
    module = Counted(requires_grad=False)
    for _ in range(100):
        assert not modules.is_trainable(module)
    module._parameters["0"].requires_grad = True
    answers = [modules.is_trainable(module) for _ in range(LOOKED_AT_EACH)]
    assert answers.index(True) < LOOKED_AT_EACH
    assert answers[-1]


def test_of_a_parametrization_nothing_is_asked(modules, monkeypatch):
    monkeypatch.setattr(Counted, "__module__", "torch.nn.utils.parametrize")
    module = Counted()
    assert not modules.is_trainable(module)
    assert module.looked == 0


def test_it_remembers_no_more_modules_than_it_may(modules, monkeypatch):
    monkeypatch.setattr(trainable, "MOST_MODULES", 10)
    kept = [Counted(requires_grad=number % 2 == 0) for number in range(40)]
    assert [modules.is_trainable(module) for module in kept] == [True, False] * 20
    assert len(modules._trainable) + len(modules._frozen) <= 11


def test_a_module_without_any_parameter_is_bare():
    assert is_bare(Counted(parameters=0))
    assert is_bare(Counted(Counted(parameters=0), parameters=0))
    assert not is_bare(Counted(requires_grad=False))
    assert not is_bare(Counted(Counted(), parameters=0))


def test_a_module_that_lives_no_longer_is_not_kept(modules):
    class Noted(Counted):
        def __del__(self):
            gone.append(True)

    gone = []
    modules.is_trainable(Noted())
    modules.is_trainable(Noted(requires_grad=False))
    assert gone == [True, True]
