"""Gradients of parameters that no optimizer has are found in early steps of real torch."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

from training_profiler.inspections import early_steps, unused

STEPS = 30


def layers(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


class Training:
    """A student and what its loop does besides."""

    def __init__(self, instrumented):
        self.instrumented = instrumented
        self.student = layers()
        self.teacher = layers(32)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1)

    def run(self, target=None, after=None, before=None, steps=STEPS):
        number = itertools.count()

        def loss_of():
            x = torch.randn(3, 4) if before is None else before(torch.randn(3, 4))
            return (self.student(x) - (target or self.teacher)(x)).square().mean()

        after_step = after and (lambda loss: after(next(number)))
        return self.instrumented.train(self.optimizer, loss_of, steps, after_step).unused_gradients


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


def test_a_teacher_that_is_called_with_gradients_is_found(training):
    facts = training.run()
    assert facts.numbers == sum(each.numel() for each in training.teacher.parameters())
    assert facts.of == facts.numbers + sum(each.numel() for each in training.student.parameters())
    assert (facts.is_whole, facts.passed_on, facts.module) == (True, 0.0, "Sequential")
    assert 0 < facts.part < 1


@pytest.mark.parametrize("watch", [BaseTorchFunctionMode, torch.autograd.profiler.profile])
def test_a_profiler_or_mode_of_the_program_sees_nothing_of_the_looking(training, watch, monkeypatch):
    looked_at = []
    monkeypatch.setattr(unused, "first_values", looked_at.append)
    with watch():
        assert training.run() is None
    assert not looked_at


def test_a_profiler_of_the_first_steps_delays_the_looking(training):
    profiler = torch.autograd.profiler.profile()
    profiler.__enter__()
    assert training.run(after=lambda step: profiler.__exit__(None, None, None) if step == 9 else None) is not None


def test_a_default_device_is_not_a_watcher(training):
    with torch.device("cpu"):
        assert training.run() is not None


def test_gradients_that_are_cleared_are_found_too(training):
    both = nn.ModuleList([training.student, training.teacher])
    assert training.run(before=lambda x: both.zero_grad() or x) is not None


def test_layers_that_the_optimizer_did_not_get_are_found(training):
    training.optimizer = torch.optim.SGD(training.student[2].parameters(), lr=0.1)
    facts = training.run(target=lambda x: torch.zeros(3, 2))
    assert (facts.numbers, facts.of, facts.is_whole) == (40, 58, False)
    assert facts.part == pytest.approx(40 / 58)
    assert 0 < facts.after_trained < 1


def test_what_comes_after_the_last_gradient_that_is_used_is_timed(training, monkeypatch):
    now_ns = itertools.count(1_000, 1_000)  # begin, two gradients of the last layer, end
    for module in (unused, early_steps):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: next(now_ns))
    training.optimizer = torch.optim.SGD(training.student[2].parameters(), lr=0.1)
    facts = training.run(target=lambda x: torch.zeros(3, 2))
    assert facts.after_trained == pytest.approx(1 / 3)
    assert not any(each._backward_hooks for each in training.student.parameters())


def test_a_model_in_the_loss_passes_gradients_on(training):
    picture = nn.Parameter(torch.randn(3, 4))
    training.optimizer = torch.optim.Adam([picture])
    training.student.requires_grad_(False)
    facts = training.run(before=lambda x: picture, target=lambda x: training.teacher(picture))
    assert facts.passed_on == facts.part > 0
    assert not facts.is_whole


@torch.no_grad()
def moved_average(training):
    for own, trained in zip(training.teacher.parameters(), training.student.parameters(), strict=False):
        own.data.add_(trained.mean())


def updated_manually(training):
    for parameter in training.teacher.parameters():
        parameter.data.sub_(0.01 * parameter.grad)


def test_gradients_before_the_teacher_was_detached_do_not_count(training):
    training.teacher(torch.ones(3, 4)).sum().backward()
    assert training.run(target=lambda x: training.teacher(x).detach()) is None


@pytest.mark.parametrize("after", [moved_average, updated_manually])
def test_parameters_that_change_are_used(training, after):
    assert training.run(after=lambda step: after(training)) is None


def test_parameters_of_another_optimizer_are_used(training):
    slow = torch.optim.SGD(training.teacher.parameters(), lr=0.1)
    assert training.run(after=lambda step: slow.step() if step % 20 == 19 else None) is None


def test_parameters_of_a_copied_optimizer_are_used(training):
    later = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    copied = copy.copy(later)
    copied.param_groups = [{**later.param_groups[0], "params": list(training.teacher.parameters())}]
    del later
    assert training.run(after=lambda step: copied.step()) is None


def test_an_optimizer_with_an_equality_of_its_own_is_one_like_others(training):
    class Own(torch.optim.SGD):
        def __eq__(self, other):
            raise AssertionError

    own = Own(training.teacher.parameters(), lr=0.1)
    assert training.run(after=lambda step: own.step()) is None
    assert training.instrumented.steps >= STEPS - 1  # the last one goes on


def test_a_module_that_has_changed_since_is_not_known(training):
    assert training.run() is not None
    del training.teacher[2]
    assert training.instrumented.instrumentation.program_facts().unused_gradients is None


def test_layers_that_are_added_later_are_used(training):
    def add(step):
        if step == 27:
            training.optimizer.add_param_group({"params": list(training.teacher.parameters())})

    assert training.run(after=add) is None


def test_nothing_is_said_of_a_frozen_teacher(training):
    training.teacher.requires_grad_(False)
    assert training.run() is None


def test_16_bits_may_be_a_copy(training):
    training.teacher.bfloat16()
    assert training.run(target=lambda x: training.teacher(x.bfloat16()).float()) is None


def test_with_many_modules_nothing_is_known(training):
    many = [layers() for _ in range(unused.MOST_MODULES)]
    assert training.run(target=lambda x: sum(each(x) for each in many)) is None


def test_parameters_of_another_kind_are_left_alone(training):
    class Own(nn.Parameter):
        """As of tensors that are spread over ranks."""

    training.teacher[0].weight = Own(torch.randn(32, 4))
    assert training.run() is None


def test_nothing_of_the_program_is_kept(training):
    training.run()
    assert not training.instrumented.instrumentation.early_steps._gradients._called
