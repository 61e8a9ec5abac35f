from tests.support.recording import FakeRun
from training_profiler.aggregation.totals import Totals
from training_profiler.recording.implementation import best_implementation
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.runtime.recorder_choice import new_recorder
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.settings import Settings


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
    assert health.notes[-1] == "recorder: Python (RECTIFIED_FLOW_PROFILE_NATIVE refuses the recorder in C)"


def test_without_a_refusal_the_best_recorder_serves():
    assert new_recorder(Settings()).implementation.describe() == best_implementation().describe()
