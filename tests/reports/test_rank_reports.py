"""The block on ranks: few lines for 2 ranks and for 1,024, none for a single one."""

import json
from dataclasses import replace

import pytest

from tests.support.ranks import rank_id, rank_row, ranks_of
from tests.support.recording import snapshot_of
from training_profiler.reports.checklist import checklist
from training_profiler.reports.console import render_final, render_periodic
from training_profiler.reports.layout import Layout
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

LINES, WIDE = Layout(format="lines"), Layout(width=118)
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


def lines_of(ranks: AllRanksStats | None, layout: Layout = WIDE) -> list[str]:
    return rank_lines(Snapshot(ranks=ranks), layout)


def test_single_rank_has_no_block():
    assert lines_of(None) == []
    assert "Ranks:" not in render_final(snapshot_of({"forward_pass": 0.5}), [])


def test_block_of_four_ranks():
    assert lines_of(four(sync_share=0.312, waiting_share=0.28, transfer_share=0.032, compared_steps=64)) == [
        "Ranks: 4 of 4 reported, on 2 hosts (all figures above are of rank 0)",
        "Per step, over ranks (each: per call):",
        "  section                min  median     max  imbalance  slowest",
        "                        (ms)    (ms)    (ms)",
        "  data_loading          1.20    1.30   22.00      +240%  rank 3 (node1)",
        "  checkpointing (each)                500.00             only on rank 0 (node0)",
        "Synchronization: 31.2% of step time, mean over ranks: 28.0% waiting for slower ranks, 3.2% communication "
        "(from 64",
        "  steps)",
        "Slowest: rank 3 (node1) works 52.1 ms per step, the fastest 31.0 ms; 20.8 ms of that in data_loading "
        "(train.py:31",
        "  fetch); since step 400 1.67x its work before",
        "Hosts: node0 (ranks 0-1) 31.0 ms per step, node1 (ranks 2-3) 31.1 ms per step",
    ]


def test_greppable_lines():
    assert lines_of(four(), LINES)[1:3] == [
        "rank_spread data_loading: min=0.0012s, median=0.0013s, max=0.0220s, imbalance=240.0%, "
        "slowest=rank 3 (node1), per=step, ranks=4",
        "rank_spread checkpointing: min=0.5000s, median=0.5000s, max=0.5000s, imbalance=0.0%, "
        "slowest=rank 0 (node0), per=span, ranks=1, never_on=1-3",
    ]


def test_short_sections_between_steps_are_left_out():
    fetch = replace(SAVING, name="first_fetch", ranks=4, never_on=(), slowest_total_s=0.024)
    lines = lines_of(replace(four(), sections=(LOADING, fetch)))
    assert not [line for line in lines if "first_fetch" in line]
    longer = replace(fetch, slowest_total_s=0.026)  # of 100 steps of 0.05 s
    assert [line for line in lines_of(replace(four(), sections=(LOADING, longer))) if "first_fetch" in line]


def test_unknown_synchronization_is_not_zero():
    assert [line for line in lines_of(four()) if line.startswith("Sync")] == [
        "Synchronization: not measured (no timed communication between ranks)"
    ]


def test_even_ranks_have_one_line():
    even = ranks_of([rank_row(rank, 0.03 + rank * 1e-5) for rank in range(4)])
    assert "Work: 30.0 ms to 30.0 ms per step on all ranks" in lines_of(even)


def test_unresponsive_ranks_have_their_last_section():
    rows = [
        rank_row(0),
        replace(rank_row(2), steps=120, heard_s_ago=35.2, inside=("backward_pass",)),
        replace(rank_row(3), steps=90),
    ]
    lines = lines_of(ranks_of(rows, silent=(2, 3), missing=(1, 5, 6, 7), world_size=8))
    assert lines[0] == "Ranks: 3 of 8 reported, on 2 hosts (all figures above are of rank 0)"
    assert lines[-3:] == [
        "Unresponsive: rank 3 (node1), last at step 90",
        "Unresponsive: rank 2 (node1) for 35 s, last at step 120 in backward_pass",
        "Never reported: ranks 1, 5-7",
    ]


@pytest.mark.parametrize(
    ("clocks", "line"),
    [
        (
            ClockStats(2, 2, 0.00031, 120),
            "Clocks: 2 hosts aligned from 120 barriers and collectives of the program, within 0.31 ms",
        ),
        (
            ClockStats(4, 3, 0.002, 9),
            "Clocks: 3 of 4 hosts aligned from 9 barriers and collectives of the program, within 2.00 ms",
        ),
        (
            ClockStats(2, 0),
            "Clocks: the 2 hosts are not aligned: the program has no barrier or collective to use",
        ),
    ],
)
def test_clocks_have_their_error(clocks, line):
    assert lines_of(four(clocks=clocks))[-1] == line


def test_unreadable_journals_are_named():
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


