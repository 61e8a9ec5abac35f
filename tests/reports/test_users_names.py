"""Each name of the user's has a row of its own on the whole way, from the recorder to what people and programs read."""

import csv
import io
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.html_rows import rows_in
from tests.support.recording import FakeRun, implementation_of
from tests.support.users_names import KEYS, LABELS_OF_OURS, SPECIAL, WITHIN_OURS, names
from training_profiler.base.sections import key_of
from training_profiler.diagnosis import diagnose
from training_profiler.model.snapshot import Snapshot
from training_profiler.recording.event_codes import STEP_END
from training_profiler.reports.console import render_final
from training_profiler.reports.layout import Layout
from training_profiler.reports.page_render import sections_part
from training_profiler.reports.report_json import as_data
from training_profiler.reports.sections import LABELS, OF_EPOCHS, OURS, WITHOUT_START, table_label
from training_profiler.sinks.line_files import CsvFile
from training_profiler.sinks.metrics import PlainNames, interval_metrics
from training_profiler.sinks.program_runs import MlflowRun
from training_profiler.sinks.prometheus_text import prometheus_name
from training_profiler.sinks.sink import MetricRow
from training_profiler.sinks.tensorboard_events import MEAN, SectionRuns
from training_profiler.storage.run_reader import read_run

# What the profiler records itself in each step of ``record``, in ms: spans of its own, and time in no section.
OURS_MS = {"first_fetch": 3.0, "(profiler)": 5.0, "validation_epoch/forward_pass": 7.0, "other": 11.0}
SOME = st.lists(names, unique=True, min_size=1, max_size=25)


def for_names(test):
    for given_names in ([*KEYS, *WITHIN_OURS], [*LABELS_OF_OURS, *SPECIAL]):
        test = example(given_names)(test)
    return settings(deadline=None, max_examples=40)(given(SOME)(test))


def record(given_names: list[str], folder: Path, implementation: str = "Python") -> FakeRun:
    """Record a second step in which the n-th name has n spans of n ms, beside what the profiler records."""
    run = FakeRun(journal=folder / "rank0.jsonl", implementation=implementation_of(implementation))
    run.recorder.mark(STEP_END)  # the step after it begins here
    for at, name in enumerate(given_names, 1):
        for _ in range(at):
            run.spend(name, at / 1000)
    for name in ("first_fetch", "(profiler)"):
        with run.recorder.own_section(name):
            run.clock.advance(OURS_MS[name] / 1000)
    run.clock.advance(OURS_MS["other"] / 1000)
    with run.section("validation_epoch"):
        run.spend("forward_pass", OURS_MS["validation_epoch/forward_pass"] / 1000)
    run.recorder.mark(STEP_END)
    run.flush()
    return run


def expected(given_names: list[str]) -> dict[str, tuple[int, float]]:
    """Return (count, ms in total) by name."""
    return {name: (at, float(at * at)) for at, name in enumerate(given_names, 1)}


def by_key(given_names: list[str]) -> dict[str, tuple[int, float]]:
    return {key_of(name): row for name, row in expected(given_names).items()}


def rows_of(sections: dict) -> dict[str, tuple[int, float]]:
    return {key: (row["count"], round(1000 * row["total_s"], 6)) for key, row in sections.items()}


def assert_all_rows(found: dict[str, tuple[int, float]], given_names: list[str]) -> None:
    ours = {key: (key != "other", ms) for key, ms in OURS_MS.items()} | {"validation_epoch": (1, 7.0)}
    assert found == ours | by_key(given_names)


def shown(given_names: list[str]) -> Counter:
    """Return how often each (name, count) is to be on a screen; the end of a long name is not looked at."""
    return Counter((name[:100].rstrip(), count) for name, (count, _) in expected(given_names).items())


