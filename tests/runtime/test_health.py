from tests.support.recording import FakeRun
from training_profiler.aggregation.totals import Totals
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.safety.fault_guard import FaultGuard


def test_overhead_is_the_cost_of_work_and_sections():
    run = FakeRun()
    profiler_health = ProfilerHealth(run.recorder, section_cost_ns=500.0, guard=FaultGuard())
    profiler_health.spent_ns = 1_000_000
    totals = Totals(0)
    totals.training_spans = 2000
    assert profiler_health.health(totals, reports_left_out=0).overhead_s == 0.002
