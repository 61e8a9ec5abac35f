import itertools

import pytest
import torch

from tests.support.recording import IMPLEMENTATIONS, FakeClock, FakeRun, implementation_of
from tests.support.session import session_of
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_MS
from training_profiler.recording.implementation import best_implementation, python_implementation
from training_profiler.runtime.health import (
    LEAST_SPEED_S,
    MOST_SPEED_S,
    SPEED_SHARE,
    ProfilerHealth,
    budget_s,
    measure,
    measure_section_cost_ns,
    patch_cost,
)
from training_profiler.runtime.parts import new_recorder
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.line_sampler import StartupSampler
from training_profiler.settings.settings import Settings


def test_overhead_is_the_cost_of_work_and_sections():
    run = FakeRun()
    profiler_health = ProfilerHealth(run.recorder, section_cost_ns=500.0, guard=FaultGuard())
    profiler_health.spent_ns = 1_000_000
    totals = Totals(0, 0)
    totals.training_spans = 2000
    assert profiler_health.health(totals, reports_left_out=0).overhead_s == 0.002


def test_without_a_refusal_the_best_recorder_serves():
    assert new_recorder(Settings()).implementation.describe() == best_implementation().describe()


def test_samples_before_the_first_step_are_part_of_the_cost() -> None:
    startup = StartupSampler(FakeClock(), 0)
    startup.start(1000)
    while not startup.cpu_ns:
        pass
    startup.stop()
    run = FakeRun()
    settings = Settings(sample_hz=0, monitor_s=0.0)
    session = session_of(run, settings, opens_files=False, startup=startup)
    run.clock.advance(0.001)
    (note,) = session.run.notes()
    assert note.endswith(f"(startup sampler {startup.cpu_ns / NS_PER_MS:.2%})")


def test_other_programs_do_not_make_a_section_look_expensive():
    reads = itertools.count()
    now_ns = 0

    def clock():
        nonlocal now_ns
        now_ns += 100 if next(reads) != 1200 else 4_000_000  # the CPU is taken away once
        return now_ns

    assert measure_section_cost_ns(python_implementation("for a test"), clock) == pytest.approx(200, rel=0.01)


def test_a_section_is_timed_by_the_clock_that_the_cpu_time_is_read_from():
    reads = itertools.count()
    spent = itertools.count(0, 400 * 70)
    cost_ns = measure_section_cost_ns(python_implementation("for a test"), lambda: next(reads), lambda: next(spent))
    assert cost_ns == 70


@pytest.mark.parametrize(("again_ns", "counted_ns"), [(500.0, 500), (50.0, 50), (0.0, 500)])
def test_of_two_costs_of_a_section_the_lower_one_counts(again_ns, counted_ns):
    calls = []

    def measure():
        calls.append(again_ns)
        return again_ns

    health = ProfilerHealth(FakeRun().recorder, 500.0, FaultGuard(), measure=measure)
    totals = Totals(0, 0)
    totals.training_spans = 2
    assert health.sections_ns(totals) == 1000
    health.measure_again()
    health.measure_again()
    assert health.sections_ns(totals) == 2 * counted_ns
    assert len(calls) == 1


@pytest.mark.parametrize(("apart_us", "of_python"), [(0, 4), (25, 4), (50, 4), (223.6, 8), (1_000, 12), (50_000, 12)])
def test_patched_calls_cost_less_where_they_follow_each_other_closely(apart_us, of_python):
    assert patch_cost(apart_us * 1e3, is_native=False) == pytest.approx(of_python, abs=0.01)
    of_c = 25 + (of_python - 4) * 15 / 8
    assert patch_cost(apart_us * 1e3, is_native=True) == pytest.approx(of_c, abs=0.02)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("patched", [0, 4, 10])
def test_cost_of_sections_counts_the_patches_that_record_them(name, patched):
    run = FakeRun(implementation=implementation_of(name))
    cost_ns = {"C": 40_000, "Python": 12_000}[name]
    totals = Totals(0, 0)
    totals.training_spans, totals.end_ns = 10, 10**9
    health = ProfilerHealth(run.recorder, 1_000.0, FaultGuard(), lambda: (patched, 0))
    assert health.sections_ns(totals) == patched * cost_ns + (10 - patched) * 1_000
    health = ProfilerHealth(run.recorder, 1_000.0, FaultGuard(), lambda: (patched, patched))
    assert health.sections_ns(totals) == patched * 3_000 + (10 - patched) * 1_000


@pytest.mark.parametrize(("run_s", "seconds"), [(1.0, 0.0), (20.0, 20.0 * SPEED_SHARE), (3600.0, MOST_SPEED_S)])
def test_measuring_takes_a_small_part_of_the_run(run_s, seconds):
    assert budget_s(run_s) == seconds
    assert budget_s(LEAST_SPEED_S / SPEED_SHARE) == LEAST_SPEED_S


def test_speed_is_measured_without_random_numbers():
    before = torch.get_rng_state()
    speed = measure(torch, "float32", 0.01)
    assert speed.dtype == "float32"
    assert speed.gflops > 0
    assert 0 < speed.operator_s < 1
    assert torch.equal(torch.get_rng_state(), before)
    assert measure(torch, "int64", 0.01) is None


@pytest.mark.parametrize(("dtype", "is_compared"), [("float32", False), ("float64", False), ("bfloat16", True)])
def test_half_precision_is_measured_beside_float32(dtype, is_compared):
    assert (measure(torch, dtype, 0.01).float32_gflops > 0) == is_compared
