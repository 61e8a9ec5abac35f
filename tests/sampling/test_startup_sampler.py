"""Lines before the session begins: the import of torch, and samples of what follows."""

import sys
import threading
import weakref
from types import FrameType

import pytest

from tests.support.recording import FakeClock
from training_profiler.model.location import Location
from training_profiler.model.snapshot import PYTHON
from training_profiler.sampling.line_sampler import FIRST_STARTUP_SAMPLES, LONGEST_PAUSE_S, LineSampler, StartupSampler
from training_profiler.sampling.user_code import Places

S = 1_000_000_000
PLACES = Places("/project/train.py", "/project", ("/usr/lib/python3.11",), ("/usr/lib/python3.11",))
MAIN = compile("import torch\n", "/project/train.py", "exec")
IMPORT = compile("pass", "<frozen importlib._bootstrap>", "exec")


def sampler_after_import(clock: FakeClock) -> StartupSampler:
    """Return a sampler in a process that began at 0 s and imported torch from 2 s to 5 s."""
    clock.now_ns = 5 * S
    return StartupSampler(clock, 0, (2 * S, [(IMPORT, 0), (MAIN, 0)]), lambda: PLACES)


def test_the_import_of_torch_is_exact() -> None:
    samples = sampler_after_import(FakeClock()).stop()
    before = Location("", 0, "", activity="until torch was imported")
    imported = Location("train.py", 1, "<module>", activity="imports", called=PYTHON)
    assert samples == [(0, before), (S, before), *((ns * S, imported) for ns in (2, 3, 4))]


def test_each_sample_stands_for_the_time_since_the_one_before() -> None:
    clock = FakeClock()
    sampler = sampler_after_import(clock)
    sampler._seen.append((8 * S, sampler._stacks.place(sys._getframe())))
    clock.now_ns = 9 * S
    samples = sampler.stop()
    assert [ns // S for ns, location in samples if location is not None and not location.activity] == [5, 6, 7]
    assert samples[-1] == (8 * S, None)


def test_line_sampler_goes_on_where_it_ended() -> None:
    clock = FakeClock()
    lines = LineSampler(clock, lambda part, work: work(), lambda: PLACES, startup=sampler_after_import(clock))
    lines.start(1, 0)
    lines.close()
    assert [ns // S for ns, _ in lines.pop_samples()][:5] == [0, 1, 2, 3, 4]


def test_it_samples_the_thread_that_made_it() -> None:
    sampler = StartupSampler(FakeClock(), 0)
    sampler.start(1000)
    while len(sampler._seen) < 3:
        sum(range(1000))
    sampler.stop()
    assert not sampler._thread.is_alive()
    functions = {place.users[0].co_name for _, place in sampler._seen if place}
    assert functions == {"test_it_samples_the_thread_that_made_it"}


class Thread:
    """The thread of a sampler, with a CPU time that the test sets."""

    def __init__(self, cpu_s: float) -> None:
        self.cpu_ns = round(cpu_s * S)

    def measure_cpu(self) -> None:
        """Leave the time as it is."""


def test_samples_that_cost_too_much_become_rarer_after_the_first_ones() -> None:
    sampler = StartupSampler(FakeClock(), 0)
    sampler._hz = 20
    assert sampler._pause_s(Thread(1.0), elapsed_s=2.0) == 1 / 20
    sampler._seen += [(0, None)] * FIRST_STARTUP_SAMPLES
    assert sampler._pause_s(Thread(0.01), elapsed_s=2.0) == 1 / 20
    assert sampler._pause_s(Thread(0.0105), elapsed_s=2.0) == pytest.approx(0.1)
    assert sampler._pause_s(Thread(1.0), elapsed_s=2.0) == LONGEST_PAUSE_S
    assert sampler._pause_s(Thread(1.0), elapsed_s=3600.0) == 3.6


def test_it_holds_no_frame_between_two_samples() -> None:
    """A function that has returned would keep its tensors, of which tracers see whether anything else uses them."""
    alive: list[weakref.ref[threading.Event]] = []

    class Pauses:
        """Stands for the thread, and looks at what the samples before have left."""

        def wait_for_stop(self, pause_s: float) -> bool:
            alive[:] = [each for each in alive if each() is not None]
            return len(sampler._seen) == 3

        def measure_cpu(self) -> None:
            pass

    def frame() -> FrameType:
        local = threading.Event()
        alive.append(weakref.ref(local))
        return sys._getframe()

    sampler = StartupSampler(FakeClock(), 0)
    sampler._sampled.frame = frame  # type: ignore[method-assign]
    sampler._run(Pauses())  # type: ignore[arg-type]
    assert len(sampler._seen) == 3
    assert alive == []
