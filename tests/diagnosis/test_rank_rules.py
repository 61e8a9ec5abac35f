"""Rules about ranks: each fires, is silent just below and without data, and none claims another's seconds."""

from dataclasses import replace

import pytest

from tests.support.ranks import rank_id, rank_row, ranks_of
from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.snapshot.program import OptimizerFacts, ProgramFacts
from training_profiler.snapshot.ranks import AllRanksStats, GradientSyncStats, RankStats, SectionSpread
from training_profiler.snapshot.snapshot import Snapshot


def run_of(ranks: AllRanksStats | None, steps: int = 100, **shares: float) -> Snapshot:
    return replace(snapshot_of(shares or {"backward_pass": 0.95}, steps=steps, step_s=0.05), ranks=ranks)


def working(*work_ms: float, **of_last) -> list[RankStats]:
    rows = [rank_row(rank, ms / 1000) for rank, ms in enumerate(work_ms)]
    return [*rows[:-1], replace(rows[-1], **of_last)]


def codes(snapshot: Snapshot) -> list[str]:
    return [finding.code for finding in diagnose(snapshot)]


def find(snapshot: Snapshot, code: str):
    return next(finding for finding in diagnose(snapshot) if finding.code == code)


def test_straggler_is_named_with_cause_line_and_saving():
    slow = working(30, 30, 30, 40, cause="data_loading", cause_s=0.009, place="train.py:31 fetch", slower_since_step=40)
    finding = find(run_of(ranks_of(slow)), "straggler")
    assert finding.message == (
        "All ranks wait for rank 3 (node1): it works 40.0 ms per step, the median of the others is 30.0 ms (+33%); "
        "9.00 ms of that in data_loading, train.py:31 fetch; slower since step 40"
    )
    assert finding.potential_saving_s == pytest.approx(1.0)
    assert finding.evidence["rank"] == 3
    assert finding.evidence["cause"] == "data_loading"
    assert finding.evidence["excess"] == pytest.approx(1 / 3)
    assert finding.step_if_gone_s == pytest.approx(0.04)
    assert "DataLoader" in finding.fix


@pytest.mark.parametrize(("work_ms", "fires"), [(33.1, True), (32.9, False)])
def test_rank_a_tenth_slower_than_others_is_a_straggler(work_ms, fires):
    assert ("straggler" in codes(run_of(ranks_of(working(30, 30, 30, work_ms))))) == fires


def test_the_threshold_of_the_run_holds_for_stragglers():
    run = run_of(ranks_of(working(30, 30, 30, 32)))
    assert "straggler" not in codes(run)
    assert "straggler" in codes(replace(run, thresholds={"straggler": 0.05}))


def test_of_two_ranks_the_other_one_is_the_median():
    assert find(run_of(ranks_of(working(30, 40))), "straggler").evidence["median_of_others_s"] == 0.03


def test_straggler_saves_its_excess_over_the_next_rank():
    assert find(run_of(ranks_of(working(30, 30, 32, 40))), "straggler").potential_saving_s == pytest.approx(0.8)


def test_several_slow_ranks_share_one_saving():
    rows = [rank_row(rank, ms / 1000, who=rank_id(rank, per_host=8)) for rank, ms in enumerate((30, 30, 30, 39, 40))]
    finding = find(run_of(ranks_of(rows)), "straggler")
    assert finding.potential_saving_s == pytest.approx(1.0)
    assert "; 1 more is nearly as slow" in finding.message


@pytest.mark.parametrize(
    ("cause", "place", "word"),
    [
        ("data_generation", "", "DataLoader"),
        ("forward_pass", "", "temperature"),
        ("backward_pass", "", "bucket them by length"),
        ("data_transfer", "", "pinned"),
        ("other", "train.py:5 log", "train.py:5 log"),
        ("other", "", "outside all sections"),
        ("augment", "", "in augment"),
        ("user:other", "", "in other that"),
    ],
)
def test_fix_depends_on_the_cause(cause, place, word):
    slow = working(30, 30, 40, cause=cause, cause_s=0.01, place=place)
    assert word in find(run_of(ranks_of(slow)), "straggler").fix


def test_a_cause_in_no_section_is_called_that():
    slow = working(30, 30, 40, cause="other", cause_s=0.01, place="train.py:5 log")
    assert "; 10.0 ms of that in no section, train.py:5 log" in find(run_of(ranks_of(slow)), "straggler").message


@pytest.mark.parametrize(
    "ranks",
    [
        None,
        ranks_of(working(30)),
        ranks_of([rank_row(0, None), rank_row(1, None)]),
        ranks_of([rank_row(0, 0.03), rank_row(1, 0.05, steps=9)]),
    ],
)
def test_without_known_work_of_two_ranks_there_is_no_straggler(ranks):
    found = codes(run_of(ranks))
    assert not {"straggler", "host-slow", "uneven-work"} & set(found)