@pytest.mark.parametrize("layout", [Layout(width=80), WIDE, LINES])
def test_thousand_ranks_fit_on_a_screen(layout):
    lines = lines_of(thousand(), layout)
    assert len(lines) < 45
    if layout != LINES:
        assert max(map(len, lines)) <= layout.width


def test_table_of_a_thousand_ranks_is_narrow():
    table = lines_of(thousand())[1:17]
    assert max(map(len, table)) <= 118


def test_json_of_a_thousand_ranks_is_below_a_megabyte():
    data = as_data(Snapshot(ranks=thousand()), [])
    text = json.dumps(data, allow_nan=False)
    assert len(text) < 1_000_000
    assert data["ranks"]["sections"][0]["slowest"] == 1023
    assert data["ranks"]["ranks"][5]["who"]["rank"] == 5


def test_gradient_synchronization_has_a_line():
    exchange = GradientSyncStats(200, 200, 0.0031, overlap=0.5, exposed_s=0.0015)
    assert exchange_lines(Snapshot(exchange=exchange)) == [
        "DDP: 3.10 ms per gradient all-reduce, 50% overlapped with the backward pass; "
        "it extends the backward pass by 1.50 ms"
    ]
    sampled = GradientSyncStats(200, 12, 0.0031)
    assert exchange_lines(Snapshot(exchange=sampled)) == [
        "DDP: 3.10 ms per gradient all-reduce (12 of 200 timed), overlap not measured"
    ]


def test_earlier_attempts_have_a_line():
    attempts = (AttemptStats(0, 120, 35.1, "SIGTERM"), AttemptStats(1, 4, 2.0, is_ended=False))
    assert attempt_lines(Snapshot(attempts=attempts)) == [
        "Attempts: this is attempt 2, counted from 0; attempt 0 made 120 steps in 35.1 s and was ended by SIGTERM; "
        "attempt 1 made 4 steps in 2.0 s, its end was not recorded"
    ]


@pytest.mark.parametrize(
    ("overlap", "verdict"),
    [(0.51, ("PASS", "51.0%")), (0.5, ("FAIL", "50.0%")), (None, ("not measured", ""))],
)
def test_checklist_wants_half_of_the_all_reduce_overlapped(overlap, verdict):
    exchange = GradientSyncStats(10, 10, 0.003, overlap)
    (check,) = [check for check in checklist(Snapshot(exchange=exchange)) if check.what.startswith("all-reduce")]
    assert (check.verdict, check.measured) == verdict


def test_periodic_and_final_report_have_the_block():
    run = replace(snapshot_of({"forward_pass": 0.5}), ranks=four())
    for report in (render_periodic(run), render_final(run, [])):
        assert "\n\nRanks: 4 of 4 reported" in report


def test_unknown_figures_of_ranks_are_none_in_json():
    data = as_data(Snapshot(ranks=ranks_of([rank_row(0, None), rank_row(1, None)])), [])
    assert data["ranks"]["ranks"][0]["work_s"] is None
    assert (data["exchange"], data["attempts"]) == (None, [])
    assert as_data(Snapshot(), [])["ranks"] is None


def test_many_hosts_are_cut_to_the_slowest_and_the_fastest():
    hosts = tuple(HostStats(f"n{i}", (i,), 0.03 + i / 1000) for i in range(9))
    ranks = AllRanksStats(9, tuple(rank_row(i) for i in range(9)), hosts=hosts)
    assert lines_of(ranks, LINES)[-1] == (
        "Hosts: the slowest of 9 are n8 (rank 8) 38.0 ms per step, n7 (rank 7) 37.0 ms per step, "
        "n6 (rank 6) 36.0 ms per step; the fastest is n0 (rank 0) 30.0 ms per step"
    )


def test_ranges_are_short():
    assert ranges_text([5, 0, 1, 2]) == "0-2, 5"
    assert ranges_text(range(0, 100, 2), most=2) == "0, 2, ..."


def test_ends_of_other_ranks_follow_the_first_ranks_end():
    rows = [
        rank_row(0, is_final=True),
        rank_row(1, is_final=True, ended_by="ValueError", steps=98),
        rank_row(2, steps=97),
        rank_row(3, is_final=True),
    ]
    lines = lines_of(ranks_of(rows))
    assert "Ended: rank 1 (node0) after 98 steps by ValueError" in lines
    assert "No final report, killed or still running: rank 2 (node1) (last at step 97)" in lines
    assert "Steps: 98 (rank 1 (node0)) to 100, not equal on all ranks" in lines
    still_running = [replace(rows[0], is_final=False), *rows[1:]]
    assert not [line for line in lines_of(ranks_of(still_running)) if line.startswith(("Ended", "No final", "Steps"))]


def test_common_end_of_all_ranks_needs_no_line():
    rows = [rank_row(rank, is_final=True) for rank in range(4)]
    assert not [line for line in lines_of(ranks_of(rows)) if line.startswith(("Ended", "No final", "Steps"))]
