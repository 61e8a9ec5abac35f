"""The exact text of the reports."""

from dataclasses import replace

import pytest

from tests.support.recording import FakeRun, section_stats, snapshot_of, step_stats
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.reports.console import LINES, render_epoch, render_final, render_periodic
from training_profiler.snapshot.snapshot import EpochStats, Health, LoaderStats, Snapshot

FORWARD = section_stats(
    "forward_pass", 0.663, count=50, avg_s=0.3047, total_s=15.234, self_s=15.234, min_s=0.2981, max_s=0.3123
)
OTHER = section_stats("other", 0.337, count=0, avg_s=None, total_s=7.743, self_s=7.743)
SNAPSHOT = Snapshot(steps=50, wall_s=22.977, sections={"forward_pass": FORWARD, "other": OTHER})


def part(text: str, title: str) -> list[str]:
    """Return the lines below ``title``, up to an empty one."""
    lines = text.split("\n")
    below = lines[lines.index(title) + 1 :]
    return below[: below.index("")]


def shares_in(text: str) -> list[str]:
    """Return the rows of the time distribution, without what a table may have above them."""
    return [row for row in part(text, "Time Distribution:") if row.endswith("%")]


def test_the_lines_of_a_periodic_report_are_these():
    assert render_periodic(SNAPSHOT, LINES) == (
        "\n=== Profiling Report (Step 50) ===\n"
        "\n"
        "Detailed Breakdown:\n"
        "forward_pass: count=50, total=15.234s, avg=0.3047s, min=0.2981s, max=0.3123s\n"
        "\n"
        "Time Distribution:\n"
        "forward_pass: 66.3%\n"
        "other: 33.7%\n"
    )


def test_the_table_of_a_periodic_report_has_a_row_a_section():
    section = replace(FORWARD, p50_s=0.3, p95_s=0.31, p99_s=0.312, std_s=0.0000125)
    text = render_periodic(replace(SNAPSHOT, sections={"forward_pass": section, "other": OTHER}))
    rows = part(text, "Detailed Breakdown:")
    assert rows[0].split() == ["section", "count", "total", "avg", "min", "max", "p50", "p95", "p99", "std"]
    assert [row.split() for row in rows[2:]] == [
        ["forward_pass", "50", "15.234s", "0.3047s", "0.2981s", "0.3123s", "0.3000s", "0.3100s", "0.3120s", "12.5us"]
    ]
    assert [row.split() for row in shares_in(text)] == [
        ["forward_pass", "66.3%"],
        ["other", "33.7%"],
    ]


def test_what_is_unknown_is_left_out():
    started = section_stats("sampling", 0.0, count=0, avg_s=None)
    text = render_periodic(replace(SNAPSHOT, sections={"sampling": started}), LINES)
    assert part(text, "Detailed Breakdown:") == ["sampling: count=0, total=0.000s"]


def test_a_nested_section_is_indented_under_its_parent_with_its_inclusive_time():
    run = FakeRun()
    with run.section("forward_pass"):
        run.clock.advance(1)
        run.spend("attention", 3)
    text = render_periodic(run.snapshot())
    rows = part(text, "Detailed Breakdown:")[2:]
    assert [row[:13] for row in rows] == ["forward_pass ", "  attention  "]
    assert [row.split()[2] for row in rows] == ["4.000s", "3.000s"]
    shares = shares_in(text)
    assert [(row[:13], row.split()[-1]) for row in shares] == [
        ("forward_pass ", "25.0%"),
        ("  attention  ", "75.0%"),
        ("other        ", "0.0%"),
    ]


def test_names_that_would_steer_the_terminal_are_written_out():
    run = FakeRun()
    run.spend("\x1b[2Jwiped\r\nfake: 100.0%", 1)
    text = render_periodic(run.snapshot(), LINES)
    assert "\\x1b[2Jwiped\\r\\nfake: 100.0%: count=1" in text
    assert "\x1b" not in text
    assert "\r" not in text