def test_nine_steps_are_too_few_for_a_straggler():
    assert "straggler" not in codes(run_of(ranks_of(working(30, 60)), steps=9))


def test_tiny_straggler_has_no_finding():
    assert "straggler" not in codes(run_of(ranks_of(working(0.3, 0.45))))


@pytest.mark.parametrize(("waiting_ms", "fires"), [(5.01, True), (4.99, False)])
def test_straggler_needs_single_steps_in_which_others_wait(waiting_ms, fires):
    rows = [replace(one, waiting_s=waiting_ms / 1000) for one in working(30, 30, 30, 40)]
    rows[-1] = replace(rows[-1], waiting_s=0.0)
    assert ("straggler" in codes(run_of(ranks_of(rows)))) == fires


@pytest.mark.parametrize(("work_ms", "fires"), [(4.51, True), (4.49, False)])
def test_straggler_that_costs_under_five_percent_is_ignored(work_ms, fires):
    run = run_of(ranks_of(working(2, 2, 2, work_ms)))  # of steps of 50 ms
    assert ("straggler" in codes(run)) == fires


def test_data_loading_that_delays_another_rank_is_not_called_efficient():
    loads = {"data_loading": 0.05, "backward_pass": 0.9}
    slow = working(30, 30, 40, cause="data_loading", cause_s=0.01)
    assert "data-loading-efficient" in codes(run_of(ranks_of(working(30, 30, 30)), **loads))
    assert "data-loading-efficient" not in codes(run_of(ranks_of(slow), **loads))


def test_slow_host_replaces_findings_of_its_ranks():
    found = run_of(ranks_of(working(30, 30, 40, 41)))
    finding = find(found, "host-slow")
    assert finding.message == (
        "All ranks of host node1 are slow: 40.5 ms of work per step, against 30.0 ms elsewhere (+35%)"
    )
    assert finding.potential_saving_s == pytest.approx(1.05)
    assert "straggler" not in codes(found)


def test_a_host_with_one_quick_rank_is_not_slow():
    found = codes(run_of(ranks_of(working(30, 30, 32, 41))))
    assert "host-slow" not in found
    assert "straggler" in found


@pytest.mark.parametrize(("least_ms", "fires"), [(33.1, True), (32.9, False)])
def test_a_host_is_slow_from_a_tenth_on(least_ms, fires):
    assert ("host-slow" in codes(run_of(ranks_of(working(30, 30, least_ms, 33.2))))) == fires


def test_straggler_on_slow_host_claims_its_excess_over_its_neighbour():
    found = run_of(ranks_of(working(30, 30, 40, 60)))
    straggler, host = find(found, "straggler"), find(found, "host-slow")
    assert straggler.potential_saving_s == pytest.approx(2.0)
    assert straggler.potential_saving_s + host.potential_saving_s <= (0.060 - 0.030) * 100 + 1e-9 + 1.0


def synchronizing(rows, sync: float, waiting: float, **more) -> AllRanksStats:
    return ranks_of(rows, sync_share=sync, waiting_share=waiting, transfer_share=sync - waiting, **more)


def test_synchronization_separates_waiting_from_transfer():
    ranks = synchronizing(working(30, 30), 0.13, 0.05, compared_steps=64)
    finding = find(run_of(ranks), "synchronization-heavy")
    assert finding.message == (
        "13.0% of step time is synchronization (mean over ranks): 5.0% waiting for slower ranks, 8.0% transfer"
    )
    assert finding.potential_saving_s == pytest.approx(0.13 * 5.0)
    assert finding.evidence["waiting_share"] == 0.05


@pytest.mark.parametrize(("numbers", "larger"), [(0, False), (10**6, False), (10**7, False), (3 * 10**7, True)])
def test_larger_buckets_are_advised_only_where_there_are_many(numbers, larger):
    optimizer = OptimizerFacts("SGD", 20, ("float32",), ("cpu",), numbers=numbers)
    run = run_of(synchronizing(working(30, 30), 0.2, 0.0))
    run = replace(run, program=ProgramFacts(optimizer), exchange=GradientSyncStats(100, 2, 0.01))
    fix = find(run, "synchronization-heavy").fix
    assert ("bucket_cap_mb" in fix) == larger
    assert "no_sync()" in fix


@pytest.mark.parametrize(("share", "fires"), [(0.101, True), (0.099, False)])
def test_synchronization_is_heavy_from_a_tenth_on(share, fires):
    ranks = synchronizing(working(30, 30), share, 0.0)
    assert ("synchronization-heavy" in codes(run_of(ranks))) == fires


