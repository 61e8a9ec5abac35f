"""What DDP modules say of their exchanges, on a made-up module: one exchange takes 3 ms, 1 ms of it hidden."""

import threading

import pytest
import torch.distributed

from tests.support.recording import FakeClock
from training_profiler.instrumentation.ddp_statistics import GradientSync
from training_profiler.instrumentation.sync_points import SyncPoints
from training_profiler.recording.gradient_sync import GradientSyncTotals

MS = 1_000_000
WALL_NS = 5_000_000_000_000  # by which the time of day is ahead of the recorder's clock


class Group:
    def size(self):
        return 2


class Module:
    """Stands for a DDP module: says of an exchange what it was when the next forward pass begins."""

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
        """Begin a forward pass that asks for an exchange."""
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
        """Exchange gradients."""
        begin_ns = WALL_NS + self._clock()
        self._clock.advance(comm_ms / 1000)
        self._latest = (begin_ns, begin_ns + round(hidden_ms * MS), WALL_NS + self._clock())


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)


@pytest.fixture
def meetings():
    return SyncPoints()


@pytest.fixture
def exchange(clock, meetings):
    return GradientSync(meetings, clock, lambda: WALL_NS + clock())


@pytest.fixture
def module(clock, exchange):
    one = Module(clock)
    exchange.add_module(one)
    return one


class Training:
    """Steps of a tenth of a second each."""

    def __init__(self, exchange: GradientSync, clock: FakeClock) -> None:
        self.exchange, self.clock = exchange, clock
        self.steps = 0

    def end_step(self, seconds=0.1):
        self.clock.advance(seconds)
        self.exchange.step_ended(self.steps, self.clock())
        self.steps += 1


@pytest.fixture
def training(exchange, clock):
    return Training(exchange, clock)


def test_without_modules_nothing_is_reported(exchange, training):
    training.end_step()
    assert exchange.drain() == GradientSyncTotals()
    assert exchange.note() is None


def test_module_without_synchronization_reports_zero(exchange, module, training):
    for _ in range(3):
        module.forward()
        training.end_step()
    assert exchange.drain() == GradientSyncTotals(of_steps=((0, 0), (1, 0)))
    assert exchange.note() is None


def test_cpu_module_is_set_to_time_every_iteration(module):
    assert module.rate == 1


def test_accelerator_module_keeps_its_sample_rate(clock, exchange):
    module = Module(clock, "cuda")
    exchange.add_module(module)
    assert module.rate is None


def test_synchronization_is_attributed_to_its_step(exchange, module, training):
    for comm_ms in (3, 5, 7, 9):
        module.forward()
        module.backward(comm_ms)
        training.end_step()
    # Of the last one nothing is known before the next forward pass.
    assert exchange.drain() == GradientSyncTotals(
        3, 3, 15 * MS, 3 * MS, of_steps=((0, 2 * MS), (1, 4 * MS), (2, 6 * MS))
    )
    assert exchange.drain() == GradientSyncTotals()


def test_step_marked_late_is_attributed_too(exchange, module, training, clock):
    """With several optimizers it is marked when the next one is under way, and its exchange is there to be read."""
    ends_ns = []
    for comm_ms in (3, 5, 7, 9):
        module.forward()
        if ends_ns:
            exchange.step_ended(len(ends_ns) - 1, ends_ns[-1])
        module.backward(comm_ms)
        clock.advance(0.1)
        ends_ns.append(clock())
    assert exchange.drain().of_steps == ((0, 2 * MS), (1, 4 * MS))


def test_two_steps_marked_at_once_keep_their_own(exchange, module, clock):
    module.forward()
    module.backward(3)
    first_end_ns = clock()
    module.forward()
    module.backward(5)
    exchange.step_ended(0, first_end_ns)
    exchange.step_ended(1, clock())
    module.forward()
    exchange.step_ended(2, clock() + 1)
    assert exchange.drain().of_steps == ((0, 2 * MS), (1, 4 * MS))


def test_no_sync_iterations_are_not_counted(exchange, module, training):
    for _ in range(3):
        module.forward()  # the others are in no_sync, and DDP does not count them
        module.backward()
        training.end_step(0.4)
    assert exchange.drain() == GradientSyncTotals(2, 2, 6 * MS, 2 * MS, of_steps=((0, 2 * MS), (1, 2 * MS)))


def test_forward_passes_without_backward_count_nothing_again(exchange, module, training):
    module.forward()
    module.backward()
    training.end_step()
    for _ in range(5):
        module.forward()
        training.end_step()
    assert exchange.drain()[:4] == (1, 1, 3 * MS, MS)


def test_forward_passes_sharing_a_backward_pass_count_once(meetings, clock):
    backwards = 0
    exchange = GradientSync(meetings, clock, lambda: WALL_NS + clock(), lambda: backwards)
    training, module = Training(exchange, clock), Module(clock)
    exchange.add_module(module)
    for _ in range(4):
        module.forward()
        module.forward()
        module.backward()
        backwards += 1
        training.end_step()
    assert exchange.drain()[:4] == (3, 3, 9 * MS, 3 * MS)


