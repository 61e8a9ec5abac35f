"""All work beside a training stays within one share of its time, whatever it costs."""

import pytest

from tests.support.recording import FakeClock
from training_profiler.base.units import NS_PER_MS, NS_PER_S, NS_PER_US
from training_profiler.safety.cost_budget import (
    EPOCHS,
    LEAST,
    LINES,
    LONGEST_PAUSE_S,
    MACHINE,
    PARTS,
    REPORTS,
    SHARE,
    WORKERS,
    CostBudget,
    unlimited,
)

HZ = 50


class Work:
    """A run of steps with everything beside it, on a clock that only this moves."""

    def __init__(self, step_s: float, step_cost_ns: int = 0) -> None:
        self.clock = FakeClock()
        self.begin_ns = self.clock()
        self.budget = CostBudget(self.clock, self.begin_ns, {"patches": lambda: self.steps * step_cost_ns})
        self.steps = self.reports = self.samples = 0
        self.sampled_ns = 0
        self._step_s = step_s

    def run(self, seconds: float, sample_ns: int, report_ns: int, every: int = 50, free: int = 0) -> None:
        """Train, with a report every so many steps, and samples at the pace of the budget."""
        lines, reports = self.budget.pace(LINES), self.budget.pace(REPORTS)
        end_ns = self.clock() + round(seconds * NS_PER_S)
        next_sample_ns = self.clock()
        while self.clock() < end_ns:
            self.clock.advance(self._step_s)
            self.steps += 1
            while self.clock() >= next_sample_ns:
                self.samples += 1
                self.sampled_ns += sample_ns
                next_sample_ns += round(lines.pause_s(1 / HZ, self.sampled_ns) * NS_PER_S)
            if self.steps % every == 0 and reports.allows(free):
                self.reports += 1
                reports.spend(report_ns)

    def share(self, step_cost_ns: int = 0, report_ns: int = 0) -> float:
        """Return what all of it cost, of the time."""
        spent_ns = self.steps * step_cost_ns + self.sampled_ns + self.reports * report_ns
        return spent_ns / (self.clock() - self.begin_ns)


def test_the_parts_share_what_is_left():
    assert sum(PARTS.values()) == pytest.approx(1.0)
    assert set(PARTS) == {LINES, REPORTS, EPOCHS, MACHINE, WORKERS}


@pytest.mark.parametrize("step_s", [0.0003, 0.005, 0.05])
@pytest.mark.parametrize("sample_us", [20, 200, 2000])
def test_the_budget_is_kept_at_any_cost(step_s, sample_us):
    work = Work(step_s)
    work.run(60, sample_us * NS_PER_US, 8 * NS_PER_MS)
    assert work.share(report_ns=8 * NS_PER_MS) <= 1.05 * SHARE
    assert work.samples > 0
    assert work.reports > 0


def test_cheap_work_is_done_in_full():
    work = Work(0.05)
    work.run(20, 10 * NS_PER_US, 100 * NS_PER_US)
    assert (work.samples, work.reports) == (1001, 8)
    assert work.budget.notes()[1:] == []


def test_a_short_run_keeps_to_it_too():
    work = Work(0.02, step_cost_ns=20 * NS_PER_US)
    work.run(4, 150 * NS_PER_US, 5 * NS_PER_MS)
    assert work.share(20 * NS_PER_US, 5 * NS_PER_MS) <= 1.05 * SHARE
    assert work.samples >= 20


def test_a_cost_that_rises_is_paid_by_fewer_samples():
    work = Work(0.05)
    work.run(30, 30 * NS_PER_US, 0)
    before = work.samples
    work.run(30, 3000 * NS_PER_US, 0)
    assert work.samples - before < before / 4
    assert work.share() <= 1.05 * SHARE


def test_lines_are_sampled_four_times_a_second_while_the_first_samples_are_paid_for():
    work = Work(0.05, 300 * NS_PER_US)
    lines = work.budget.pace(LINES)
    work.clock.advance(6)
    lines.spend(300 * 150 * NS_PER_US)
    assert lines.pause_s(1 / HZ, 301 * 150 * NS_PER_US) == pytest.approx(0.25)
    work.run(600, 150 * NS_PER_US, 0)
    assert work.share() <= LEAST


