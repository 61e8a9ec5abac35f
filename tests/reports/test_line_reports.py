"""Source lines of the user's code below the sections, in text and in data."""

import json

from tests.support.recording import section_stats
from training_profiler.reports.console import render_final, render_periodic
from training_profiler.reports.layout import Layout
from training_profiler.reports.report_json import as_data
from training_profiler.snapshot.snapshot import LineStats, Snapshot

LINES = Layout(format="lines")
LINES_OF_OTHER = (
    LineStats("train.py", 212, "estimate_loss", share=0.31, samples=310),
    LineStats("train.py", 88, "get_batch", share=0.092, samples=92),
    LineStats("train.py", 90, "get_batch", share=0.009, samples=9),
)


def snapshot_with(*sections: tuple[str, float], parent: str | None = None, **lines: tuple[LineStats, ...]) -> Snapshot:
    stats = {
        name: section_stats(
            name, share, count=0 if name.startswith(("other", "(")) else 10, self_s=share, total_s=share
        )
        for name, share in sections
    }
    return Snapshot(steps=10, wall_s=1.0, sections=stats, lines=lines)


def distribution_in(text: str) -> list[str]:
    below = text.split("Time Distribution:\n")[1].split("\n")
    return below[: below.index("")]


def test_source_lines_have_columns_of_their_own():
    text = render_periodic(snapshot_with(("backward_pass", 0.539), ("other", 0.461), other=LINES_OF_OTHER))
    assert distribution_in(text) == [
        "backward_pass            53.9%",
        "unattributed (in step)   46.1%",
        "    train.py:212  estimate_loss   31.0%",
        "    train.py:88   get_batch        9.2%",
    ]


def test_final_summary_has_source_lines():
    snapshot = snapshot_with(("backward_pass", 0.539), ("other", 0.461), other=LINES_OF_OTHER)
    assert "    train.py:212  estimate_loss   31.0%" in distribution_in(render_final(snapshot, []))


def test_shares_of_source_lines_stay_out_of_the_column_of_sections():
    snapshot = snapshot_with(("a_section_with_a_long_name", 0.539), ("other", 0.461), other=LINES_OF_OTHER[:1])
    rows = distribution_in(render_periodic(snapshot))
    assert rows[2].index("31.0%") >= len(rows[1]) + 2


def test_a_library_with_a_long_path_is_shown_by_its_innermost_frame():
    inside = "keras/src/backend/torch/trainer.py:267 TorchTrainer.fit > keras/src/backend/torch/numpy.py:156 matmul"
    lines = (
        LineStats("train.py", 8, "<module>", share=0.2, samples=200, inside=inside),
        LineStats("train.py", 8, "<module>", share=0.1, samples=100, inside="lib/loop.py:9 fit > callback on_step_end"),
    )
    run = snapshot_with(("forward_pass", 0.6), ("other", 0.4), other=lines)
    rows = distribution_in(render_periodic(run))
    assert "    keras/src/backend/torch/numpy.py:156  matmul                       20.0%" in rows
    assert "    lib/loop.py:9                         fit > callback on_step_end   10.0%" in rows
    assert f"other: {inside}: 20.0%" in distribution_in(render_periodic(run, LINES))


def test_only_sections_above_a_tenth_show_source_lines():
    line = LineStats("model.py", 5, "forward", share=0.1, samples=100)
    snapshot = snapshot_with(
        ("forward_pass", 0.11), ("backward_pass", 0.10), forward_pass=(line,), backward_pass=(line,)
    )
    assert distribution_in(render_periodic(snapshot, LINES)) == [
        "forward_pass: 11.0%",
        "forward_pass: model.py:5 forward: 10.0%",
        "backward_pass: 10.0%",
    ]


def test_unattributed_time_always_shows_source_lines():
    line = LineStats("train.py", 5, "main", share=0.02, samples=30)
    sections = ("forward_pass", 0.93), ("other", 0.03), ("(outside steps)", 0.04)
    text = render_periodic(snapshot_with(*sections, **{"other": (line,), "(outside steps)": (line,)}), LINES)
    assert distribution_in(text)[1:] == ["other: 3.0%", "other: train.py:5 main: 2.0%", "(outside steps): 4.0%"]
    sections = ("forward_pass", 0.5), ("other", 0.03), ("(outside steps)", 0.47)
    text = render_periodic(snapshot_with(*sections, **{"(outside steps)": (line,)}), LINES)
    assert distribution_in(text)[-1] == "(outside steps): train.py:5 main: 2.0%"


def test_source_lines_of_nested_sections_are_indented():
    line = LineStats("model.py", 5, "forward", share=0.5, samples=100)
    outer = section_stats("forward_pass", 0.5, count=10, self_s=0.5)
    inner = section_stats("attention", 0.5, count=10, self_s=0.5, total_s=0.25, parent="forward_pass")
    snapshot = Snapshot(
        steps=10, wall_s=1.0, sections={"forward_pass": outer, "attention": inner}, lines={"attention": (line,)}
    )
    assert distribution_in(render_periodic(snapshot)) == [
        "forward_pass   50.0%",
        "  attention    50.0%",
        "      model.py:5  forward      50.0%",
    ]


def test_merged_lines_of_a_function_are_counted():
    lines = tuple(LineStats("train.py", i, "get_batch", share=0.0625, samples=60) for i in range(1, 9))
    rows = distribution_in(render_periodic(snapshot_with(("forward_pass", 0.5), ("other", 0.5), other=lines), LINES))
    assert rows == ["forward_pass: 50.0%", "other: 50.0%", "other: train.py:1 get_batch (8 lines): 50.0%"]


def test_source_line_has_at_most_its_sections_share():
    """Rounding to a sum of 100.0 can make a section a tenth smaller."""
    shares = 1 / 3, 1 / 3, 1 / 3
    line = LineStats("train.py", 1, "main", share=0.46149, samples=60)
    snapshot = snapshot_with(("a", 0.46149), ("b", 0.26999), ("other", 0.26852), a=(line,))
    assert sum(shares) == 1
    rows = distribution_in(render_periodic(snapshot, LINES))
    assert rows[1].removeprefix("a: train.py:1 main: ") <= rows[0].removeprefix("a: ")


NO_WAIT = {"waiting_share": 0.0, "waits_in": "", "inside": "", "phase": "", "held_by": {}, "called": {}}


def test_json_has_source_lines_hottest_first():
    data = as_data(snapshot_with(("other", 1.0), other=LINES_OF_OTHER), [])
    assert data["lines"] == {
        "other": [
            {"file": "train.py", "line": 212, "function": "estimate_loss", "share": 0.31, "samples": 310, **NO_WAIT},
            {"file": "train.py", "line": 88, "function": "get_batch", "share": 0.092, "samples": 92, **NO_WAIT},
            {"file": "train.py", "line": 90, "function": "get_batch", "share": 0.009, "samples": 9, **NO_WAIT},
        ]
    }
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_json_has_at_most_ten_lines_per_section():
    lines = tuple(LineStats("train.py", i, "main", share=0.01, samples=100) for i in range(1, 30))
    data = as_data(snapshot_with(("other", 1.0), other=lines), [])
    assert [line["line"] for line in data["lines"]["other"]] == list(range(1, 11))


def test_run_without_samples_has_no_source_lines():
    assert as_data(Snapshot(), [])["lines"] == {}
