"""The exact text of the reports."""

from dataclasses import replace

import pytest

from tests.support.recording import FakeRun, section_stats, snapshot_of, step_stats
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.reports.console import Origin, render_epoch, render_final, render_periodic
from training_profiler.reports.layout import Layout
from training_profiler.snapshot.snapshot import EpochStats, Health, LoaderStats, Snapshot

FORWARD = section_stats(
    "forward_pass", 0.663, count=50, avg_s=0.3047, total_s=15.234, self_s=15.234, min_s=0.2981, max_s=0.3123
)
OTHER = section_stats("other", 0.337, count=0, avg_s=None, total_s=7.743, self_s=7.743)
LINES = Layout(format="lines")
SNAPSHOT = Snapshot(steps=50, wall_s=22.977, sections={"forward_pass": FORWARD, "other": OTHER})


def part(text: str, title: str) -> list[str]:
    """Return the lines below ``title``, up to an empty one."""
    lines = text.split("\n")
    below = lines[lines.index(title) + 1 :]
    return below[: below.index("")]


def shares_in(text: str) -> list[str]:
    return part(text, "Time Distribution:")


def test_periodic_report_in_lines():
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


def test_periodic_report_in_a_table_of_80_columns():
    optimizer = section_stats("optimizer_step", 0.0, count=50, avg_s=0.002, min_s=0.00002, max_s=0.0031)
    text = render_periodic(replace(SNAPSHOT, sections={**SNAPSHOT.sections, "optimizer_step": optimizer}))
    assert text == (
        "\n=== Profiling Report (Step 50) ===\n"
        "\n"
        "Detailed Breakdown:\n"
        "section         count   total    avg    min    max\n"
        "                          (s)   (ms)   (ms)   (ms)\n"
        "forward_pass       50  15.234  304.7  298.1  312.3\n"
        "optimizer_step     50   0.100    2.0   <0.1    3.1\n"
        "\n"
        "Time Distribution:\n"
        "forward_pass             66.3%\n"
        "optimizer_step            0.0%\n"
        "unattributed (in step)   33.7%\n"
    )


def test_wide_terminals_get_percentiles():
    section = replace(FORWARD, p50_s=0.3, p95_s=0.31, p99_s=0.312, std_s=0.0000125)
    snapshot = replace(SNAPSHOT, sections={"forward_pass": section, "other": OTHER})
    head, units, row = part(render_periodic(snapshot, Layout(width=120)), "Detailed Breakdown:")
    assert head.split() == ["section", "count", "total", "avg", "min", "max", "p50", "p95", "p99", "std"]
    assert units.split() == ["(s)", *["(ms)"] * 7]
    times = ["304.7", "298.1", "312.3", "300.0", "310.0", "312.0", "0.013"]
    assert row.split() == ["forward_pass", "50", "15.234", *times]


def test_long_names_are_shortened_to_the_width():
    name = "an_outer_section_of_the_program/with_a_long_name/and_a_part"
    snapshot = replace(SNAPSHOT, sections={name: replace(FORWARD, name=name), "other": OTHER})
    text = render_periodic(snapshot)
    assert max(map(len, text.splitlines())) <= 80
    assert "\nan_outer_section_of_t.._long_name/and_a_part     50  15.234  304.7" in text


def test_pseudo_sections_have_readable_labels():
    names = ("(outside steps)", "(profiler)", "other")
    rows = [section_stats(name, 1 / 3, count=0, avg_s=None, self_s=1.0) for name in names]
    text = render_periodic(Snapshot(steps=1, wall_s=3.0, sections={row.name: row for row in rows}))
    labels = [row.rpartition("  ")[0].strip() for row in shares_in(text)]
    assert labels == ["profiler overhead", "unattributed (in step)", "startup & between steps"]


def test_unknown_times_are_left_out():
    started = section_stats("sampling", 0.0, count=0, avg_s=None)
    text = render_periodic(replace(SNAPSHOT, sections={"sampling": started}), LINES)
    assert part(text, "Detailed Breakdown:") == ["sampling: count=0, total=0.000s"]


def test_nested_section_is_indented_with_its_inclusive_time():
    run = FakeRun()
    with run.section("forward_pass"):
        run.clock.advance(1)
        run.spend("attention", 3)
    text = render_periodic(run.snapshot())
    rows = part(text, "Detailed Breakdown:")[2:]
    assert [row[:13] for row in rows] == ["forward_pass ", "  attention  "]
    assert [row.split()[2] for row in rows] == ["4.000", "3.000"]
    shares = shares_in(text)
    assert [(row[:13], row.split()[-1]) for row in shares] == [
        ("forward_pass ", "25.0%"),
        ("  attention  ", "75.0%"),
        ("unattributed ", "0.0%"),
    ]