def test_what_a_step_pays_leaves_less_to_the_rest():
    costs_ns = [0, 100 * NS_PER_US, 200 * NS_PER_US]
    works = [Work(0.05, cost_ns) for cost_ns in costs_ns]
    for work, cost_ns in zip(works, costs_ns, strict=True):
        work.run(60, 200 * NS_PER_US, 8 * NS_PER_MS)
        assert work.share(cost_ns, 8 * NS_PER_MS) <= max(1.05 * SHARE, cost_ns / 50 / NS_PER_MS + 1.05 * LEAST)
    assert works[0].samples > works[1].samples > works[2].samples > 0


def test_where_the_patches_alone_cost_more_the_rest_keeps_to_its_least():
    work = Work(0.0003, step_cost_ns=60 * NS_PER_US)
    work.run(20, 150 * NS_PER_US, 5 * NS_PER_MS)
    rest_ns = work.sampled_ns + work.reports * 5 * NS_PER_MS
    assert 0 < rest_ns <= 1.1 * LEAST * 20 * NS_PER_S
    assert work.samples >= 20


def test_first_reports_come_at_any_cost_and_the_rest_pays_for_them():
    costly, none = Work(0.05), Work(0.05)
    costly.run(20, 200 * NS_PER_US, 20 * NS_PER_MS, free=3)
    none.run(20, 200 * NS_PER_US, 0)
    assert costly.reports == 3
    assert costly.samples < none.samples
    costly.run(100, 200 * NS_PER_US, 20 * NS_PER_MS, free=3)
    assert costly.share(report_ns=20 * NS_PER_MS) <= 1.05 * SHARE


def test_what_gives_way_is_said_with_how_much():
    work = Work(0.05, step_cost_ns=100 * NS_PER_US)
    work.run(60, 200 * NS_PER_US, 0)
    costs, lines = work.budget.notes()
    made = work.samples / 60
    assert costs.startswith("CPU time of the profiler, on all its threads: 0.")
    assert "patches 0.20%" in costs
    assert lines.startswith(
        f"line sampler: {made:.2g} times a second and not 50, because the profiler's budget is 0.5%"
    )


def test_a_run_without_costs_says_nothing():
    assert CostBudget(FakeClock(), 0).notes() == []


def test_no_pause_is_endless():
    clock = FakeClock()
    lines = CostBudget(clock, clock()).pace(LINES)
    clock.advance(0.1)
    assert lines.pause_s(0.02, NS_PER_S) == LONGEST_PAUSE_S
    assert lines.pause_s(0.02, NS_PER_S, free=2) == 0.02


def test_without_a_run_nothing_waits():
    pace = unlimited()
    assert pace.pause_s(0.02, NS_PER_S) == 0.02
    assert pace.allows()


def test_pauses_at_any_cost_add_up_no_costs() -> None:
    asked = []
    budget = CostBudget(FakeClock(), 0, {"patches": lambda: asked.append(1) or 0.0})
    for sample in range(5):
        budget.pace(LINES).pause_s(1 / HZ, sample * NS_PER_MS, free=4)
    assert asked == [1]


@pytest.mark.parametrize("step_cost_us", [0, 60])
@pytest.mark.parametrize("report_ms", [0, 2, 8])
def test_what_is_surely_refused_is_refused(step_cost_us, report_ms):
    """Asked at each report of a run, no answer is another one within the time of a refusal."""
    work = Work(0.0003, step_cost_us * NS_PER_US)
    reports, lines = work.budget.pace(REPORTS), work.budget.pace(LINES)
    until_ns = passed = 0
    for number in range(40_000):
        work.clock.advance(0.0003)
        work.steps += 1
        if number % 500 == 0:  # a part that has used more than its own
            lines.spend(5 * NS_PER_MS)
        if number % 50 == 0:
            is_allowed = reports.allows(3)
            assert not (is_allowed and work.clock() < until_ns)
            passed += work.clock() < until_ns
            if is_allowed:
                reports.spend(report_ms * NS_PER_MS)
            else:
                until_ns = work.clock() + reports.refuses_for_ns()
    assert passed == 0 if report_ms == 0 else passed > 400


def test_times_that_are_not_asked_about_are_counted_as_refused():
    reports = Work(0.05).budget.pace(REPORTS)
    reports.refuse(7)
    assert reports.refused == 7
