"""Statistics of a fake DDP module: a synchronization takes 3 ms, of which 1 ms is hidden."""

from collections.abc import Callable

import pytest
import torch.distributed

from tests.support.instrumented import on_another_thread
from tests.support.recording import FakeClock
from training_profiler.instrumentation.ddp_statistics import GradientSync, SyncPoints
from training_profiler.model.ranks import GradientSyncTotals

MS = 1_000_000
WALL_NS = 5_000_000_000_000  # difference between the time of day and the recorder's clock


class Module:
    """A fake DDP module: shows the times of a synchronization when the next forward pass begins."""

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


class Training:
    """Steps of a tenth of a second each, and the modules that they call."""

    def __init__(self, clock: FakeClock, backwards: Callable[[], int | None] = lambda: None) -> None:
        self.clock, self.sync_points = clock, SyncPoints()
        self.sync = GradientSync(self.sync_points, clock, lambda: WALL_NS + clock(), backwards)
        self.steps = 0
        self.modules: list[Module] = []

    def add(self, device="cpu", ranks=2) -> Module:
        module = Module(self.clock, device)
        module.process_group = type("Group", (), {"size": lambda self: ranks})()
        self.modules.append(module)
        self.sync.add_module(module)
        return module

    def end_step(self, seconds=0.1):
        self.clock.advance(seconds)
        self.sync.step_ended(self.steps, self.clock())
        self.steps += 1

    def follow(self, events: str) -> None:
        """Follow letters: a forward pass of the first or second module, a synchronization of its backward pass that
        takes so many ms, the end of a step after 0.1 s."""
        module = self.modules[0]
        for event in events:
            if event == "e":
                self.end_step()
            elif event in "fF":
                module = self.modules[event == "F"]
                module.forward()
            else:
                module.backward(-3 if event == "-" else int(event))


@pytest.fixture
def training(clock):
    return Training(clock)


SEQUENCES = {
    "no synchronization": ("fefefe", (0, 0, 0, 0), [0, 0]),
    "each belongs to its step; the last one shows at the next forward pass": ("f3ef5ef7ef9e", (3, 3, 15, 3), [2, 4, 6]),
    "forward passes alone count nothing again": ("f3efefefefefe", (1, 1, 3, 1), [2, 0, 0, 0, 0]),
    "what was not read is assumed to be like the next": ("f3f3f3f3f3e", (4, 1, 12, 4), []),
    "on an accelerator nothing is known of single steps": ("cuda f3ef3ef3e", (2, 2, 6, 2), []),
    "no more is hidden than there was": ("f1ef1e", (1, 1, 1, 1), [0]),
    "begin and end of different iterations": ("f-fe", (0, 0, 0, 0), []),
    "several modules are summed up": (3 * "f3F5e", (4, 4, 16, 4), [6, 6]),
}


@pytest.mark.parametrize(("events", "totals_ms", "of_steps_ms"), SEQUENCES.values(), ids=SEQUENCES)
def test_synchronizations_are_added_up(training, events, totals_ms, of_steps_ms):
    is_on_host = not events.startswith("cuda")
    for _ in range(1 + ("F" in events)):
        training.add("cpu" if is_on_host else "cuda")
    training.follow(events.removeprefix("cuda "))
    count, read, total_ms, hidden_ms = totals_ms
    of_steps = tuple((step, ms * MS) for step, ms in enumerate(of_steps_ms))
    expected = GradientSyncTotals(count, read, total_ms * MS, hidden_ms * MS, is_on_host, of_steps)
    assert training.sync.drain() == expected
    assert training.sync.drain() == GradientSyncTotals()
    assert training.sync.note() is None
    assert training.modules[0].rate == (1 if is_on_host else None)  # on an accelerator each timing waits for it


def test_step_marked_late_is_attributed_too(training, clock):
    """With several optimizers a step is marked during the next one, when its statistics show."""
    module, ends_ns = training.add(), []
    for comm_ms in (3, 5, 7, 9):
        module.forward()
        if ends_ns:
            training.sync.step_ended(len(ends_ns) - 1, ends_ns[-1])
        module.backward(comm_ms)
        clock.advance(0.1)
        ends_ns.append(clock())
    assert training.sync.drain().of_steps == ((0, 2 * MS), (1, 4 * MS))