def test_control_characters_in_names_are_escaped():
    run = FakeRun()
    run.spend("\x1b[2Jwiped\r\nfake: 100.0%", 1)
    text = render_periodic(run.snapshot(), LINES)
    assert "\\x1b[2Jwiped\\r\\nfake: 100.0%: count=1" in text
    assert "\x1b" not in text
    assert "\r" not in text


def test_names_like_numbers_or_markup_are_unchanged():
    run = FakeRun()
    for name in ("1e3", "007", "| a |"):
        run.spend(name, 1)
    text = render_periodic(run.snapshot())
    assert all(name in text for name in ("1e3 ", "007 ", "| a |"))


def test_report_before_any_section():
    text = render_periodic(Snapshot(steps=3))
    assert part(text, "Detailed Breakdown:") == ["(no section has ended yet)"]


def test_report_of_no_elapsed_time():
    run = FakeRun()
    run.step(forward_pass=0)
    text = render_periodic(run.snapshot(), LINES)
    assert part(text, "Detailed Breakdown:") == [
        "forward_pass: count=1, total=0.000s, avg=0.0000s, min=0.0000s, max=0.0000s"
    ]
    assert part(text, "Time Distribution:") == ["(no time has passed on the clock)"]


@pytest.mark.parametrize("layout", [Layout(), LINES])
def test_final_summary_of_an_empty_run(layout):
    assert "=== Final Profiling Summary (0 steps) ===" in render_final(Snapshot(), [], layout)


def test_percentages_add_up_to_100():
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


def test_epoch_summary():
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


def test_epoch_with_known_batch_sizes_has_samples_per_second():
    assert "Throughput: 2547.0 batches/hour, 22.6 samples/s\n" in render_epoch(replace(EPOCH, samples=1024))


def test_epoch_without_batches_has_no_throughput():
    text = render_epoch(replace(EPOCH, batches=None, avg_batch_s=None))
    assert "Throughput" not in text
    assert "Avg batch time" not in text


def test_epoch_without_time_has_no_breakdown():
    text = render_epoch(replace(EPOCH, wall_s=0.0, avg_batch_s=0.0))
    assert text == (
        "\n=== Epoch 1 Profiling Summary ===\nTotal time: 0.00s\nAvg batch time: 0.000s\n" + "=" * 50 + "\n"
    )


def test_warnings_follow_the_epoch_summary():
    text = render_epoch(EPOCH, ["Data generation bottleneck: 65.0% of batch time (severity 0.50)"])
    assert text.endswith("=\nWARNING: Data generation bottleneck: 65.0% of batch time (severity 0.50)\n")


def test_final_summary():
    forward = replace(FORWARD, step_self_s=15.0)
    snapshot = replace(
        SNAPSHOT,
        steps=1000,
        wall_s=22.977,
        sections={"forward_pass": forward, "other": OTHER},
        step=step_stats(1000, 0.02, warmup_count=2, warmup_s=1.0, std_s=0.001, max_s=0.03, max_step=7),
        loaders=(LoaderStats("train", 1000, 32000, 1.5),),
        health=Health(dropped=3, disabled=("console (OSError: gone)",), overhead_s=0.0229, notes=("a note",)),
        run_folder="/home/me/runs/20261121-142530",
        ended_by="KeyboardInterrupt",
    )
    findings = [
        Finding("data-loading-bound", "20.0% of step time is spent waiting", {}, 4.5954, "raise num_workers"),
        Finding("slowest-component", "Slowest component: forward_pass (0.3047s avg)", {}, 0.0, ""),
    ]
    assert render_final(snapshot, findings, origin=Origin("train.py", "runs/20261121-142530")) == (
        "\n=== Final Profiling Summary (1000 steps) ===\n"
        "train.py - 1000 steps in 23.0 s, ended by KeyboardInterrupt\n"
        "================================================================================\n"
        " VERDICT  INPUT-BOUND: 20.0% of step time is spent waiting\n"
        "          Fixing it could save up to 4.60 s (20% of this run)\n"
        "\n"
        " step 20.0 ms (median 20.0)\n"
        "\n"
        " where the time went                                            ms/step   of run\n"
        "   forward      #############################################      15.0    66.3%\n"
        "   unattributed #######################                             7.7    33.7%\n"
        "\n"
        " what to change                                                       could save\n"
        " 1 20.0% of step time is spent waiting                                    4.60 s\n"
        "     -> raise num_workers\n"
        "================================================================================\n"
        "\n"
        "Detailed Breakdown:\n"
        "section       count   total    avg    min    max\n"
        "                        (s)   (ms)   (ms)   (ms)\n"
        "forward_pass     50  15.234  304.7  298.1  312.3\n"
        "\n"
        "Time Distribution:\n"
        "forward_pass             66.3%\n"
        "unattributed (in step)   33.7%\n"
        "\n"
        "Wall time 23.0 s: 1000 steps 20.0 s, outside steps 2.98 s\n"
        "Step time: 20.0 ms mean +- 1.00 (first 2 warm-up steps excluded); median 20.0,\n"
        "  max 30.0 at step 7\n"
        "DataLoader train: 1000 batches, 32000 samples, 1.50 s waiting\n"
        "Ended by: KeyboardInterrupt\n"
        "\n"
        "Performance Insights:\n"
        "- 20.0% of step time is spent waiting [could save 4.60 s (20.0%)] -> raise\n"
        "  num_workers\n"
        "\n"
        "Profiler health:\n"
        "- events dropped: 3\n"
        "- switched off: console (OSError: gone)\n"
        "- a note\n"
        "- cost of the profiler: 0.023 s of the training thread (0.10% of the run)\n"
        "\n"
        "Run folder: /home/me/runs/20261121-142530\n"
        "Next:\n"
        "  training-profiler report runs/20261121-142530 --checklist\n"
        "  training-profiler report runs/20261121-142530 --json\n"
    )


