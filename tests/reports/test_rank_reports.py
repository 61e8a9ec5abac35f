"""The block on ranks: what is known of them, in few lines for 2 and for 1,024, and nothing of a single one."""

import json
from dataclasses import replace

import pytest

from tests.support.ranks import rank_id, rank_row, ranks_of
from tests.support.recording import snapshot_of
from training_profiler.reports.checklist import checklist
from training_profiler.reports.console import render_final, render_periodic
from training_profiler.reports.ranks import attempt_lines, exchange_lines, ranges_text, rank_lines
from training_profiler.reports.report_json import as_data
from training_profiler.snapshot.ranks import (
    AllRanksStats,
    AttemptStats,
    ClockStats,
    GradientSyncStats,
    HostStats,
    SectionSpread,
)
from training_profiler.snapshot.snapshot import Snapshot

LOADING = SectionSpread("data_loading", 4, 0.0012, 0.0013, 0.022, rank_id(3), 2.4, True)
SAVING = SectionSpread("checkpointing", 1, 0.5, 0.5, 0.5, rank_id(0), 0.0, False, never_on=(1, 2, 3))
TINY = SectionSpread("logging", 4, 1e-6, 1e-6, 1e-6, rank_id(1), 0.0, True)


def four(**more) -> AllRanksStats:
    rows = [rank_row(rank, ms / 1000) for rank, ms in enumerate((31, 31.2, 31.1, 52.1))]
    slow = replace(
        rows[3],
        cause="data_loading",
        cause_s=0.0208,
        place="train.py:31 fetch",
        slower_since_step=400,
        against_itself=1.67,
    )
    return ranks_of([*rows[:3], slow], sections=(LOADING, TINY, SAVING), step_s=0.05, **more)


def lines_of(ranks: AllRanksStats | None, layout: str = "table") -> list[str]:
    return rank_lines(Snapshot(ranks=ranks), layout)


def test_a_training_on_one_rank_has_no_such_block():
    assert lines_of(None) == []
    assert "Ranks:" not in render_final(snapshot_of({"forward_pass": 0.5}), [])


def test_the_block_tells_spread_synchronization_the_slowest_and_the_hosts():
    assert lines_of(four(sync_share=0.312, waiting_share=0.28, transfer_share=0.032, compared_steps=64)) == [
        "Ranks: 4 of 4 heard, on 2 hosts (the figures above are rank 0's)",
        "  a step                    min   median      max  imbalance  slowest",
        "  data_loading          0.0012s  0.0013s  0.0220s      +240%  rank 3 (node1)",
        "  checkpointing (each)                    0.5000s             only on rank 0 (node0)",
        "Synchronization: 31.2% of step time, mean over ranks: 28.0% waiting for slower ranks, "
        "3.2% exchange (by 64 steps)",
        "Slowest: rank 3 (node1) works 0.0521s a step, the fastest 0.0310s; "
        "0.0208s of that in data_loading (train.py:31",
        "  fetch); since step 400 1.67 times its work before",
        "Hosts: node0 (ranks 0-1) 0.0310s a step, node1 (ranks 2-3) 0.0311s a step",
    ]


def test_the_lines_can_be_found_with_grep():
    assert lines_of(four(), "lines")[1:3] == [
        "rank_spread data_loading: min=0.0012s, median=0.0013s, max=0.0220s, imbalance=240.0%, "
        "slowest=rank 3 (node1), per=step, ranks=4",
        "rank_spread checkpointing: min=0.5000s, median=0.5000s, max=0.5000s, imbalance=0.0%, "
        "slowest=rank 0 (node0), per=span, ranks=1, never_on=1-3",
    ]


def test_sections_between_steps_are_left_out_where_all_ranks_are_in_them_for_a_moment():
    fetch = replace(SAVING, name="first_fetch", ranks=4, never_on=(), slowest_total_s=0.024)
    told = lines_of(replace(four(), sections=(LOADING, fetch)))
    assert not [line for line in told if "first_fetch" in line]
    longer = replace(fetch, slowest_total_s=0.026)  # of 100 steps of 0.05 s
    assert [line for line in lines_of(replace(four(), sections=(LOADING, longer))) if "first_fetch" in line]


