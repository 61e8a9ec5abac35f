"""A host that waits for a busy accelerator, and the findings about it."""

import pytest

from tests.gpu.running import report_of, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

OF_WAITING = {"waits-for-device", "unexplained", "optimizer-heavy", "garbage-collection"}


@pytest.mark.parametrize(("how", "read_by"), [("each", "float"), ("tenth", "item")])
def test_waiting_for_a_busy_accelerator_is_seen_and_costs_nothing(tmp_path, kind, how, read_by):
    assert run(tmp_path, "reading", how, is_profiled=True) == 300
    report = report_of(tmp_path)
    waits = [line for line in report["lines"]["other"] if line["waiting_share"] > 0]
    assert {line["waits_in"] for line in waits} == {read_by}
    assert sum(line["waiting_share"] for line in waits) * report["wall_s"] > 0.2 * report["step_time"]["total_s"]
    if kind != "cuda":
        pytest.skip(f"how busy the accelerator is, is read for cuda, not for {kind}")
    (gpu,) = report["machine"]["gpus"]
    if gpu["loop_utilization"]["mean"] < 0.95:
        pytest.skip("the accelerator waits for this host")
    insights = {insight["code"]: insight for insight in report["findings"]}
    assert OF_WAITING.isdisjoint(insights)
    if "step-time-varies" in insights:  # other work on the machine can delay a host so much that the device runs dry
        idle_s = (1 - gpu["loop_utilization"]["mean"]) * report["step_time"]["total_s"]
        assert insights["step-time-varies"]["potential_saving_s"] <= idle_s + 0.01