def test_names_that_look_like_numbers_or_markup_stay_as_they_are():
    run = FakeRun()
    for name in ("1e3", "007", "| a |"):
        run.spend(name, 1)
    text = render_periodic(run.snapshot())
    assert all(name in text for name in ("1e3 ", "007 ", "| a |"))


def test_before_any_section_the_report_says_so():
    text = render_periodic(Snapshot(steps=3))
    assert part(text, "Detailed Breakdown:") == ["(no section has ended yet)"]


def test_a_clock_that_stands_still_is_told():
    run = FakeRun()
    run.step(forward_pass=0)
    text = render_periodic(run.snapshot(), LINES)
    assert part(text, "Detailed Breakdown:") == [
        "forward_pass: count=1, total=0.000s, avg=0.0000s, min=0.0000s, max=0.0000s"
    ]
    assert part(text, "Time Distribution:") == ["(no time has passed on the clock)"]


@pytest.mark.parametrize("layout", ["table", "lines"])
def test_a_final_summary_of_nothing_can_be_made(layout):
    assert "=== Final Profiling Summary (0 steps) ===" in render_final(Snapshot(), [], layout)


def test_percentages_of_a_report_add_up_to_one_hundred():
    run = FakeRun()
    for i in range(1, 8):
        run.step(**{f"section_{i}": i / 7})
    shares = part(render_periodic(run.snapshot(), LINES), "Time Distribution:")
    assert sum(round(10 * float(row.split()[-1].rstrip("%"))) for row in shares) == 1000


EPOCH = EpochStats(
    number=1,
    wall_s=45.23,
    steps=32,
    batches=32,
    samples=None,
    avg_batch_s=0.1417,
    self_s={"data_loading": 24.55, "forward_pass": 20.45, "other": 0.23},
    first_fetch_s=None,
    median_fetch_s=None,
)


def test_the_epoch_summary_is_this():
    assert render_epoch(EPOCH) == (
        "\n=== Epoch 1 Profiling Summary ===\n"
        "Total time: 45.23s\n"
        "Avg batch time: 0.142s\n"
        "Throughput: 2547.0 batches/hour\n"
        "\n"
        "Time Breakdown:\n"
        "  data_loading             : 54.3% (24.55s)\n"
        "  forward_pass             : 45.2% (20.45s)\n"
        "  other/overhead           :  0.5% ( 0.23s)\n"
        "==================================================\n"
    )


def test_an_epoch_of_known_batch_sizes_has_samples_a_second():
    assert "Throughput: 2547.0 batches/hour, 22.6 samples/s\n" in render_epoch(replace(EPOCH, samples=1024))


def test_an_epoch_without_batches_has_no_throughput():
    text = render_epoch(replace(EPOCH, batches=None, avg_batch_s=None))
    assert "Throughput" not in text
    assert "Avg batch time" not in text


def test_an_epoch_without_time_has_no_breakdown():
    text = render_epoch(replace(EPOCH, wall_s=0.0, avg_batch_s=0.0))
    assert text == (
        "\n=== Epoch 1 Profiling Summary ===\nTotal time: 0.00s\nAvg batch time: 0.000s\n" + "=" * 50 + "\n"
    )


def test_warnings_follow_the_epoch_summary():
    text = render_epoch(EPOCH, ["Data generation bottleneck: 65.0% of batch time (severity 0.50)"])
    assert text.endswith("=\nWARNING: Data generation bottleneck: 65.0% of batch time (severity 0.50)\n")