def test_synchronization_that_is_not_known_is_not_told_as_none():
    assert [line for line in lines_of(four()) if line.startswith("Sync")] == [
        "Synchronization: not measured (no exchange between ranks was seen that tells its time)"
    ]


def test_ranks_that_work_alike_are_told_as_even():
    even = ranks_of([rank_row(rank, 0.03 + rank * 1e-5) for rank in range(4)])
    assert "Work: 0.0300s to 0.0300s a step on all ranks" in lines_of(even)


def test_ranks_that_are_not_heard_are_told_with_where_they_were():
    rows = [
        rank_row(0),
        replace(rank_row(2), steps=120, heard_s_ago=35.2, inside=("backward_pass",)),
        replace(rank_row(3), steps=90),
    ]
    told = lines_of(ranks_of(rows, silent=(2, 3), missing=(1, 5, 6, 7), world_size=8))
    assert told[0] == "Ranks: 3 of 8 heard, on 2 hosts (the figures above are rank 0's)"
    assert told[-3:] == [
        "Not heard: rank 3 (node1), last after 90 steps",
        "Not heard: rank 2 (node1) for 35s, last after 120 steps inside backward_pass",
        "Never heard: ranks 1, 5-7",
    ]


@pytest.mark.parametrize(
    ("clocks", "line"),
    [
        (
            ClockStats(2, 2, 0.00031, 120),
            "Clocks: 2 hosts aligned by 120 barriers and exchanges of the program, within 310.0us",
        ),
        (
            ClockStats(4, 3, 0.002, 9),
            "Clocks: 3 of 4 hosts aligned by 9 barriers and exchanges of the program, within 0.0020s",
        ),
        (
            ClockStats(2, 0),
            "Clocks: those of 2 hosts are not aligned: no barrier or exchange of the program tells",
        ),
    ],
)
def test_clocks_are_told_with_their_error(clocks, line):
    assert lines_of(four(clocks=clocks))[-1] == line


def test_what_could_not_be_read_is_told():
    assert lines_of(four(left_out=("rank2.jsonl is torn",)))[-1] == "rank2.jsonl is torn"


