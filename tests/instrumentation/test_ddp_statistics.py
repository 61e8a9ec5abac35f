"""Statistics of a fake DDP module: a synchronization takes 3 ms, of which 1 ms is hidden."""

import threading

import pytest
import torch.distributed

from tests.support.recording import FakeClock
from training_profiler.instrumentation.ddp_statistics import GradientSync, SyncPoints
from training_profiler.model.ranks import GradientSyncTotals

MS = 1_000_000
WALL_NS = 5_000_000_000_000  # difference between the time of day and the recorder's clock


class Group:
    def size(self):
        return 2


class Module:
    """A fake DDP module: shows the times of a synchronization when the next forward pass begins."""

    process_group = Group()

    def __init__(self, clock, device="cpu"):
        self.device = torch.device(device)
        self.data = {"iteration": 0}
        self.rate = None
        self._clock = clock
        self._latest = (0, 0, 0)

    def _get_ddp_logging_data(self):
        return dict(self.data)

    def _set_ddp_runtime_logging_sample_rate(self, rate):
        self.rate = rate

    def forward(self):
        """Begin a forward pass with synchronization."""
        self.iteration = getattr(self, "iteration", -1) + 1
        begin_ns, computed_ns, end_ns = self._latest
        if not self.iteration:
            return
        self.data = {
            "iteration": self.iteration,
            "backward_comm_time_start": begin_ns,
            "backward_compute_time_end": computed_ns,
            "backward_comm_time_end": end_ns,
            "backward_comm_time": max(0, end_ns - begin_ns),
            "backward_compute_comm_overlap_time": max(0, computed_ns - begin_ns),
        }

    def backward(self, comm_ms=3.0, hidden_ms=1.0):
        """Synchronize gradients."""
        begin_ns = WALL_NS + self._clock()
        self._clock.advance(comm_ms / 1000)
        self._latest = (begin_ns, begin_ns + round(hidden_ms * MS), WALL_NS + self._clock())


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)


@pytest.fixture
def sync_points():
    return SyncPoints()


@pytest.fixture
def gradient_sync(clock, sync_points):
    return GradientSync(sync_points, clock, lambda: WALL_NS + clock())


@pytest.fixture
def module(clock, gradient_sync):
    one = Module(clock)
    gradient_sync.add_module(one)
    return one


class Training:
    """Steps of a tenth of a second each."""

    def __init__(self, gradient_sync: GradientSync, clock: FakeClock) -> None:
        self.gradient_sync, self.clock = gradient_sync, clock
        self.steps = 0

    def end_step(self, seconds=0.1):
        self.clock.advance(seconds)
        self.gradient_sync.step_ended(self.steps, self.clock())
        self.steps += 1


@pytest.fixture
def training(gradient_sync, clock):
    return Training(gradient_sync, clock)


# Letters: a forward pass, a backward pass whose synchronization takes so many ms, the end of a step after 0.1 s.
SEQUENCES = {
    "no synchronization": ("fefefe", (0, 0, 0, 0), [0, 0]),
    "each belongs to its step; the last one shows at the next forward pass": ("f3ef5ef7ef9e", (3, 3, 15, 3), [2, 4, 6]),
    "forward passes alone count nothing again": ("f3efefefefefe", (1, 1, 3, 1), [2, 0, 0, 0, 0]),
    "what was not read is assumed to be like the next": ("f3f3f3f3f3e", (4, 1, 12, 4), []),
    "on an accelerator nothing is known of single steps": ("cuda f3ef3ef3e", (2, 2, 6, 2), []),
    "no more is hidden than there was": ("f1ef1e", (1, 1, 1, 1), [0]),
    "begin and end of different iterations": ("f-fe", (0, 0, 0, 0), []),
}


@pytest.mark.parametrize(("events", "totals_ms", "of_steps_ms"), SEQUENCES.values(), ids=SEQUENCES)
def test_synchronizations_are_added_up(gradient_sync, training, clock, events, totals_ms, of_steps_ms):
    is_on_host = not events.startswith("cuda")
    module = Module(clock, "cpu" if is_on_host else "cuda")
    gradient_sync.add_module(module)
    for event in events.removeprefix("cuda "):
        if event in "fe":
            (module.forward if event == "f" else training.end_step)()
        else:
            module.backward(-3 if event == "-" else int(event))
    count, read, total_ms, hidden_ms = totals_ms
    of_steps = tuple((step, ms * MS) for step, ms in enumerate(of_steps_ms))
    expected = GradientSyncTotals(count, read, total_ms * MS, hidden_ms * MS, is_on_host, of_steps)
    assert gradient_sync.drain() == expected
    assert gradient_sync.drain() == GradientSyncTotals()
    assert gradient_sync.note() is None
    assert module.rate == (1 if is_on_host else None)  # on an accelerator each timing waits for the device


def test_without_modules_nothing_is_reported(gradient_sync, training):
    training.end_step()
    assert gradient_sync.drain() == GradientSyncTotals()
    assert gradient_sync.note() is None


def test_step_marked_late_is_attributed_too(gradient_sync, module, training, clock):
    """With several optimizers a step is marked during the next one, when its statistics show."""
    ends_ns = []
    for comm_ms in (3, 5, 7, 9):
        module.forward()
        if ends_ns:
            gradient_sync.step_ended(len(ends_ns) - 1, ends_ns[-1])
        module.backward(comm_ms)
        clock.advance(0.1)
        ends_ns.append(clock())
    assert gradient_sync.drain().of_steps == ((0, 2 * MS), (1, 4 * MS))


