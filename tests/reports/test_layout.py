"""Widths, shares and names in reports, for any width and any number of rows."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports.test_texts import CHANGES, gpu_run, screen
from tests.statistics.test_compare import of_sections
from tests.support.ranks import rank_id, rank_row, ranks_of
from tests.support.recording import section_stats, snapshot_of
from tests.trials.test_results import RESULTS
from training_profiler.base import table as traced
from training_profiler.cli.list_runs import render_runs
from training_profiler.diagnosis import Finding
from training_profiler.model.ranks import AllRanksStats, SectionSpread
from training_profiler.model.snapshot import LoaderStats, Snapshot
from training_profiler.reports import layout
from training_profiler.reports.comparison import ComparedRuns, render_comparison
from training_profiler.reports.console import render_final
from training_profiler.reports.layout import Layout, column_width, table
from training_profiler.reports.ranks import rank_lines
from training_profiler.reports.report_json import as_data
from training_profiler.reports.resources import loader_lines
from training_profiler.reports.sections import percentages
from training_profiler.reports.verdict import important
from training_profiler.reports.watch import WatchedRun, watch_lines
from training_profiler.statistics.compare import compare
from training_profiler.storage.run_reader import ListedRun
from training_profiler.trials.report import render_results

LINES = Layout(format="lines")


@pytest.mark.parametrize(
    "quantity", ["7.58 ms", "1 min 01 s", "12 h 05 min", "0.25 GiB", "59.7 MFLOP/s", "1.95 samples/s"]
)
def test_no_line_ends_between_a_number_and_its_unit(quantity):
    for before in range(24, 40):
        first, *rest = Layout(width=40).wrap(f"{'x' * before} {quantity} more")
        assert quantity in first or quantity in rest[0], before
        assert len(first) <= 40


def test_color_only_where_the_terminal_has_it(monkeypatch):
    assert Layout().color("text", "red") == "text"
    assert Layout(has_color=True).color("text", "red") == "\x1b[31mtext\x1b[0m"
    monkeypatch.setattr(layout, "colored", None)
    monkeypatch.setattr(layout, "can_colorize", None)
    assert Layout(has_color=True).color("text", "red") == "text"
    assert not layout.has_terminal_color()


def test_table_aligns_names_left_and_numbers_right(monkeypatch):
    headers, rows = ("name", "time\n(ms)"), [("a", "1"), ("  nested", "22")]
    assert table(headers, rows) == ["name      time", "          (ms)", "a            1", "  nested    22"]
    assert column_width("time\n(ms)", ["1", "22"]) == 6
    monkeypatch.setattr(layout, "tabulate", None)
    assert table(headers, rows[:1]) == ["name  time (ms)", "a  1"]


PARTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any)


@given(PARTS)
def test_percentages_add_up_to_100_and_are_less_than_a_tenth_off(parts):
    shares = [part / sum(parts) for part in parts]
    shown = percentages(shares)
    assert sum(round(share * 10) for share in shown) == 1000
    assert all(abs(each - 100 * share) < 0.1 + 1e-9 for each, share in zip(shown, shares, strict=True))


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ([0.3337, 0.3336, 0.3327], [33.4, 33.3, 33.3]),  # the largest remainders
        ([0.25, 0.25], [25.0, 25.0]),  # not all of it: only rounded
        ([], []),
        ([0.0], [0.0]),
    ],
)
def test_what_rounding_leaves_goes_to_the_largest_remainders(shares, shown):
    assert percentages(shares) == shown


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_screens_fit_their_width(width):
    assert max(map(len, screen(gpu_run(), CHANGES, width=width).splitlines())) <= width
    over_steps = [(1, n, 0.1) for n in range(500)]
    run = WatchedRun(
        gpu_run(), CHANGES, "/a/long/folder" * 30, "train.py", "running", recent_step_s=0.1,
        recent_shares={"a" * 200: 0.9}, over_steps=over_steps,
    )  # fmt: skip
    assert max(map(len, watch_lines(run, ["event " * 40], Layout(width, is_unicode=True), 40))) <= width


def test_a_report_of_many_sections_has_60_lines_and_all_of_their_time():
    run = snapshot_of({f"part_{at}": 0.001 * at for at in range(1, 41)})
    nested = section_stats("nested", 0.02, parent="part_1", self_s=0.0)  # larger than most
    run = replace(run, sections=run.sections | {"nested": nested})
    text, full = (render_final(run, CHANGES, is_full=is_full) for is_full in (False, True))
    table, bars = (block.splitlines()[1:] for block in text.split("\n\n")[1:3])
    assert text.strip().count("\n") < 60
    rest = re.fullmatch(r"(\d+) more sections +([\d.]+)", table[-1])
    assert rest is not None
    assert int(rest[1]) + len(table) - 3 == 41
    assert {"part_1", "nested"} <= {row.split()[0] for row in table}
    others_s = sum(float(row.split()[2]) for row in table[2:-1] if row[0] != " ")
    assert others_s + float(rest[2]) == pytest.approx(8.2, abs=0.01)
    assert sum(float(row[:-1].split()[-1]) for row in bars if row[-1] == "%") == pytest.approx(100.0)
    assert all(name in full for name in run.sections if name != "other")


def test_uneven_steps_matter_from_a_tenth_on_unless_their_cause_is_known():
    run = gpu_run()
    uneven = Finding("step-time-varies", "varies", {}, 0.08 * run.wall_s, "a fix")
    of_garbage = replace(uneven, evidence={"moves_with": "garbage collection"})
    twice = replace(uneven, potential_saving_s=0.16 * run.wall_s)
    assert [important(run, [each]) for each in (uneven, of_garbage, twice)] == [[], [of_garbage], [twice]]


def thousand() -> AllRanksStats:
    rows = []
    for rank in range(1024):
        who = replace(rank_id(rank, 1024, 8), host=f"gpu-node-{'x' * 40}{rank // 8}")
        silence = {"last_message_s_ago": 40.0, "inside": ("step" * 20,)} if rank % 3 == 0 else {}
        rows.append(rank_row(rank, 0.03 + rank * 1e-5, who=who, **silence))
    spread = SectionSpread("", 1000, 0.01, 0.02, 0.03, rows[-1].who, 0.5, True, never_on=tuple(range(0, 48, 2)))
    return ranks_of(
        rows,
        world_size=2048,
        sections=tuple(replace(spread, name=f"section_{i:02d}" + "_long" * 8) for i in range(40)),
        unresponsive=tuple(range(0, 1024, 3)),
        missing=tuple(range(1024, 2048, 2)),
        sync_share=0.3,
        waiting_share=0.2,
        transfer_share=0.1,
        step_s=0.05,
    )


@pytest.mark.parametrize(("width", "headers"), [(40, "operator calls host"), (80, "operator calls host device")])
def test_tables_of_traces_drop_their_last_columns(width, headers, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = traced.table(("operator", "calls", "host", "device"), [("aten::addmm" * 4, 7, "x" * 12, "y" * 12)])
    assert " ".join(text.splitlines()[0].split()) == headers
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 60, 80])
def test_tables_drop_columns_where_the_terminal_is_narrow(width):
    of, steps = Layout(width=width), [0.1 + 0.01 * (number % 7) for number in range(100)]
    compared = compare(*(of_sections(np.array(steps), np.array(steps) * factor) for factor in (1, 2)))
    listed = ListedRun(
        "runs/20261121-142530", "2026-11-21T14:25:30", None, "train.py", "ended", 5000, 0.1, "GOOD: yes", "SIGTERM"
    )
    names = ("forward_avg_s", "backward_avg_s", "optimizer_avg_s", "batch_wait_avg_s", "proportion")
    means = dict.fromkeys(("data_avg_s", *names), 0.5)
    loaders = [LoaderStats(name, 100, 3200, 1.0, **means) for name in ("a", "b")]
    tables = (
        render_comparison(ComparedRuns("before", "after", compared, {}, [], []), of).splitlines(),
        render_runs([listed], of).splitlines(),
        loader_lines(Snapshot(loaders=tuple(loaders), wall_s=10.0), of),
        render_results(RESULTS, "runs/x", of).splitlines()[1:6],
        [line for line in rank_lines(Snapshot(ranks=thousand()), of) if line.startswith("  sec")],
    )
    assert [max(map(len, each)) <= width for each in tables] == [True] * len(tables)
    assert "GOOD" in tables[1][-1]


@pytest.mark.parametrize("of", [Layout(width=80), Layout(width=118), LINES])
def test_thousand_ranks_fit_on_a_screen(of):
    lines = rank_lines(Snapshot(ranks=thousand()), of)
    assert len(lines) < 45
    assert of == LINES or max(map(len, lines)) <= of.width


def test_json_of_a_thousand_ranks_is_below_a_megabyte():
    data = as_data(Snapshot(ranks=thousand()), [])
    assert len(json.dumps(data, allow_nan=False)) < 1_000_000
    assert data["ranks"]["sections"][0]["slowest"] == 1023
    assert data["ranks"]["ranks"][5]["who"]["rank"] == 5
