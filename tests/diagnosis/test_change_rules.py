"""Steps that take longer from one of them on, and what changed there."""

from dataclasses import replace

import pytest

from tests.diagnosis.test_machine_rules import level, machine
from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.change import slower_since
from training_profiler.snapshot.ranks import RankId, RankStats
from training_profiler.snapshot.snapshot import AllRanksStats, GpuStats, LineChange, MachineStats, StepChange

SECTIONS = {"forward_pass": (0.05, 0.05), "data_loading": (0.01, 0.05), "other": (0.02, 0.02)}


def change(**others):
    figures = {
        "step": 401,
        "first_step": 396,
        "last_step": 409,
        "before_s": 0.08,
        "after_s": 0.12,
        "is_abrupt": True,
        "sections": SECTIONS,
    }
    return StepChange(**{**figures, **others})


def run_of(steps=1000, lost=None, **others):
    run = snapshot_of(
        {"forward_pass": 0.6, "data_loading": 0.05},
        steps=steps,
        std_s=0.02,
        median_s=0.08,
        rise=0.6,
        rise_p_value=0.0,
        change=change(**others),
    )
    return run if lost is None else replace(run, machine=lost)


def codes(run):
    return [finding.code for finding in diagnose(run)]


def test_section_that_takes_longer_is_named_with_both_times():
    finding = slower_since(run_of())
    assert finding.message == (
        "Steps take 50% longer since step 401 (95%: 396 to 409) (80.0 ms before, 120 ms after); 100% of that is in "
        "data_loading (10.0 ms before, 50.0 ms after)"
    )
    assert finding.evidence["moves_with"] == "data_loading"
    assert finding.potential_saving_s == pytest.approx(24.0)  # 600 steps, 40 ms each


ALIKE = {"forward_pass": (0.04, 0.06), "backward_pass": (0.03, 0.043), "optimizer_step": (0.005, 0.007)}


def test_sections_that_rise_alike_have_no_cause_among_them():
    finding = slower_since(run_of(sections={**ALIKE, "other": (0.004, 0.006), "data_loading": (0.001, 0.001)}))
    assert "moves_with" not in finding.evidence
    assert finding.message.endswith(
        "; all parts of a step alike (forward_pass by 50%, other by 50%, backward_pass by 43%, optimizer_step by 40%), "
        "as on a machine that has become slower, or beside another thread of the program"
    )
    assert finding.fix.startswith("Look for what made the machine slower")


@pytest.mark.parametrize(
    "sections",
    [
        ALIKE,  # three parts may rise together: a larger model, or larger batches
        {**ALIKE, "other": (0.004, 0.0045)},
    ],
)
def test_sections_that_do_not_all_rise_show_the_largest(sections):
    assert slower_since(run_of(sections=sections)).evidence["moves_with"] == "forward_pass"


def test_jump_is_one_finding_and_its_seconds_are_claimed_once():
    run = run_of()
    assert "slower-since" in codes(run)
    assert "slowing-down" not in codes(run)
    claimed_s = sum(
        each.potential_saving_s for each in diagnose(run) if each.code in ("slower-since", "step-time-varies")
    )
    assert claimed_s <= 24.0 + 1e-9


def test_growing_list_stays_a_trend():
    run = run_of(is_abrupt=False)
    assert "slowing-down" in codes(run)
    assert "slower-since" not in codes(run)


SCATTERED = {  # as measured of one training on a machine whose speed changed
    "forward_pass": (0.0102, 0.0112),
    "backward_pass": (0.0150, 0.0152),
    "data_loading": (0.0016, 0.0019),
    "other": (0.0005, 0.0008),
    "optimizer_step": (0.0029, 0.0030),
}


@pytest.mark.parametrize(
    ("sections", "rise", "is_found"),
    [
        (SCATTERED, 0.19, False),
        (SCATTERED, 0.6, True),  # too much for a machine
        ({**SCATTERED, "other": (0.0005, 0.0033)}, 0.19, True),  # a list that grows
        ({}, 0.19, True),  # not known
    ],
)
def test_a_small_trend_needs_a_part_that_carries_it(sections, rise, is_found):
    run = run_of(is_abrupt=False, before_s=0.0306, after_s=0.0332 + 0.0025 * (sections != SCATTERED), sections=sections)
    run = replace(run, step=replace(run.step, rise=rise))
    assert ("slowing-down" in codes(run)) == is_found