def in_table(snapshot: Snapshot) -> Counter:
    """Return each (name, count, ms in total) of the breakdown."""
    text = render_final(snapshot, diagnose(snapshot), Layout(width=400), is_full=True)
    lines = text.partition("Detailed Breakdown:\n")[2].partition("\n\n")[0].split("\n")[2:]
    pattern = re.compile(r"(.*?) +(\d*) +(\d+\.\d{3})(?: +[<\d.]+| +)*")
    cells = [pattern.fullmatch(line).groups() for line in lines]
    return Counter((name, int(count or 0), float(total)) for name, count, total in cells)


@for_names
@pytest.mark.parametrize("implementation", ["Python", "C"])
def test_the_run_its_journal_and_json_have_a_row_for_each_name(implementation, given_names):
    with tempfile.TemporaryDirectory() as folder:
        snapshot = record(given_names, Path(folder), implementation).snapshot()
        read = read_run(Path(folder))
    data = json.loads(json.dumps(as_data(read, diagnose(read))))
    assert read.sections == snapshot.sections
    assert_all_rows(rows_of(data["sections"]), given_names)


@for_names
def test_screens_show_each_name_as_the_user_wrote_it_and_no_label_twice(given_names):
    with tempfile.TemporaryDirectory() as folder:
        snapshot = record(given_names, Path(folder)).snapshot()
    in_text = Counter({(name[:100], count): rows for (name, count, _), rows in in_table(snapshot).items()})
    in_page = Counter((row[0][:100].rstrip(), int(row[3] or 0)) for row in rows_in(sections_part(snapshot))[1:])
    for found in (in_text, in_page):
        assert not shown(given_names) - found
    for table in (LABELS, OF_EPOCHS, WITHOUT_START):
        labels = [table_label(key, snapshot.sections, table) for key in snapshot.sections]
        assert len(set(labels)) == len(labels) or any(OURS in name for name in given_names)


@for_names
def test_metrics_and_all_trackers_have_a_value_for_each_name(given_names):
    with tempfile.TemporaryDirectory() as folder:
        snapshot = record(given_names, Path(folder)).snapshot()
        metrics = interval_metrics(snapshot)
        tracker = CsvFile()
        tracker.open(Path(folder))
        tracker.write([MetricRow(1, 1.0, metrics)])
        tracker.close()
        rows = list(csv.reader(io.StringIO((Path(folder) / "metrics.csv").read_text(encoding="utf-8"), newline="")))
    means = {key: total / count / 1000 for key, (count, total) in by_key(given_names).items()}
    for key, mean_s in means.items():
        assert metrics[f"profiling/timing_{key}_avg"] == pytest.approx(mean_s)
    other = 100 * OURS_MS["other"] / 1000 / snapshot.wall_s
    assert metrics["profiling/interval_other_percentage"] == pytest.approx(other)
    own = 100 * OURS_MS["(profiler)"] / 1000 / snapshot.wall_s
    assert metrics["profiling/interval_profiler_percentage"] == pytest.approx(own)
    assert {row[2]: float(row[3]) for row in rows[1:]} == metrics
    labelled = {(called, *labels.values()) for called, labels, _ in map(prometheus_name, metrics)}
    assert len(labelled) == len(metrics)
    assert {("profiling_timing_avg", key) for key in means} <= labelled


@for_names
def test_trackers_that_need_other_characters_get_as_many_names(given_names):
    metrics = [f"profiling/timing_{key_of(name)}_avg" for name in given_names]
    for plain in (MlflowRun()._keys, PlainNames()):
        assert len(set(map(plain.of, metrics))) == len(metrics)
        assert list(map(plain.of, metrics)) == list(map(plain.of, metrics))


def test_a_section_named_like_the_rest_has_a_folder_of_its_own_in_tensorboard():
    shares = {f"profiling/interval_{key}_percentage": 5.0 for key in "abcdefghijkl"}
    users = {"profiling/interval_remaining sections_percentage": 40.0, "profiling/timing_remaining sections_avg": 2.0}
    rows = SectionRuns().rows(MetricRow(1, 1.0, {**shares, **users}))
    assert {name: row.metrics.get(MEAN) for name, row in rows.items() if name.startswith("remaining")} == {
        "remaining_sections": None,
        "remaining_sections-2": 2.0,
    }
