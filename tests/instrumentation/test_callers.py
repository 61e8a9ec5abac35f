"""Callers of a model: a function, a method of a module that is not called itself, a trainer module."""

from tests.support.fake_training import EPOCH, FakeModule, Loss
from training_profiler.instrumentation.loop_detection.module_calls import TRAINER_DEPTH


class Policy(FakeModule):
    """A module with two submodules, and methods that call them."""

    def __init__(self, training):
        super().__init__(training, FakeModule(training, seconds=1), FakeModule(training, seconds=1))
        self.body, self.head = self._modules.values()

    def act(self):
        self.body(0)
        self.head(0)

    def outer(self):
        self.act()

    def twice(self):
        self.body(0)
        self.head(0)
        self.body(0)


def test_calls_of_one_method_are_one_forward_pass(training, optimizer):
    policy = Policy(training)
    for _ in range(3):
        policy.act()
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 3
    assert stats.total_s["forward_pass"] == 6.0


def test_module_without_parameters_does_not_split_a_method_forward_pass(training, optimizer):
    class Rectified(Policy):
        relu = Loss(training)

        def act(self):
            self.body(0)
            self.relu(0)
            self.head(0)

    policy = Rectified(training)
    for _ in range(4):
        policy.act()
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts["forward_pass"] == 4
    assert stats.total_s["forward_pass"] == 12.0


def test_nested_methods_are_one_forward_pass(training, optimizer):
    policy = Policy(training)
    for _ in range(3):
        policy.outer()
        training.backward()
        training.update(optimizer)
    assert training.finish().counts["forward_pass"] == 3


def test_repeated_module_in_a_method_begins_another_forward_pass(training):
    Policy(training).twice()
    assert training.finish().counts == {"forward_pass": 2}


def test_method_called_in_every_step_is_a_forward_pass_each_time(training):
    policy = Policy(training)
    for _ in range(5):
        policy.act()  # both calls may have the same frame
    assert training.finish().counts == {"forward_pass": 5}


def test_calls_of_a_plain_function_are_separate_forward_passes(training):
    policy = Policy(training)

    def act():
        policy.body(0)
        policy.head(0)

    act()
    act()
    assert training.finish().counts == {"forward_pass": 4}


def test_fetch_within_a_method_begins_another_forward_pass(training, loader):
    class Trainer(Policy):
        def fit(self):
            self.body(next(batches))
            self.head(next(batches))

    batches = iter(loader)
    Trainer(training).fit()
    assert training.finish().counts["forward_pass"] == 2


def test_trainer_module_with_loader_is_not_a_forward_pass(training, model, optimizer, loader):
    class Trainer(FakeModule):
        pass

    trainer = Trainer(training, work=lambda: training.train(model, loader, optimizer))
    trainer()
    stats = training.finish()
    assert stats.counts == EPOCH
    assert stats.total_s["forward_pass"] == 6.0
    assert stats.step_s == [7.0] * 3
    assert stats.self_s[""] == 2.0


def test_trainer_module_without_loader_is_not_a_forward_pass(training, model, optimizer):
    class Trainer(FakeModule):
        pass

    def fit():
        for _ in range(3):
            model(0)
            training.backward()
            training.update(optimizer)

    Trainer(training, work=fit)()
    stats = training.finish()
    assert stats.counts == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}
    assert stats.step_s == [6.0] * 3


def test_nested_trainer_is_not_a_forward_pass(training, model, optimizer):
    class Outer(FakeModule):
        pass

    class Inner(FakeModule):
        pass

    def fit():
        for _ in range(3):
            model(0)
            training.backward()
            training.update(optimizer)

    inner = Inner(training, work=fit)
    Outer(training, inner)()
    stats = training.finish()
    assert TRAINER_DEPTH == 3
    assert stats.counts == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}


def test_trainer_called_for_each_step_is_never_a_forward_pass(training, model, optimizer, loader):
    class Trainer(FakeModule):
        pass

    def step(batch):
        model(batch)
        training.backward()
        training.update(optimizer)

    trainer = Trainer(training, work=step, seconds=0.5)
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
    stats = training.finish()
    assert stats.counts == EPOCH | {"forward_pass": 4}


def test_trainer_is_not_a_forward_pass_even_if_its_enter_was_drained(training, model, optimizer):
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