def test_two_steps_marked_at_once_keep_their_own(training, clock):
    training.add()
    training.follow("f3")
    first_end_ns = clock()
    training.follow("f5")
    training.sync.step_ended(0, first_end_ns)
    training.sync.step_ended(1, clock())
    training.follow("f")
    training.sync.step_ended(2, clock() + 1)
    assert training.sync.drain().of_steps == ((0, 2 * MS), (1, 4 * MS))


def test_forward_passes_sharing_a_backward_pass_count_once(clock):
    training = Training(clock, lambda: training.steps)
    training.add()
    training.follow(4 * "ff3e")
    assert training.sync.drain()[:4] == (3, 3, 9 * MS, 3 * MS)


def test_deleted_module_keeps_its_totals(training):
    training.add()
    training.follow(3 * "f3e")
    training.modules.clear()
    training.end_step()
    assert training.sync.modules == []
    assert training.sync.drain()[:4] == (2, 2, 6 * MS, 2 * MS)


def test_accelerator_is_not_read_between_intervals(training):
    """DDP times every hundredth iteration there; those in between are assumed to be alike."""
    module = training.add("cuda")
    training.follow("f3")
    module.iteration = 99
    training.follow("feee")
    assert training.sync.drain()[:4] == (100, 1, 300 * MS, 100 * MS)


def test_after_128_steps_every_other_block_is_read(training):
    module = training.add()
    for _ in range(180):
        module.forward()
        module.backward(0.3, 0.1)
        training.end_step(0.0001)
    steps = [step for step, _ in training.sync.drain().of_steps]
    assert steps == [*range(144), *range(160, 176)]


def test_second_run_counts_its_own(training):
    training.add()
    for _ in range(2):
        training.sync.start_run()
        training.steps = 0
        training.follow(3 * "f3e")
    training.sync.read()
    # Includes the third of the run before, which shows at the first forward pass of this one.
    assert training.sync.drain()[:4] == (3, 3, 9 * MS, 3 * MS)


@pytest.mark.parametrize("name", ["iteration", "backward_comm_time_start", "backward_comm_time_end"])
def test_missing_statistic_is_noted_once(training, name):
    module = training.add()
    training.follow("f3f")
    del module.data[name]
    training.follow("ee")
    assert training.sync.modules == []
    assert training.sync.drain() == GradientSyncTotals()
    assert training.sync.note() == f"DDP's gradient synchronization is not measured: KeyError: '{name}'"


def test_unexpected_module_is_noted_and_not_raised(training):
    training.sync.add_module(object())
    assert training.sync.note().startswith("DDP's gradient synchronization is not measured: ")


def test_other_thread_reads_nothing(training):
    training.add()
    training.follow("ef3f")
    on_another_thread(training.sync.read)
    assert training.sync.drain()[:4] == (0, 0, 0, 0)
    training.sync.read()
    assert training.sync.drain()[:4] == (1, 1, 3 * MS, MS)


@pytest.mark.parametrize("ranks", [1, 2])
def test_synchronizations_of_compared_steps_are_sync_points_if_all_ranks_make_them(training, ranks):
    training.add(ranks=ranks)
    training.follow(3 * "f3e")
    first_ns = WALL_NS + 1_000
    points = [
        ("ddp0:1", first_ns, first_ns + 3 * MS),
        ("ddp0:2", first_ns + 103 * MS, first_ns + 106 * MS),
    ]
    assert training.sync_points.kept == (points if ranks == 2 else [])
    assert training.sync.drain().exchanges == 2


@pytest.mark.parametrize(("unused", "found"), [((0, 0, 0), 0), ((0, 288, 0), 1)])
def test_searches_and_those_that_found_unused_parameters_are_counted(training, unused, found):
    module = training.add()
    for size in (*unused, 0):
        training.sync.add_search(0.005)
        module.forward()
        module.data |= {"find_unused_parameters": 1, "unused_parameter_size": size}
        module.backward()
        training.end_step()
    assert training.sync.searched == (4, pytest.approx(0.02), 3, found)