def test_two_steps_marked_at_once_keep_their_own(gradient_sync, module, clock):
    module.forward()
    module.backward(3)
    first_end_ns = clock()
    module.forward()
    module.backward(5)
    gradient_sync.step_ended(0, first_end_ns)
    gradient_sync.step_ended(1, clock())
    module.forward()
    gradient_sync.step_ended(2, clock() + 1)
    assert gradient_sync.drain().of_steps == ((0, 2 * MS), (1, 4 * MS))


def test_forward_passes_sharing_a_backward_pass_count_once(sync_points, clock):
    backwards = 0
    gradient_sync = GradientSync(sync_points, clock, lambda: WALL_NS + clock(), lambda: backwards)
    training, module = Training(gradient_sync, clock), Module(clock)
    gradient_sync.add_module(module)
    for _ in range(4):
        module.forward()
        module.forward()
        module.backward()
        backwards += 1
        training.end_step()
    assert gradient_sync.drain()[:4] == (3, 3, 9 * MS, 3 * MS)


def test_several_modules_are_summed_up(gradient_sync, training, clock):
    modules = [Module(clock), Module(clock)]
    for module in modules:
        gradient_sync.add_module(module)
    for _ in range(3):
        for module, comm_ms in zip(modules, (3, 5), strict=True):
            module.forward()
            module.backward(comm_ms)
        training.end_step()
    assert gradient_sync.drain() == GradientSyncTotals(4, 4, 16 * MS, 4 * MS, of_steps=((0, 6 * MS), (1, 6 * MS)))


def test_deleted_module_keeps_its_totals(gradient_sync, training, clock):
    module = Module(clock)
    gradient_sync.add_module(module)
    for _ in range(3):
        module.forward()
        module.backward()
        training.end_step()
    del module
    training.end_step()
    assert gradient_sync.modules == []
    assert gradient_sync.drain()[:4] == (2, 2, 6 * MS, 2 * MS)


def test_accelerator_is_not_read_between_intervals(gradient_sync, training, clock):
    """DDP times every hundredth iteration there; those in between are assumed to be alike."""
    module = Module(clock, "cuda")
    gradient_sync.add_module(module)
    module.forward()
    module.backward()
    module.iteration = 99
    module.forward()
    for _ in range(3):
        training.end_step()
    assert gradient_sync.drain()[:4] == (100, 1, 300 * MS, 100 * MS)


def test_after_128_steps_every_other_block_is_read(gradient_sync, module, training):
    for _ in range(180):
        module.forward()
        module.backward(0.3, 0.1)
        training.end_step(0.0001)
    steps = [step for step, _ in gradient_sync.drain().of_steps]
    assert steps == [*range(144), *range(160, 176)]


def test_second_run_counts_its_own(gradient_sync, module, clock):
    for _ in range(2):
        gradient_sync.start_run()
        training = Training(gradient_sync, clock)
        for _ in range(3):
            module.forward()
            module.backward()
            training.end_step()
    gradient_sync.read()
    # Includes the third of the run before, which shows at the first forward pass of this one.
    assert gradient_sync.drain()[:4] == (3, 3, 9 * MS, 3 * MS)


@pytest.mark.parametrize("name", ["iteration", "backward_comm_time_start", "backward_comm_time_end"])
def test_missing_statistic_is_noted_once(gradient_sync, module, training, name):
    module.forward()
    module.backward()
    module.forward()
    del module.data[name]
    training.end_step()
    training.end_step()
    assert gradient_sync.modules == []
    assert gradient_sync.drain() == GradientSyncTotals()
    assert gradient_sync.note() == f"DDP's gradient synchronization is not measured: KeyError: '{name}'"


def test_failing_statistics_are_noted(gradient_sync, module, training):
    def fail():
        raise RuntimeError("no logger")

    module._get_ddp_logging_data = fail
    training.end_step()
    assert gradient_sync.note() == "DDP's gradient synchronization is not measured: RuntimeError: no logger"


def test_unexpected_module_is_noted_and_not_raised(gradient_sync):
    gradient_sync.add_module(object())
    assert gradient_sync.note().startswith("DDP's gradient synchronization is not measured: ")


def test_other_thread_reads_nothing(gradient_sync, module, training):
    training.end_step()
    module.forward()
    module.backward()
    module.forward()
    other = threading.Thread(target=gradient_sync.read)
    other.start()
    other.join()
    assert gradient_sync.drain()[:4] == (0, 0, 0, 0)
    gradient_sync.read()
    assert gradient_sync.drain()[:4] == (1, 1, 3 * MS, MS)


def test_synchronizations_of_compared_steps_are_sync_points(gradient_sync, module, training, sync_points):
    for _ in range(3):
        module.forward()
        module.backward()
        training.end_step()
    first_ns = WALL_NS + 1_000
    assert sync_points.kept == [
        ("ddp0:1", first_ns, first_ns + 3 * MS),
        ("ddp0:2", first_ns + 103 * MS, first_ns + 106 * MS),
    ]


def test_module_of_some_ranks_makes_no_sync_points(gradient_sync, training, clock, sync_points):
    module = Module(clock)
    module.process_group = type("Half", (), {"size": lambda self: 1})()
    gradient_sync.add_module(module)
    for _ in range(3):
        module.forward()
        module.backward()
        training.end_step()
    assert gradient_sync.drain().exchanges == 2
    assert sync_points.kept == []