def test_a_trend_that_a_neighbour_explains_is_not_a_list_that_grows():
    run = run_of(is_abrupt=False, machine=(machine(wait=0.0), machine(wait=0.3)))
    (trend,) = (each for each in diagnose(run) if each.code == "slowing-down")
    assert "other programs have the CPUs 30% of the time" in trend.message
    assert trend.fix == "Look for what began on this machine at that time, before changing code"
    (trend,) = (each for each in diagnose(run_of(is_abrupt=False)) if each.code == "slowing-down")
    assert trend.fix.startswith("Look for something that grows")


def test_a_trend_of_all_parts_alike_is_first_looked_for_in_the_machine():
    sections = {**ALIKE, "other": (0.004, 0.006), "data_loading": (0.001, 0.001)}
    run = run_of(is_abrupt=False, sections=sections)
    (trend,) = (each for each in diagnose(run) if each.code == "slowing-down")
    assert "all parts of a step alike" in trend.message
    assert trend.fix.startswith("Look for what made the machine slower")


@pytest.mark.parametrize(
    ("work", "text"),
    [
        ({"input_elements": (1000.0, 1500.0)}, "1.5x the input elements, in 1.5x the time"),
        ({"forward_passes": (2.0, 3.0)}, "1.5x the forward passes, in 1.5x the time"),
        ({"input_elements": (1000.0, 1250.0)}, "1.2x the input elements, in 1.5x the time"),  # attention
    ],
)
def test_longer_batches_and_episodes_are_more_work(work, text):
    (finding,) = (
        each
        for each in diagnose(
            run_of(
                forward_passes=work.get("forward_passes"),
                **{key: value for key, value in work.items() if key != "forward_passes"},
            )
        )
        if each.code == "steps-do-more"
    )
    assert finding.message == f"Steps take longer since step 401 (95%: 396 to 409) because they do more: {text}"
    assert finding.potential_saving_s == 0.0
    assert not {"slower-since", "slowing-down", "step-time-varies"} & set(codes(run_of(**work)))


def test_a_little_more_work_does_not_excuse_much_more_time():
    assert slower_since(run_of(input_elements=(1000.0, 1060.0))) is not None
    assert slower_since(run_of(input_elements=(1000.0, 1001.0))) is not None


def test_a_section_without_a_line_may_be_slower_by_the_machine():
    fix = slower_since(run_of()).fix
    assert fix == "Look for what data_loading does differently from there on; or for what slowed the machine then"


def test_neighbour_that_starts_is_the_cause():
    quiet = machine(wait=0.0, host=0.5)
    finding = slower_since(run_of(machine=(quiet, machine(wait=0.3))))
    assert finding.message.endswith("; since then other programs have the CPUs 30% of the time, 0% before")
    assert finding.fix.startswith("Look for what began on this machine")


def test_neighbour_that_starts_is_said_on_a_machine_that_lost_all_of_that_time():
    """The machine's own finding has the seconds; the rule says since when."""
    quiet, busy = machine(wait=0.0, host=0.5), machine(wait=0.3)
    run = run_of(machine=(quiet, busy), lost=machine(wait=0.2))
    findings = {each.code: each for each in diagnose(run)}
    lost_s = findings["machine-busy"].potential_saving_s
    assert lost_s == pytest.approx(0.2 * run.wall_s)
    assert findings["slower-since"].evidence["step"] == 401
    assert findings["slower-since"].evidence["moves_with"] == "the machine"
    assert 0.0 <= findings["slower-since"].potential_saving_s <= 24.0 - lost_s
    assert "step-time-varies" not in findings
    assert next(iter(findings)) == "machine-busy"


def test_machine_that_is_as_busy_throughout_explains_a_jump_away():
    as_busy = machine(wait=0.3)
    assert "slower-since" not in codes(run_of(machine=(as_busy, as_busy), lost=as_busy))


def test_quota_that_throttles_is_the_cause():
    throttled = machine(wait=0.3, cpu_throttled=level(0.5))
    finding = slower_since(run_of(machine=(machine(wait=0.0), throttled)))
    assert "the container's CPU quota stops the training 30% of the time" in finding.message


def test_machine_that_was_as_busy_before_is_not_the_cause():
    finding = slower_since(run_of(machine=(machine(wait=0.3), machine(wait=0.3))))
    assert finding.evidence["moves_with"] == "data_loading"


