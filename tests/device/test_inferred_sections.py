"""Inferred spans keep their device time while their events are pending."""

import pytest

from tests.support.device import DeviceRun, device_run
from tests.support.fake_training import FakeLoader, FakeModule, FakeOptimizer, FakeTraining


class Training(FakeTraining):
    """A training whose work is done by a device; each of its spans costs the host a tenth of a second."""

    run: DeviceRun

    def __init__(self, run: DeviceRun) -> None:
        super().__init__(run)
        self.device = run.device

    def device_s(self) -> dict[str, tuple[int, float]]:
        self.detector.close()
        self.recorder.watermark_ns = None
        self.spend(100.0)
        return {name: (count, round(seconds, 6)) for name, (count, seconds) in self.run.device_s().items()}


@pytest.fixture
def training(monkeypatch):
    return Training(device_run(monkeypatch))


@pytest.fixture
def model(training):
    return FakeModule(training, seconds=0.1, work=lambda *inputs: training.device.queue(2.0))


@pytest.fixture
def optimizer(training):
    return FakeOptimizer()


def step(training, optimizer):
    training.backward(0.1, work=lambda: training.device.queue(3.0))
    training.update(optimizer, 0.1)
    training.device.queue(1.0)
    training.spend(10.0)


@pytest.mark.parametrize("is_begun", [True, False])
def test_the_spans_of_a_step_are_stamped_also_if_pending_events_existed_before(monkeypatch, is_begun):
    run = device_run(monkeypatch, is_begun=is_begun)
    training, optimizer = Training(run), FakeOptimizer()
    model = FakeModule(training, seconds=0.1, work=lambda *inputs: training.device.queue(2.0))
    for batch in FakeLoader(training, 3, seconds=0.5):
        model(batch)
        step(training, optimizer)
        run.poll()
    count = 3 if is_begun else 2
    spans = {"data_loading": 0.5, "forward_pass": 2.1, "backward_pass": 3.0, "optimizer_step": 0.0}
    first = {"first_fetch": (1, 0.5)} if is_begun else {}
    assert training.device_s() == first | {name: (count, round(count * each, 6)) for name, each in spans.items()}


@pytest.mark.parametrize("optimizers", [1, 2])
def test_replays_of_a_graph_have_the_time_of_what_was_captured(training, optimizers):
    updated, detector = [FakeOptimizer() for _ in range(optimizers)], training.detector
    for _ in FakeLoader(training, 3, seconds=0.5):
        detector.update_begins()
        detector.update.replay_begins(detector.codes.replay)
        training.spend(0.1)
        training.device.queue(4.0)
        for optimizer in updated:
            detector.update_ends(optimizer)
        training.spend(10.0)
    assert training.device_s() == {
        "data_loading": (3, 1.5),
        "first_fetch": (1, 0.5),
        "graph_replay": (3, 12.3),
    }


def test_an_evaluation_that_shows_late_keeps_its_times(training, model, optimizer):
    for batch in FakeLoader(training, 2, seconds=0.5):
        model(batch)
        step(training, optimizer)
    with training.no_grad():
        for batch in FakeLoader(training, 2, seconds=0.25):
            model(batch)
            training.spend(5.0)
    model(0)
    step(training, optimizer)
    found = training.device_s()
    assert found["validation_epoch/data_loading"] == (2, 0.5)
    assert found["validation_epoch/forward_pass"] == (2, 4.2)
    assert found["forward_pass"] == (3, 6.3)
