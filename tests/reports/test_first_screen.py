"""The top of the final summary: verdict, where the time went, what to change."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of, step_stats
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.findings.finding import brief
from training_profiler.reports.console import Origin, render_final
from training_profiler.reports.findings import important, insight_lines
from training_profiler.reports.layout import Layout
from training_profiler.reports.verdict import verdict
from training_profiler.snapshot.snapshot import (
    DeviceTimingStats,
    EpochStats,
    GpuStats,
    Level,
    LineStats,
    MachineStats,
    Snapshot,
    StartupPart,
    StartupStats,
    Throughput,
)
from training_profiler.tables.sections import FORWARD_WITHOUT_GRAD

EPOCH = EpochStats(1, 5.0, 50, 50, None, None, {}, None, None)


def screen(snapshot, findings=(), **layout):
    """Return the lines between the title and the detailed breakdown."""
    text = render_final(snapshot, findings, Layout(**layout), origin=Origin("train.py"))
    lines = text.split("\n")[2:]
    return lines[: lines.index("Detailed Breakdown:") - 1]


def finding(code="data-loading-bound", message="a message", saving_s=1.0, fix="a fix"):
    return Finding(code, message, {}, saving_s, fix)


def gpu_run():
    """Return a run on a GPU that waits for data."""
    snapshot = snapshot_of({"data_loading": 0.41, "backward_pass": 0.29, "forward_pass": 0.16, "optimizer_step": 0.1})
    outside = section_stats("(outside steps)", 0.06, count=0, avg_s=None, self_s=0.6)
    validation = section_stats("validation_epoch", 0.07, count=2, avg_s=0.35, self_s=0.7)
    profiler = section_stats("(profiler)", 0.002, count=3, avg_s=0.0066, self_s=0.02)
    more = {row.name: row for row in (outside, validation, profiler)}
    busy = GpuStats(0, "NVIDIA A100", loop_utilization=Level(0.57, 0.9, 0.5))
    return replace(
        snapshot,
        wall_s=11.32,
        sections={**snapshot.sections, **more},
        lines={"data_loading": (LineStats("data.py", 14, "augment", share=0.25, samples=250),)},
        epochs=(EPOCH, EPOCH),
        throughput=Throughput(10.0, samples_per_s=352.0, mfu=0.112, peak_tflops=312.0),
        machine=MachineStats(samples=9, gpus=(busy,)),
    )


CHANGES = [
    finding(message="41.0% of step time is spent waiting for the next batch (data_loading: 41 ms)", saving_s=4.1),
    finding("optimizer-heavy", "10.0% of step time is spent in the optimizer", 1.0, "fused=True in the optimizer"),
]


def waiting_run(waiting_share):
    """Return a run on a GPU with 4 of 10 s in no section, some of them in ``loss.item()``."""
    device = DeviceTimingStats("cuda", "NVIDIA H200", "events", 300, {})
    line = LineStats("train.py", 9, "main", 0.4, 200, waiting_share=waiting_share, waits_in="item")
    run = snapshot_of({"backward_pass": 0.4, "forward_pass": 0.2})
    return replace(run, lines={"other": (line,)}, device=device)


def bars_of(run, *changes):
    shown = screen(run, changes)
    at = next(number for number, line in enumerate(shown) if "where the time went" in line)
    return [" ".join(line.replace("#", "").split()) for line in shown[at + 1 : at + 5] if "%" in line]


def test_waiting_for_the_device_is_not_unattributed():
    assert bars_of(waiting_run(0.3)) == [
        "backward 40.0 40.0%",
        "waiting for the device 30.0 30.0%",
        "forward 20.0 20.0%",
        "unattributed 10.0 10.0%",
    ]
    assert bars_of(waiting_run(0.4))[1] == "waiting for the device 40.0 40.0%"
    assert bars_of(waiting_run(0.02))[1:] == ["forward 20.0 20.0%", "unattributed 40.0 40.0%"]
    assert bars_of(replace(waiting_run(0.3), device=None))[2] == "unattributed 40.0 40.0%"


def test_a_change_about_waiting_points_at_its_bar():
    change = finding("waits-for-device", "Python waits for the device", 1.0, "Keep the tensor")
    assert bars_of(waiting_run(0.3), change)[1] == "waiting for the device 30.0 30.0% <- 1"


def test_the_95th_percentile_stands_where_it_is_known():
    run = gpu_run()
    run = replace(run, step=replace(run.step, p95_s=0.26))
    assert " step 100 ms (p95 260)   10.0 steps/s   352 samples/s   MFU 11%   GPU busy 57%" in screen(run, CHANGES)


def test_a_change_that_two_findings_ask_for_is_written_once():
    fix = "Make the DataLoader once, before the loop"
    changes = [finding("first-batch-slow", "The first batch of each epoch takes long (3 ms)", 3.0, fix)]
    changes.append(finding("step-time-varies", "Step time varies by 99%", 2.0, fix))
    shown = screen(gpu_run(), [*changes, CHANGES[1]])
    assert [line.strip() for line in shown if line.startswith("     -> ")] == [
        f"-> {fix}",
        "-> The same change as 1",
        f"-> {CHANGES[1].fix}",
    ]
    bullets = insight_lines(gpu_run(), changes, Layout(200))
    assert bullets[1].endswith("-> The same change as for: The first batch of each epoch takes long")
    assert sum(fix in line for line in bullets) == 1


def test_steps_that_mostly_queue_work_have_no_percentile():
    run = waiting_run(0.3)
    run = replace(run, step=replace(run.step, median_s=0.065, p95_s=0.4, explained={"other": 0.9}))
    shown = screen(run, CHANGES)
    assert any(line.startswith(" step 100 ms (mean; the host runs ahead)") for line in shown)
    assert any(line.startswith(" step 100 ms (p95 400)") for line in screen(replace(run, lines={}), CHANGES))


def test_a_line_of_figures_ends_between_two_of_them():
    run = gpu_run()
    run = replace(run, throughput=replace(run.throughput, samples_per_s=1.95, tokens_per_s=31.2, mfu=None))
    assert screen(run, CHANGES)[5:7] == [
        " step 100 ms (median 100)  10.0 steps/s  1.95 samples/s  31.2 tokens/s",
        " GPU busy 57%",
    ]
    assert "1.95 samples/s" in "".join(screen(run, CHANGES, format="lines"))


def test_screen_of_a_gpu_run_that_waits_for_data():
    assert screen(gpu_run(), CHANGES) == [
        "train.py - 2 epochs, 100 steps in 11.3 s",
        "================================================================================",
        " VERDICT  INPUT-BOUND: 41.0% of step time is spent waiting for the next batch",
        "          Fixing it could save up to 4.10 s (36% of this run)",
        "",
        " step 100 ms (median 100)  10.0 steps/s  352 samples/s  MFU 11%  GPU busy 57%",
        "",
        " where the time went                                       ms/step   of run",
        "   data loading            #############################      41.0    36.2% <- 1",
        "   backward                #####################              29.0    25.6%",
        "   forward                 ###########                        16.0    14.2%",
        "   optimizer               #######                            10.0     8.8% <- 2",
        "   unattributed            ###                                 4.0     3.5%",
        "   validation              #####                                 -     6.2%",
        "   startup & between steps ####                                  -     5.3%",
        "   profiler overhead       .                                     -     0.2%",
        "",
        " what to change                                                       could save",
        " 1 41.0% of step time is spent waiting for the next batch                 4.10 s",
        "   (data_loading: 41 ms)",
        "     data.py:14  augment                                61% of data loading time",
        "     -> a fix",
        " 2 10.0% of step time is spent in the optimizer                           1.00 s",
        "     -> fused=True in the optimizer",
        "================================================================================",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_screen_fits_its_width(width):
    lines = screen(gpu_run(), CHANGES, width=width)
    assert max(map(len, lines)) <= width


def test_bars_are_blocks_in_unicode():
    bars = [line for line in screen(gpu_run(), CHANGES, is_unicode=True) if "  optimizer " in line]
    assert bars == ["   optimizer               ███████                            10.0     8.8% <- 2"]


def test_shares_of_bars_add_up_to_100():
    lines = screen(gpu_run(), CHANGES)
    shares = [line.split(" <-")[0].split()[-1] for line in lines if line.startswith("   ") and "%" in line[70:80]]
    assert sum(round(10 * float(share.rstrip("%"))) for share in shares) == 1000


def test_many_sections_share_one_bar():
    snapshot = snapshot_of({f"section_{i:02d}": 0.05 + i / 1000 for i in range(14)})
    rows = [line for line in screen(snapshot) if "%" in line and line.startswith("   ")]
    assert len(rows) == 9
    assert "7 smaller sections" in rows[-2]
    assert "unattributed" in rows[-1]


def test_nested_sections_belong_to_the_bar_of_their_parent():
    outer = section_stats("forward_pass", 0.25, count=10, self_s=0.25, step_self_s=0.25)
    inner = section_stats("attention", 0.75, count=10, self_s=0.75, step_self_s=0.75, parent="forward_pass")
    snapshot = Snapshot(
        steps=10, wall_s=1.0, step=step_stats(10, 0.1), sections={"forward_pass": outer, "attention": inner}
    )
    rows = [line.split() for line in screen(snapshot) if line.startswith("   ") and line.endswith("%")]
    assert [(row[0], *row[-2:]) for row in rows] == [("forward", "100.0", "100.0%")]


def test_only_verdict_bars_and_savings_are_colored():
    colored = [line for line in screen(gpu_run(), CHANGES, has_color=True) if "\x1b" in line]
    plain = screen(gpu_run(), CHANGES)
    assert len(colored) == 2 + 8 + 2
    assert "\x1b" not in "".join(plain)
    assert colored[0] == (
        " VERDICT  \x1b[1m\x1b[31mINPUT-BOUND: 41.0% of step time is spent waiting for the next batch\x1b[0m"
    )


def test_at_most_three_changes():
    many = [finding(f"rule-{i}", f"message {i}") for i in range(5)]
    assert [change.message for change in important(gpu_run(), many)] == ["message 0", "message 1", "message 2"]


def test_small_savings_and_remarks_are_not_changes():
    small = finding("x", saving_s=0.01)
    warm_up = finding("warm-up", saving_s=5.0)
    slowest = finding("slowest-component", saving_s=0.0, fix="")
    assert important(gpu_run(), [small, warm_up, slowest]) == []


def test_uneven_steps_matter_from_a_tenth_on_unless_their_cause_is_known():
    run = gpu_run()
    assert run.step is not None
    saving_s = 0.08 * max(run.wall_s, run.step.total_s)
    uneven = finding("step-time-varies", saving_s=saving_s)
    of_garbage = replace(uneven, evidence={"moves_with": "garbage collection"})
    assert important(run, [uneven]) == []
    assert important(run, [of_garbage]) == [of_garbage]
    assert important(run, [finding("step-time-varies", saving_s=2 * saving_s)])


def test_memory_risks_are_changes_without_a_known_saving():
    risk = finding("gpu-memory-high", "GPU 0 is filled to 97.0% of 80.0 GiB at its peak", 0.0)
    assert important(gpu_run(), [risk]) == [risk]
    assert screen(gpu_run(), [risk])[2:4] == [
        " VERDICT  MEMORY: GPU 0 is filled to 97.0% of 80.0 GiB at its peak",
        "",
    ]


def test_unknown_rules_go_by_their_own_code():
    assert verdict(gpu_run(), [finding("new-rule", "others used 90%")]).headline == "NEW RULE: others used 90%"


def test_compute_bound_run_without_findings():
    snapshot = snapshot_of({"forward_pass": 0.3, "backward_pass": 0.56, "optimizer_step": 0.1})
    lines = screen(snapshot, diagnose(snapshot))
    assert lines[2:4] == [
        " VERDICT  COMPUTE-BOUND, no bottleneck found",
        "          96% of step time is forward, backward and optimizer",
    ]


@pytest.mark.parametrize(
    ("busy", "mfu", "headline", "unknown"),
    [
        (None, None, "no bottleneck found", True),
        (None, 0.04, "no bottleneck found", True),
        (None, 0.35, "COMPUTE-BOUND, no bottleneck found", False),
        (0.97, 0.04, "COMPUTE-BOUND, no bottleneck found", False),
        (0.60, 0.04, "no bottleneck found", False),
    ],
)
def test_a_host_that_queues_work_all_the_time_does_not_show_that_its_device_computes(busy, mfu, headline, unknown):
    device = DeviceTimingStats("cuda", "NVIDIA H200", "events", 300, {})
    level = None if busy is None else Level(busy, busy, busy)
    run = replace(
        snapshot_of({"forward_pass": 0.4, "backward_pass": 0.5}),
        device=device,
        throughput=Throughput(10.0, mfu=mfu),
        machine=MachineStats(samples=9, gpus=(GpuStats(0, "NVIDIA H200", loop_utilization=level),)),
    )
    shown = verdict(run, [])
    assert (shown.headline, "how busy the device was is not known" in shown.detail) == (headline, unknown)


def test_a_teacher_that_computes_counts():
    shown = verdict(snapshot_of({FORWARD_WITHOUT_GRAD: 0.9, "forward_pass": 0.02, "backward_pass": 0.03}), [])
    assert shown.headline == "COMPUTE-BOUND, no bottleneck found"
    assert shown.detail == "95% of step time is no-grad forward, forward, backward and optimizer"


def test_steps_that_are_replayed_compute():
    shown = verdict(snapshot_of({"graph_replay": 0.9, "forward_pass": 0.01, "backward_pass": 0.01}), [])
    assert shown.headline == "COMPUTE-BOUND, no bottleneck found"
    assert shown.detail == "92% of step time is graph replays, forward, backward and optimizer"
    alone = verdict(snapshot_of({"graph_replay": 0.9}), [])
    assert alone.detail == "90% of step time is graph replays"


def test_no_bottleneck_without_a_claim_about_computing():
    snapshot = snapshot_of({"forward_pass": 0.3, "backward_pass": 0.3})
    assert verdict(snapshot, []).headline == "no bottleneck found"
    assert verdict(snapshot, [finding("x", saving_s=0.01)]).headline == "no large bottleneck found"


def test_no_bottleneck_names_a_run_outside_steps():
    snapshot = replace(snapshot_of({"forward_pass": 0.9}), wall_s=100.0)
    assert verdict(snapshot, []).detail == (
        "90% of step time is forward, backward and optimizer; 90% of this run is outside training steps"
    )


def test_no_verdict_on_too_few_steps():
    snapshot = snapshot_of({"forward_pass": 0.5}, steps=4)
    assert screen(snapshot, diagnose(snapshot))[2:4] == [
        " VERDICT  too few steps to judge",
        "          Only 4 steps; the rules need 10",
    ]


def test_no_verdict_without_steps():
    assert screen(Snapshot())[:4] == [
        "train.py - 0 steps",
        "=" * 80,
        " VERDICT  no training step was recorded",
        "=" * 80,
    ]


def test_a_run_without_steps_shows_what_it_prepared():
    parts = (StartupPart("imports", 6.0), StartupPart("validation_epoch", 2.0), StartupPart("model", 2.0))
    validation = section_stats("validation_epoch", 0.2, count=1, avg_s=2.0, self_s=2.0)
    other = section_stats("other", 0.8, count=0, avg_s=None, self_s=8.0)
    snapshot = Snapshot(
        wall_s=10.0,
        sections={row.name: row for row in (validation, other)},
        startup=StartupStats(10.0, False, parts),
    )
    rows = [line.split() for line in screen(snapshot) if line.endswith("%")]
    assert [(name, share) for name, _, share in rows] == [
        ("imports", "60.0%"),
        ("model", "20.0%"),
        ("validation", "20.0%"),
    ]
    begun = replace(snapshot, startup=StartupStats(5.0, True, (StartupPart("imports", 5.0),)))
    rows = [line.split() for line in screen(begun) if line.endswith("%")]
    assert [(name, share) for name, _, share in rows] == [
        ("unattributed", "30.0%"),
        ("imports", "50.0%"),
        ("validation", "20.0%"),
    ]


def test_the_bars_of_a_mean_step_leave_out_warm_up():
    snapshot = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5})
    forward = replace(snapshot.sections["forward_pass"], step_self_s=45.0)  # 40 s of it in warm-up
    rows = screen(replace(snapshot, sections={**snapshot.sections, "forward_pass": forward}))
    assert [line.split()[2] for line in rows if line.startswith("   forward ")] == ["50.0"]


@pytest.mark.parametrize(
    ("message", "claim"),
    [
        ("step time varies by 13% (std over mean; longest 9 ms); 73% comes from x", "step time varies by 13%"),
        ("83.4% of step time is spent waiting (data_loading: 6.8 ms)", "83.4% of step time is spent waiting"),
        ("20.0% of step time is unattributed: train.py:3 main (50%)", "20.0% of step time is unattributed"),
        ("rank 3 (node1) is 40% slower", "rank 3 (node1) is 40% slower"),
        ("GPU 0: full", "GPU 0: full"),
    ],
)
def test_verdict_has_the_claim_of_a_message(message, claim):
    assert brief(message) == claim