def test_the_final_summary_is_this():
    snapshot = replace(
        SNAPSHOT,
        steps=1000,
        wall_s=22.977,
        step=step_stats(1000, 0.02, warmup_count=2, warmup_s=1.0, std_s=0.001, max_s=0.03, max_step=7),
        loaders=(LoaderStats("train", 1000, 32000, 1.5),),
        health=Health(dropped=3, disabled=("console (OSError: gone)",), overhead_s=0.0229, notes=("a note",)),
        run_folder="/runs/20261121-142530",
        ended_by="KeyboardInterrupt",
    )
    findings = [
        Finding("data-loading-bound", "20.0% of step time is spent waiting", {}, 4.5954, "raise num_workers"),
        Finding("slowest-component", "Slowest component: forward_pass (0.3047s avg)", {}, 0.0, ""),
    ]
    assert render_final(snapshot, findings, LINES) == (
        "\n=== Final Profiling Summary (1000 steps) ===\n"
        "\n"
        "Detailed Breakdown:\n"
        "forward_pass: count=50, total=15.234s, avg=0.3047s, min=0.2981s, max=0.3123s\n"
        "\n"
        "Time Distribution:\n"
        "forward_pass: 66.3%\n"
        "other: 33.7%\n"
        "\n"
        "Wall time: 22.98s = 20.00s in 1000 steps + 2.98s before, between and after them\n"
        "Step time: 0.0200s avg, 0.0010s std after 2 of warm-up; median 0.0200s, max 0.0300s at step 7\n"
        "Loader train: 1000 batches, 32000 samples, 1.50s of waiting\n"
        "Ended by: KeyboardInterrupt\n"
        "\n"
        "Performance Insights:\n"
        "- 20.0% of step time is spent waiting [worth 4.60s, 20.0% of the run] -> raise num_workers\n"
        "- Slowest component: forward_pass (0.3047s avg)\n"
        "\n"
        "Profiler health:\n"
        "- events dropped: 3\n"
        "- switched off: console (OSError: gone)\n"
        "- a note\n"
        "- cost of the profiler: 0.023s (0.10% of the run)\n"
        "\n"
        "Run folder: /runs/20261121-142530\n"
    )


def test_a_section_that_was_not_left_is_named():
    text = render_final(replace(SNAPSHOT, open_sections=("forward_pass", "attention")), [])
    assert "\nStill inside: forward_pass > attention\n" in text


def test_a_worth_of_minutes_is_told_in_minutes():
    finding = Finding("x", "found", {}, 150.0, "change it")
    assert "- found [worth 2.5 min, 10.0% of the run] -> change it" in render_final(
        replace(SNAPSHOT, wall_s=1500.0), [finding]
    )


@pytest.mark.parametrize(
    ("before_s", "told"),
    [
        (None, "= 20.00s in 1000 steps + 2.98s before, between and after them"),
        (2.5, "= 2.50s before the first step + 20.00s in 1000 steps + 0.48s between and after them"),
        (0.0, "= 0.00s before the first step + 20.00s in 1000 steps + 2.98s between and after them"),
        (5.0, "= 20.00s in 1000 steps + 2.98s before, between and after them"),  # a clock that stepped back
    ],
)
def test_wall_time_is_accounted_for(before_s, told):
    run = replace(SNAPSHOT, step=step_stats(1000, 0.02, before_s=before_s))
    assert f"\nWall time: 22.98s {told}\n" in render_final(run, [])


def test_a_worth_tells_what_a_step_would_take():
    finding = Finding("x", "found", {}, 4.6, "change it", step_s=0.02, step_if_gone_s=0.0154)
    expected = "- found [worth 4.60s, 20.0% of the run; a step 0.0154s instead of 0.0200s] -> change it"
    assert expected in render_final(replace(SNAPSHOT, wall_s=23.0), [finding])


def test_the_checklist_comes_on_request():
    assert "\nQuick Checklist:\n" not in render_final(SNAPSHOT, [])
    assert "\n\nQuick Checklist:\nnot measured  GPU utilization" in render_final(SNAPSHOT, [], has_checklist=True)


def test_a_run_of_few_steps_is_told_what_the_rules_need():
    snapshot = snapshot_of({"forward_pass": 0.5}, steps=4)
    assert "\n- Only 4 steps; the rules need 10\n" in render_final(snapshot, diagnose(snapshot))
