"""Callers of a model: a function, a method of a module that is not called itself, a trainer module."""

from tests.support.fake_training import EPOCH, FakeModule, Loss
from training_profiler.instrumentation.loop_detection.module_calls import TRAINER_DEPTH


def test_fetch_within_a_method_begins_another_forward_pass(training, loader):
    class Trainer(FakeModule):
        def fit(self):
            for module in self._modules.values():
                module(next(batches))

    batches = iter(loader)
    Trainer(training, FakeModule(training), FakeModule(training)).fit()
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

    Trainer(training, work=lambda: training.train(model, range(3), optimizer))()
    stats = training.finish()
    assert stats.counts == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}
    assert stats.step_s == [6.0] * 3


def test_nested_trainer_is_not_a_forward_pass(training, model, optimizer):
    class Outer(FakeModule):
        pass

    class Inner(FakeModule):
        pass

    Outer(training, Inner(training, work=lambda: training.train(model, range(3), optimizer)))()
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
