from tests.support.recording import FakeClock, FakeRun
from training_profiler.aggregation.totals import Totals
from training_profiler.recording.implementation import best_implementation
from training_profiler.runtime.health import REPORTS_FREE, REPORTS_SHARE, Budget, ProfilerHealth
from training_profiler.runtime.recorder_choice import new_recorder
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.settings import Settings
from training_profiler.units import NS_PER_S

REPORT_NS = NS_PER_S // 100


def reports_within(budget, clock, seconds, every_s):
    """Return the number of allowed reports if one is due every ``every_s``."""
    allowed = 0
    for _ in range(round(seconds / every_s)):
        clock.advance(every_s)
        if budget.allows():
            allowed += 1
            budget.spend(REPORT_NS)
    return allowed


def test_first_reports_are_printed_at_any_cost():
    clock = FakeClock()
    budget = Budget(clock)
    assert reports_within(budget, clock, REPORTS_FREE * 0.001, 0.001) == REPORTS_FREE
    assert budget.left_out == 0


def test_later_reports_stay_within_their_share_of_the_run():
    clock = FakeClock()
    budget = Budget(clock)
    allowed = reports_within(budget, clock, 100, 0.1) - REPORTS_FREE
    assert allowed * REPORT_NS <= REPORTS_SHARE * 100 * NS_PER_S + REPORT_NS
    assert allowed > 10
    assert budget.left_out == 1000 - REPORTS_FREE - allowed


def test_cheap_reports_are_all_printed():
    clock = FakeClock()
    budget = Budget(clock)
    assert reports_within(budget, clock, 10_000, 10) == 1000
    assert budget.left_out == 0


def test_overhead_is_the_cost_of_work_and_sections():
    run = FakeRun()
    profiler_health = ProfilerHealth(run.recorder, section_cost_ns=500.0, guard=FaultGuard())
    profiler_health.spent_ns = 1_000_000
    totals = Totals(0)
    totals.training_spans = 2000
    assert profiler_health.health(totals, reports_left_out=0).overhead_s == 0.002


def test_health_says_which_recorder_serves_and_why():
    recorder = new_recorder(Settings(may_be_native=False))
    health = ProfilerHealth(recorder, 500.0, FaultGuard()).health(Totals(0), reports_left_out=0)
    assert health.notes == ("recorder: Python (RECTIFIED_FLOW_PROFILE_NATIVE refuses the recorder in C)",)


def test_without_a_refusal_the_best_recorder_serves():
    assert new_recorder(Settings()).implementation.describe() == best_implementation().describe()