def test_lines_are_never_wrapped():
    finding = Finding("x", "a message " * 12 + "end", {}, 150.0, "a fix " * 12 + "end")
    text = render_final(replace(SNAPSHOT, wall_s=1500.0), [finding], LINES)
    assert f"\n- {finding.message} [could save 2 min 30 s (10.0%)] -> {finding.fix}\n" in text
    assert "\nforward_pass: count=50, total=15.234s, avg=0.3047s, min=0.2981s, max=0.3123s\n" in text
    assert "\nother: 33.7%\n" in text


def test_remarks_true_of_every_run_yield_to_findings():
    remark = Finding("slowest-component", "Slowest component: forward_pass (0.3047s avg)", {}, 0.0, "")
    assert remark.message in render_final(SNAPSHOT, [remark])
    assert remark.message not in render_final(SNAPSHOT, [Finding("x", "message", {}, 1.0, "fix"), remark])


def test_steps_of_a_capture_window_are_excluded_or_named():
    few = render_final(replace(SNAPSHOT, step=step_stats(100, 0.02, disturbed_count=6)), [])
    assert "20.0 ms mean +- 0 (6 steps in or after a capture window excluded);" in few
    most = render_final(replace(SNAPSHOT, step=step_stats(100, 0.02, disturbed_count=60)), [])
    assert "20.0 ms mean +- 0 (60 steps in or after a capture window included);" in most


def test_open_sections_are_named():
    text = render_final(replace(SNAPSHOT, open_sections=("forward_pass", "attention", "user:other")), [])
    assert "\nStill inside: forward_pass > attention > other\n" in text


def test_a_single_step_has_no_median_and_does_not_vary():
    text = render_final(replace(SNAPSHOT, step=step_stats(1, 0.132)), [])
    assert "\n step 132 ms\n" in text
    assert "1 step 0.13 s" in text
    assert "\nStep time: 132 ms in 1 step\n" in text


def test_large_saving_is_in_minutes():
    finding = Finding("x", "message", {}, 150.0, "fix")
    text = render_final(replace(SNAPSHOT, wall_s=1500.0), [finding])
    assert "- message [could save 2 min 30 s (10.0%)] -> fix" in text


@pytest.mark.parametrize(
    ("before_s", "parts"),
    [
        (None, "1000 steps 20.0 s, outside steps 2.98 s"),
        (2.5, "startup 2.50 s, 1000 steps 20.0 s, between steps 0.48 s"),
        (0.0, "startup 0.00 s, 1000 steps 20.0 s, between steps 2.98 s"),
        (5.0, "1000 steps 20.0 s, outside steps 2.98 s"),  # a clock that stepped back
    ],
)
def test_wall_time_is_accounted_for(before_s, parts):
    run = replace(SNAPSHOT, step=step_stats(1000, 0.02, before_s=before_s))
    assert f"\nWall time 23.0 s: {parts}\n" in render_final(run, [])


def test_saving_shows_the_step_before_and_after():
    finding = Finding("x", "message", {}, 4.6, "fix", step_s=0.02, step_if_gone_s=0.0154)
    expected = "- message [could save 4.60 s (20.0%): 20.0 -> 15.4 ms/step] -> fix"
    assert expected in render_final(replace(SNAPSHOT, wall_s=23.0), [finding])


def test_checklist_is_optional():
    assert "\nQuick Checklist:\n" not in render_final(SNAPSHOT, [])
    assert "\n\nQuick Checklist:\nnot measured  GPU utilization" in render_final(SNAPSHOT, [], has_checklist=True)


def test_insights_name_the_steps_that_rules_need():
    snapshot = snapshot_of({"forward_pass": 0.5}, steps=4)
    assert "\n- Only 4 steps; the rules need 10\n" in render_final(snapshot, diagnose(snapshot))