def thousand() -> AllRanksStats:
    rows = [
        rank_row(
            rank, 0.03 + rank * 1e-5, who=replace(rank_id(rank, 1024, 8), host="gpu-node-" + "x" * 40 + str(rank // 8))
        )
        for rank in range(1024)
    ]
    sections = tuple(
        SectionSpread(
            f"section_{i:02d}" + "_long" * 8,
            1000,
            0.01,
            0.02,
            0.03,
            rows[-1].who,
            0.5,
            True,
            never_on=tuple(range(0, 48, 2)),
        )
        for i in range(40)
    )
    silent = tuple(range(0, 1024, 3))
    rows = [replace(row, heard_s_ago=40.0, inside=("step" * 20,)) if row.who.rank in silent else row for row in rows]
    return ranks_of(
        rows,
        world_size=2048,
        sections=sections,
        silent=silent,
        missing=tuple(range(1024, 2048, 2)),
        sync_share=0.3,
        waiting_share=0.2,
        transfer_share=0.1,
        step_s=0.05,
    )


@pytest.mark.parametrize("layout", ["table", "lines"])
def test_a_thousand_ranks_are_told_in_a_screenful(layout):
    lines = lines_of(thousand(), layout)
    assert len(lines) < 40
    if layout == "table":
        assert max(map(len, lines)) <= 118


def test_the_table_of_a_thousand_ranks_is_narrow():
    table = lines_of(thousand())[1:15]
    assert max(map(len, table)) <= 118


def test_the_data_of_a_thousand_ranks_is_a_megabyte_at_most():
    data = as_data(Snapshot(ranks=thousand()), [])
    text = json.dumps(data, allow_nan=False)
    assert len(text) < 1_000_000
    assert data["ranks"]["sections"][0]["slowest"] == 1023
    assert data["ranks"]["ranks"][5]["who"]["rank"] == 5


def test_the_exchange_of_gradients_has_a_line():
    exchange = GradientSyncStats(200, 200, 0.0031, overlap=0.5, exposed_s=0.0015)
    assert exchange_lines(Snapshot(exchange=exchange)) == [
        "DDP: 0.0031s an exchange, 50% of it while gradients were computed; the backward pass is 0.0015s longer by it"
    ]
    sampled = GradientSyncStats(200, 12, 0.0031)
    assert exchange_lines(Snapshot(exchange=sampled)) == [
        "DDP: 0.0031s an exchange (12 of 200 timed), overlap not measured"
    ]


def test_attempts_before_this_one_have_a_line():
    attempts = (AttemptStats(0, 120, 35.1, "SIGTERM"), AttemptStats(1, 4, 2.0, is_ended=False))
    assert attempt_lines(Snapshot(attempts=attempts)) == [
        "Attempts: this is attempt 2, counted from 0; attempt 0 made 120 steps in 35.1s and was ended by SIGTERM; "
        "attempt 1 made 4 steps in 2.0s, its end was not written"
    ]


@pytest.mark.parametrize(
    ("overlap", "verdict"),
    [(0.51, ("PASS", "51.0%")), (0.5, ("FAIL", "50.0%")), (None, ("not measured", ""))],
)
def test_the_checklist_asks_for_half_of_the_exchange_to_be_hidden(overlap, verdict):
    exchange = GradientSyncStats(10, 10, 0.003, overlap)
    (check,) = [one for one in checklist(Snapshot(exchange=exchange)) if one.what.startswith("all-reduce")]
    assert (check.verdict, check.measured) == verdict


def test_both_reports_have_the_block():
    run = replace(snapshot_of({"forward_pass": 0.5}), ranks=four())
    for report in (render_periodic(run), render_final(run, [])):
        assert "\n\nRanks: 4 of 4 heard" in report


def test_unknown_figures_of_ranks_are_none_in_the_data():
    data = as_data(Snapshot(ranks=ranks_of([rank_row(0, None), rank_row(1, None)])), [])
    assert data["ranks"]["ranks"][0]["work_s"] is None
    assert (data["exchange"], data["attempts"]) == (None, [])
    assert as_data(Snapshot(), [])["ranks"] is None


def test_hosts_beyond_a_few_are_told_by_the_slowest_and_the_least():
    hosts = tuple(HostStats(f"n{i}", (i,), 0.03 + i / 1000) for i in range(9))
    ranks = AllRanksStats(9, tuple(rank_row(i) for i in range(9)), hosts=hosts)
    assert lines_of(ranks, "lines")[-1] == (
        "Hosts: n8 (rank 8) 0.0380s a step, n7 (rank 7) 0.0370s a step, n6 (rank 6) 0.0360s a step "
        "work longest of 9; the least n0 (rank 0) 0.0300s a step"
    )


def test_ranges_are_short():
    assert ranges_text([5, 0, 1, 2]) == "0-2, 5"
    assert ranges_text(range(0, 100, 2), most=2) == "0, 2, ..."


def test_how_other_ranks_ended_is_told_once_the_first_has():
    rows = [
        rank_row(0, is_final=True),
        rank_row(1, is_final=True, ended_by="ValueError", steps=98),
        rank_row(2, steps=97),
        rank_row(3, is_final=True),
    ]
    lines = lines_of(ranks_of(rows))
    assert "Ended: rank 1 (node0) after 98 steps by ValueError" in lines
    assert "No last word, killed or still at work: rank 2 (node1) (last after 97 steps)" in lines
    assert "Steps: 98 (rank 1 (node0)) to 100, not the same on all ranks" in lines
    still_running = [replace(rows[0], is_final=False), *rows[1:]]
    assert not [line for line in lines_of(ranks_of(still_running)) if line.startswith(("Ended", "No last", "Steps"))]


def test_ranks_that_came_to_their_end_together_are_told_of_no_end():
    rows = [rank_row(rank, is_final=True) for rank in range(4)]
    assert not [line for line in lines_of(ranks_of(rows)) if line.startswith(("Ended", "No last", "Steps"))]
