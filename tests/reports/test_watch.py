from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding
from training_profiler.reports.layout import Layout
from training_profiler.reports.watch import EventLog, WatchedRun, progress_line, sparkline, watch_lines
from training_profiler.snapshot.ranks import AllRanksStats, RankId, RankStats
from training_profiler.snapshot.snapshot import EpochStats, Health

SLOW_DATA = Finding("data-loading-bound", "40% of step time is spent waiting", {}, 4.0, "use workers")


def watched(**options):
    snapshot = snapshot_of({"data_loading": 0.4, "forward_pass": 0.5})
    snapshot = replace(snapshot, **options.pop("snapshot", {}))
    return WatchedRun(
        snapshot, options.pop("findings", ()), "runs/x", "train.py", options.pop("state", "running"), **options
    )


def epoch(number, is_complete=True):
    return EpochStats(number, 12.0, 40, 40, None, None, {}, None, None, is_complete=is_complete)


def rank(number, **options):
    return RankStats(RankId(number, 2, "node0"), 400, **options)


def test_the_picture_has_state_last_steps_findings_ranks_and_events():
    ranks = AllRanksStats(
        2, (rank(0, step_s=0.1, work_s=0.05, against_best=1.0), rank(1, work_s=0.09, against_best=1.8))
    )
    run = watched(
        findings=[SLOW_DATA], recent_step_s=0.125, recent_shares={"data_loading": 0.45, "forward_pass": 0.5},
        over_steps=[(1, 1, 0.1), (1, 2, 0.2)], snapshot={"ranks": ranks},
    )  # fmt: skip
    text = "\n".join(watch_lines(run, ["an event"], Layout()))
    for words in (
        "runs/x: running\n",
        "last steps: 125 ms each; forward_pass 50%, data_loading 45%",
        "steps .@ 100 ms to 200 ms",
        "VERDICT  INPUT-BOUND: 40% of step time",
        "-> use workers",
        "rank 1 (node0): step 400, 90.0 ms of work, 1.80x the least\nrank 0 (node0): step 400",
        "events\nan event",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_low_terminal_keeps_the_begin_and_the_last_events():
    events = [f"event {number}" for number in range(20)]
    lines = watch_lines(watched(recent_step_s=0.1), events, Layout(), height=16)
    assert len(lines) == 16
    assert lines[0] == "runs/x: running"
    assert "more lines on a taller terminal" in lines[10]
    assert lines[-4:] == ["events", "event 17", "event 18", "event 19"]
    tall = watch_lines(watched(recent_step_s=0.1), events, Layout(), height=60)
    assert tall[-20:] == events


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    run = watched(
        recent_step_s=0.1, recent_shares={"a" * 200: 0.9}, over_steps=[(1, n, 0.1) for n in range(500)],
        findings=[SLOW_DATA],
    )  # fmt: skip
    lines = watch_lines(replace(run, folder="/a/long/folder" * 30), ["event " * 40], Layout(width, is_unicode=True), 40)
    assert max(map(len, lines)) <= width


def test_an_old_journal_of_a_running_run_is_said():
    first = watch_lines(watched(written_s_ago=95.0), [], Layout())[0]
    assert first == "runs/x: running, last written 1 min 35 s ago"
    assert watch_lines(watched(written_s_ago=95.0, state="ended"), [], Layout())[0] == "runs/x: ended"


def test_the_sparkline_has_a_column_for_each_step_or_a_mean_of_several():
    assert sparkline([], Layout()) == ""
    assert sparkline([(1, 1, 0.1), (1, 2, 0.1)], Layout(is_unicode=True)) == "steps ▁▁ 100 ms to 100 ms"
    many = sparkline([(2, n, 0.2 if n < 120 else 0.4) for n in range(240)], Layout(is_unicode=True))
    assert len(many) == 80
    drawn = many.split()[1]
    assert set(drawn[: len(drawn) // 2 - 1]) == {"▁"}
    assert set(drawn[len(drawn) // 2 + 1 :]) == {"█"}


def test_each_event_is_said_once():
    log = EventLog()
    assert [line[13:] for line in log.update(watched())] == ["the run is running"]
    assert log.update(watched()) == []
    steps = [
        (watched(findings=[SLOW_DATA]), ["found data-loading-bound: 40% of step time is spent waiting"]),
        (watched(), ["no longer found: data-loading-bound"]),
        (watched(snapshot={"epochs": (epoch(1), epoch(2, False))}), ["ended: epoch 1 after 12.0 s, 40 steps"]),
        (
            watched(snapshot={"epochs": (epoch(1), epoch(2), epoch(3))}),
            ["ended: epoch 2-3, the last after 12.0 s, 40 steps"],
        ),
        (watched(captures=["captures/a"], snapshot={"epochs": tuple(map(epoch, (1, 2, 3)))}), ["captured captures/a"]),
    ]
    for run, expected in steps:
        assert [line[13:] for line in log.update(run)] == expected
    assert len(log.lines) == 6


def test_silent_and_ended_ranks_parts_switched_off_and_attempts_are_events():
    log = EventLog()
    log.update(watched())
    ranks = AllRanksStats(2, (rank(0), rank(1, ended_by="SIGTERM")), silent=(0,))
    health = Health(disabled=("machine monitor (no /proc)",))
    new = [line[13:] for line in log.update(watched(snapshot={"ranks": ranks, "health": health}))]
    assert new == [
        "no sign of rank 0 any more", "rank 1 was ended by SIGTERM", "switched off: machine monitor (no /proc)",
    ]  # fmt: skip
    assert [line[13:] for line in log.update(watched(attempt=1))] == ["attempt 1 has begun", "the run is running"]
    ended = watched(attempt=1, state="ended", snapshot={"ended_by": "KeyboardInterrupt"})
    assert [line[13:] for line in log.update(ended)] == ["the run has ended by KeyboardInterrupt"]


def test_a_line_of_progress_fits():
    run = watched(recent_step_s=0.02, recent_shares={"forward_pass": 0.5, "data_loading": 0.3})
    assert progress_line(run, 80) == "Profiler: step 100 | 50.0 steps/s | forward_pass 50%, data_loading 30%"
    assert len(progress_line(run, 50)) < 50