def test_run_on_a_busy_machine_has_no_finding_about_a_jump_that_this_may_explain():
    assert "slower-since" not in codes(run_of(lost=machine(wait=0.5)))


def test_added_time_that_no_section_carries_has_no_cause():
    finding = slower_since(run_of(sections={}))
    assert finding.message.endswith("after)")
    assert "moves_with" not in finding.evidence


@pytest.mark.parametrize(
    "others",
    [{"after_s": 0.0839}, {"after_s": 0.04}, {"before_s": 0.0}, {"is_abrupt": False}, {"steps": 99}],
    ids=["at its threshold", "faster", "no time", "a trend", "too few steps"],
)
def test_steps_without_a_jump_have_no_finding(others):
    assert slower_since(run_of(**others)) is None
    assert slower_since(snapshot_of({"forward_pass": 1.0})) is None


def device(clock, busy=0.95, samples=9):
    gpu = GpuStats(0, clock_mhz=level(clock), utilization=level(busy), temperature_c=level(87.0))
    return MachineStats(samples, gpus=(gpu,))


def test_device_that_lowers_its_clock_is_the_cause():
    finding = slower_since(run_of(machine=(device(1980.0), device(1410.0))))
    assert finding.message.endswith("; since then the clock of GPU 0 is 1,410 MHz, 1,980 MHz before, at 87 degrees C")
    assert finding.evidence["moves_with"] == "the device's clock"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (device(1980.0), device(1410.0, busy=0.5)),  # it waits for batches, and lowers its clock for that
        (device(1980.0), device(1900.0)),  # explains too little
        (device(1410.0), device(1980.0)),
        (device(1980.0), device(1410.0, samples=2)),
        (device(1980.0), MachineStats(9)),
        (device(0.0), device(0.0)),
    ],
)
def test_clock_is_not_the_cause_where_it_follows_or_explains_little(before, after):
    assert slower_since(run_of(machine=(before, after))).evidence["moves_with"] == "data_loading"


def lines(after_s, samples, before_s=0.005):
    return {"data_loading": (LineChange("load.py:9 decode", before_s, after_s, samples),)}


def test_line_that_carries_the_rise_is_named():
    finding = slower_since(run_of(lines=lines(0.045, 400)))
    assert finding.message.endswith("50.0 ms after), above all load.py:9 decode (5.00 ms before, 45.0 ms after)")


@pytest.mark.parametrize("called", ["torch.cat", "np.concatenate", "pd.concat", "torch.stack"])
def test_a_tensor_that_grows_by_copies_has_a_fix_of_its_own(called):
    (line,) = lines(0.045, 400)["data_loading"]
    finding = slower_since(run_of(lines={"data_loading": (replace(line, called=called),)}))
    assert finding.message.endswith(f"load.py:9 decode (5.00 ms before, 45.0 ms after, in {called}())")
    assert finding.fix.startswith("A tensor that grows by one piece is copied as a whole each time")


@pytest.mark.parametrize("called", ["", "losses.append", "sum"])
def test_other_lines_that_rise_have_not(called):
    (line,) = lines(0.045, 400)["data_loading"]
    assert "copied" not in slower_since(run_of(lines={"data_loading": (replace(line, called=called),)})).fix


@pytest.mark.parametrize(
    ("after_s", "samples", "before_s"),
    [(0.045, 9, 0.005), (0.02, 400, 0.005), (0.045, 12, 0.02)],
    ids=["few samples", "a small part", "may be chance"],
)
def test_line_that_may_not_be_the_cause_is_not_named(after_s, samples, before_s):
    assert "load.py" not in slower_since(run_of(lines=lines(after_s, samples, before_s))).message


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ((None, 405), "; rank 1 works longer than the others since then"),
        ((300, 405, 390, None), "; ranks 0, 1, 2 work longer than the others since then"),
        ((None, None), ""),
        ((900, 20), ""),
    ],
)
def test_ranks_that_work_longer_since_then_are_named(since, text):
    rows = [RankStats(RankId(rank, len(since)), 1000, slower_since_step=step) for rank, step in enumerate(since)]
    message = slower_since(replace(run_of(), ranks=AllRanksStats(len(since), tuple(rows)))).message
    assert message.partition("50.0 ms after)")[2] == text