def test_unread_synchronizations_are_assumed_like_the_next(exchange, module, training):
    for _ in range(5):
        module.forward()
        module.backward()
    training.end_step()
    assert exchange.drain()[:4] == (4, 1, 12 * MS, 4 * MS)


def test_several_modules_are_summed_up(exchange, training, clock):
    modules = [Module(clock), Module(clock)]
    for module in modules:
        exchange.add_module(module)
    for _ in range(3):
        for module, comm_ms in zip(modules, (3, 5), strict=True):
            module.forward()
            module.backward(comm_ms)
        training.end_step()
    assert exchange.drain() == GradientSyncTotals(4, 4, 16 * MS, 4 * MS, of_steps=((0, 6 * MS), (1, 6 * MS)))


def test_deleted_module_keeps_its_totals(exchange, training, clock):
    module = Module(clock)
    exchange.add_module(module)
    for _ in range(3):
        module.forward()
        module.backward()
        training.end_step()
    del module
    training.end_step()
    assert exchange.modules == []
    assert exchange.drain()[:4] == (2, 2, 6 * MS, 2 * MS)


def test_hidden_time_is_capped_by_total(exchange, module, training):
    for _ in range(2):
        module.forward()
        module.backward(comm_ms=1, hidden_ms=2)
        training.end_step()
    assert exchange.drain() == GradientSyncTotals(1, 1, MS, MS, of_steps=((0, 0),))


def test_begin_and_end_of_different_iterations_are_ignored(exchange, module, training):
    module.forward()
    module.backward(comm_ms=-3)
    module.forward()
    training.end_step()
    assert exchange.drain()[:4] == (0, 0, 0, 0)


def test_accelerator_times_are_not_attributed_to_steps(exchange, training, clock):
    module = Module(clock, "cuda")
    exchange.add_module(module)
    for _ in range(3):
        module.forward()
        module.backward()
        training.end_step()
    assert exchange.drain() == GradientSyncTotals(2, 2, 6 * MS, 2 * MS, is_on_host=False)


def test_accelerator_is_not_read_between_intervals(exchange, training, clock):
    """DDP looks at every hundredth exchange there; all since its last look are taken to be like that."""
    module = Module(clock, "cuda")
    exchange.add_module(module)
    module.forward()
    module.backward()
    module.iteration = 99
    module.forward()
    for _ in range(3):
        training.end_step()
    assert exchange.drain()[:4] == (100, 1, 300 * MS, 100 * MS)


def test_after_128_steps_every_other_block_is_read(exchange, module, training):
    for _ in range(180):
        module.forward()
        module.backward(0.3, 0.1)
        training.end_step(0.0001)
    steps = [step for step, _ in exchange.drain().of_steps]
    assert steps == [*range(144), *range(160, 176)]


def test_second_run_counts_its_own(exchange, module, clock):
    for _ in range(2):
        exchange.start_run()
        training = Training(exchange, clock)
        for _ in range(3):
            module.forward()
            module.backward()
            training.end_step()
    exchange.read()
    # The third of the run before, which shows with the first forward pass of this one, is one of these.
    assert exchange.drain()[:4] == (3, 3, 9 * MS, 3 * MS)


@pytest.mark.parametrize("name", ["iteration", "backward_comm_time_start", "backward_comm_time_end"])
def test_missing_statistic_is_noted_once(exchange, module, training, name):
    module.forward()
    module.backward()
    module.forward()
    del module.data[name]
    training.end_step()
    training.end_step()
    assert exchange.modules == []
    assert exchange.drain() == GradientSyncTotals()
    assert exchange.note() == f"DDP's gradient synchronization is not measured: KeyError: '{name}'"


def test_failing_statistics_are_noted(exchange, module, training):
    def fail():
        raise RuntimeError("no logger")

    module._get_ddp_logging_data = fail
    training.end_step()
    assert exchange.note() == "DDP's gradient synchronization is not measured: RuntimeError: no logger"


def test_unexpected_module_is_noted_and_not_raised(exchange):
    exchange.add_module(object())
    assert exchange.note().startswith("DDP's gradient synchronization is not measured: ")


def test_other_thread_reads_nothing(exchange, module, training):
    training.end_step()
    module.forward()
    module.backward()
    module.forward()
    other = threading.Thread(target=exchange.read)
    other.start()
    other.join()
    assert exchange.drain()[:4] == (0, 0, 0, 0)
    exchange.read()
    assert exchange.drain()[:4] == (1, 1, 3 * MS, MS)


def test_synchronizations_of_compared_steps_are_sync_points(exchange, module, training, meetings):
    for _ in range(3):
        module.forward()
        module.backward()
        training.end_step()
    first_ns = WALL_NS + 1_000
    assert meetings.kept == [
        ("ddp0:1", first_ns, first_ns + 3 * MS),
        ("ddp0:2", first_ns + 103 * MS, first_ns + 106 * MS),
    ]


def test_module_of_some_ranks_makes_no_sync_points(exchange, training, clock, meetings):
    module = Module(clock)
    module.process_group = type("Half", (), {"size": lambda self: 1})()
    exchange.add_module(module)
    for _ in range(3):
        module.forward()
        module.backward()
        training.end_step()
    assert exchange.drain().exchanges == 2
    assert meetings.kept == []