def test_synchronization_excludes_what_the_straggler_claims():
    slow = working(30, 30, 30, 40, cause="forward_pass", cause_s=0.01)
    found = run_of(synchronizing(slow, 0.35, 0.30))
    straggler, heavy = find(found, "straggler"), find(found, "synchronization-heavy")
    assert straggler.potential_saving_s == pytest.approx(1.0)
    assert heavy.potential_saving_s == pytest.approx(0.35 * 5.0 - 1.0)
    assert "most of the waiting is for rank 3 (forward_pass)" in heavy.message
    assert heavy.fix.startswith("Fix rank 3 (forward_pass) first")
    assert codes(found).index("straggler") < codes(found).index("synchronization-heavy")


def test_straggler_that_explains_little_waiting_is_not_named():
    slow = working(30, 30, 30, 34, cause="forward_pass", cause_s=0.004)
    found = run_of(synchronizing(slow, 0.5, 0.4))
    assert "straggler" in codes(found)
    assert "rank 3" not in find(found, "synchronization-heavy").message
    assert "rank 3" not in find(found, "synchronization-heavy").fix


def test_without_rank_stats_synchronization_is_of_this_rank():
    found = find(run_of(None, synchronization=0.2, backward_pass=0.8), "synchronization-heavy")
    assert found.message.startswith("20.0% of step time is spent waiting for other ranks")


def test_ranks_that_are_late_in_turn_are_found():
    found = run_of(synchronizing(working(30, 30), 0.14, 0.11))
    finding = find(found, "uneven-work")
    assert finding.message.startswith("Ranks wait for each other for 11.0% of step time, but none is slower")
    assert finding.potential_saving_s == pytest.approx(0.55)
    assert find(found, "synchronization-heavy").potential_saving_s == pytest.approx(0.15)


def test_uneven_work_just_below_a_tenth_has_no_finding():
    assert "uneven-work" not in codes(run_of(synchronizing(working(30, 30), 0.14, 0.099)))


def test_work_is_not_uneven_beside_a_straggler():
    assert "uneven-work" not in codes(run_of(synchronizing(working(30, 40), 0.3, 0.2)))


def test_work_of_one_rank_between_steps_is_named_as_cause():
    save = SectionSpread("checkpointing", 1, 0.5, 0.5, 0.5, rank_id(0), 0.0, False, never_on=(1,), slowest_total_s=0.5)
    finding = find(run_of(synchronizing(working(30, 30), 0.14, 0.11, sections=(save,))), "uneven-work")
    assert finding.message.endswith(": only rank 0 (node0) spends time in checkpointing (0.50 s)")
    assert finding.fix == "Run checkpointing less often, asynchronously, or share it among ranks"


def test_silent_rank_comes_first_with_its_last_section():
    rows = [rank_row(0), replace(rank_row(1), steps=120, heard_s_ago=35.0, inside=("step", "backward_pass"))]
    slow = [*rows, rank_row(2, 0.045), rank_row(3)]
    found = run_of(ranks_of(slow, silent=(1,), missing=(5, 6), world_size=7))
    finding = diagnose(found)[0]
    assert finding.code == "rank-silent"
    assert finding.message == (
        "3 of 7 ranks do not report: rank 1 (node0), last update 35 s ago, after 120 steps "
        "inside step > backward_pass; 2 never reported (5, 6)"
    )
    assert finding.evidence == {
        "silent": 1,
        "missing": 2,
        "rank": 1,
        "host": "node0",
        "last_step": 120,
        "inside": "step > backward_pass",
    }


def test_many_silent_ranks_are_counted():
    rows = [replace(rank_row(rank, steps=rank), heard_s_ago=9.0) for rank in range(100)]
    found = find(run_of(ranks_of(rows, silent=tuple(range(1, 100)))), "rank-silent")
    assert len(found.message) < 300
    assert "95 more" in found.message


def test_no_rank_is_silent_if_all_report():
    assert "rank-silent" not in codes(run_of(ranks_of(working(30, 30))))


def test_silent_rank_is_found_before_the_first_step():
    ranks = ranks_of([RankStats(rank_id(0), 0)], missing=(1,), world_size=2)
    assert codes(Snapshot(ranks=ranks)) == ["rank-silent"]


def test_backward_pass_that_waits_for_a_slow_rank_is_not_called_slow():
    shares = {"forward_pass": 0.2, "backward_pass": 0.78}
    alone = run_of(None, **shares)
    assert "backward-slow" in codes(alone)
    waits = ranks_of(working(20, 20, 20, 40), waiting_share=0.4, sync_share=0.45)
    assert "backward-slow" not in codes(run_of(waits, **shares))
    even = ranks_of(working(30, 30, 30, 30), waiting_share=0.02, sync_share=0.05)
    assert "backward-slow" in codes(run_of(even, **shares))


def test_synchronization_comes_right_after_its_cause():
    waits = ranks_of(working(36, 36, 36, 40), waiting_share=0.1, sync_share=0.8, transfer_share=0.7)
    found = codes(run_of(waits, forward_pass=0.2, backward_pass=0.75))
    assert found.index("straggler") + 1 == found.index("synchronization-heavy")
    assert found.index("straggler") == 0
