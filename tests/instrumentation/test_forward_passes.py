import sys

from tests.support.fake_training import FakeModule
from training_profiler.instrumentation.loop_detection.module_calls import MAX_USUAL_CALLS


def test_frozen_network_optimizing_an_image_has_forward_passes(training, optimizer):
    class Image:
        requires_grad = True

    network = FakeModule(training, requires_grad=False)
    for _ in range(3):
        network(Image())
        training.backward()
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}


def test_inner_calls_are_not_forward_passes(training, optimizer):
    inner = FakeModule(training, seconds=1)
    model = FakeModule(training, inner, FakeModule(training, inner, seconds=1), seconds=1)
    training.train(model, range(3), optimizer)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}
    assert stats.total_s["forward_pass"] == 12.0
    assert stats.step_s == [8.0] * 3


def test_loop_begins_with_its_first_outermost_call(training, optimizer):
    model = FakeModule(training, FakeModule(training, FakeModule(training, FakeModule(training))), seconds=1)
    training.spend(1)
    model(0)
    training.backward()
    training.update(optimizer)
    assert training.loop_begin_s == 1.0
    assert training.finish().step_s == [11.0]


def test_explored_first_call_is_recorded_like_others(training, optimizer):
    teacher = FakeModule(training, requires_grad=False)
    mover = Moving(training)

    def work(_):
        with training.no_grad():
            teacher(0)
        mover()

    class Model(FakeModule):
        pass

    model = Model(training, work=work)
    training.train(model, range(3), optimizer)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 3, "backward_pass": 3, "optimizer_step": 3}
    assert stats.total_s["forward_pass"] == 15.0


class Moving:
    """Moves a tensor to a device in a second, if the patch records it."""

    def __init__(self, training):
        self.training = training

    def __call__(self):
        is_recorded = not self.training.is_busy
        if is_recorded:
            self.training.pending.record(self.training.codes.data_transfer)
        self.training.spend(1)
        if is_recorded:
            self.training.pending.record(-self.training.codes.data_transfer)


def test_only_the_first_call_of_a_class_is_explored(training, optimizer):
    calls = []
    begins = training.detector.call_begins

    def call_begins(module, *about):
        calls.append(module)
        return begins(module, *about)

    class Model(FakeModule):
        pass

    inner = FakeModule(training)
    model = Model(training, inner)
    training.detector.call_begins = call_begins
    model(0)
    model(0)
    assert calls == [model, inner, model]


def test_compiled_code_is_not_explored(training):
    model = FakeModule(training)
    call = training.detector.call_begins(model, (), False, sys._getframe())
    assert not call.is_explored
    training.detector.call_ends(call, model)


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


def test_recomputation_is_part_of_the_backward_pass(training, model, optimizer):
    for _ in range(2):
        model(0)
        training.backward(work=lambda: model(0))
        training.update(optimizer)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 2, "backward_pass": 2, "optimizer_step": 2}
    assert stats.total_s["backward_pass"] == 10.0


def test_class_confirmed_in_evaluation_may_still_train(training, optimizer):
    is_training = False

    def work(_):
        if is_training:
            training.backward()

    model = FakeModule(training, work=work)
    model(0)
    model(0)
    is_training = True
    model(0)
    is_training = False
    model(0)
    stats = training.finish()
    assert stats.counts == {"forward_pass": 3, "backward_pass": 1}


def test_overflow_of_usual_calls_keeps_counts(training):
    models = [FakeModule(training, seconds=0.001) for _ in range(MAX_USUAL_CALLS + 10)]
    for model in models * 2:
        model(0)
    assert training.finish().counts == {"forward_pass": 2 * len(models)}
