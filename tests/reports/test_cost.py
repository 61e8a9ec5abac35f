from dataclasses import replace

import pytest

from tests.support.ranks import rank_row, ranks_of
from tests.support.recording import snapshot_of
from training_profiler.findings.finding import Finding
from training_profiler.reports.findings import saving_text
from training_profiler.reports.machine import energy_text, machine_lines
from training_profiler.reports.report_json import as_data
from training_profiler.snapshot.snapshot import DeviceTimingStats, GpuStats, MachineStats, Price

EUR = Price(2.5, "EUR")
GPUS = MachineStats(9, gpus=(GpuStats(0), GpuStats(1)))
FINDING = Finding("data-loading-bound", "slow", {}, 1800.0, "fix")


def run_of(price=EUR, machine=GPUS, ranks=4, **others):
    run = replace(snapshot_of({"backward_pass": 1.0}), wall_s=7200.0, price=price, machine=machine, **others)
    return run if ranks == 1 else replace(run, ranks=ranks_of([rank_row(rank) for rank in range(ranks)]))


def test_cost_is_that_of_the_gpus_of_all_ranks():
    assert machine_lines(run_of())[-1] == "Cost: 40.00 EUR (16.0 GPU hours on 8 GPUs at 2.5 EUR)"
    assert machine_lines(run_of(ranks=1))[-1] == "Cost: 10.00 EUR (4.00 GPU hours on 2 GPUs at 2.5 EUR)"


def test_finding_has_what_it_costs():
    assert saving_text(run_of(), FINDING).endswith(", 10.00 EUR")
    (insight,) = as_data(run_of(), [FINDING])["insights"]
    assert insight["worth_cost"] == pytest.approx(10.0)
    assert as_data(run_of(), [])["cost"] == {
        "gpu_hour_price": 2.5, "currency": "EUR", "devices": 8, "total": pytest.approx(40.0),
    }  # fmt: skip


def test_small_costs_have_more_digits_and_a_price_may_have_no_currency():
    assert Price(2.0).of(1.0, 1) == "0.0006"
    assert Price(2.0, "$").of(3600.0 * 1000, 1) == "2,000.00 $"


@pytest.mark.parametrize("run", [run_of(price=None), run_of(machine=None)], ids=["no price", "no GPU"])
def test_what_is_not_known_is_not_guessed(run):
    assert not any(line.startswith("Cost") for line in machine_lines(run))
    assert "EUR" not in saving_text(run, FINDING)
    (insight,) = as_data(run, [FINDING])["insights"]
    assert insight["worth_cost"] is None


def test_device_is_counted_without_the_system_monitor():
    run = run_of(machine=None, device=DeviceTimingStats("cuda", "H100", "events", 9), ranks=1)
    assert machine_lines(run)[-1] == "Cost: 5.00 EUR (2.00 GPU hours on 1 GPU at 2.5 EUR)"


def test_energy_is_shown_with_its_uncertainty_and_duration():
    assert energy_text(GpuStats(0, energy_j=360_000.0, energy_s=1000.0)) == "100 +- 5.00 Wh in 16 min 40 s"
    assert energy_text(GpuStats(0, energy_j=36e6, energy_s=100_000.0)).startswith("10.0 +- 0.5 kWh in ")
    assert energy_text(GpuStats(0)) == ""
