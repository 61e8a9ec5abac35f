"""Journals that no training wrote: each value is checked before it counts, and the report stays a report."""

import itertools
import json

import pytest

from tests.storage.test_journal_round_trip import JOURNAL, journal_in, train
from tests.support.every_field import full_interval
from tests.support.mutations import leaves
from training_profiler.base.errors import RunFolderError
from training_profiler.diagnosis import diagnose
from training_profiler.model.bounds import MOST_EPOCHS, MOST_LINE_BYTES, MOST_NAMES
from training_profiler.reports.console import render_final
from training_profiler.reports.report_json import as_data
from training_profiler.storage.run_reader import read_run

HOSTILE = "a\x1b[2J\nb\u202e\x85"
BEGIN = '{"kind":"begin","schema":1,"rank":0,"begin_ns":0,"warmup":null}'
INTERVAL = {
    "kind": "interval", "begin_ns": 0, "end_ns": 10**9, "first_step": 0, "step_ns": [], "sections": {}, "parents": [],
    "coupling": [0, 0.0, 0.0], "first_fetch_ns": None, "dropped": 0, "unended": 0, "loaders": [], "open_sections": [],
}  # fmt: skip
SECTION = {"count": 1, "total_ns": 10**6, "self_ns": 10**6}
BINS = {**SECTION, "measured": 1, "mean_ns": 1e6, "m2": 0.0, "min_ns": 10**6, "max_ns": 10**6}


def write(folder, *lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / JOURNAL).write_text("\n".join([BEGIN, *texts]) + "\n", encoding="utf-8", errors="surrogatepass")


def rendered(folder):
    snapshot = read_run(folder)
    findings = diagnose(snapshot)
    text = render_final(snapshot, findings, has_checklist=True)
    assert text.replace("\n", "").isprintable()
    json.dumps(as_data(snapshot, findings), allow_nan=False)
    return snapshot


@pytest.mark.parametrize(
    "damage",
    [
        {"step_ns": [-1]},
        {"step_ns": [True]},
        {"step_ns": [2**54]},
        {"end_ns": -1},
        {"begin_ns": 3 * 10**9},
        {"first_step": 2**64},
        {"sections": {"x": {"count": -1}}},
        {"sections": {"x": {"total_ns": 1e300}}},
        {"sections": {"x": {**BINS, "bins": [[10**6], [1]]}}},
        {"sections": {"x": {**BINS, "bins": [[1, 2], [1]]}}},
        {"sections": {"x": {**BINS, "m2": -1.0}}},
        {"sections": {"x": {**SECTION, "early": [[1], []]}}},
        {"sections": {"x": {**SECTION, "coupling": [1.0]}}},
        {"parents": [["x", "y", -1]]},
        {"coupling": [1, 1e300, 0.0]},
        {"by_loader": [[1, 2, 3]]},
        {"disturbed": [0]},
        {"machine": {"looks": 1, "levels": {}, "series": {"ram_own_bytes": [[0, 1.0, 1.0]]}, "facts": {}}},
        {"loaders": [["a", 1, 1, -1]]},
        {"overhead_s": 1e200},
        {"lines": {"x": [["many"]]}},
    ],
)
def test_a_line_out_of_range_is_left_out_and_counted(tmp_path, damage):
    write(tmp_path, INTERVAL, {**INTERVAL, "begin_ns": 10**9, "end_ns": 2 * 10**9, **damage})
    snapshot = rendered(tmp_path)
    assert snapshot.wall_s == 1.0
    assert snapshot.health.notes[0].startswith("1 line of the journal left out, so what they measured is missing (")


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "[" * 5000])
def test_numbers_that_json_does_not_have_are_no_numbers(tmp_path, token):
    write(tmp_path, INTERVAL, json.dumps({**INTERVAL, "overhead_s": 7}).replace("7", token), {**INTERVAL})
    snapshot = rendered(tmp_path)
    assert snapshot.health.overhead_s == 0
    assert snapshot.health.notes[0].startswith("1 line of the journal left out")


def test_without_one_usable_interval_a_journal_is_refused(tmp_path):
    write(tmp_path, {**INTERVAL, "step_ns": [-1]}, {**INTERVAL, "step_ns": ["\x1b[2J"]})
    with pytest.raises(RunFolderError, match="holds a line that is not a journal's: Expected `int` >= 0"):
        read_run(tmp_path)


def test_a_line_that_is_too_long_and_sums_beyond_146_years_are_left_out(tmp_path):
    long = {**INTERVAL, "step_ns": [2**53] * 300}
    write(tmp_path, long, long, "[" * (MOST_LINE_BYTES + 1), {**INTERVAL, "step_ns": [5]})
    snapshot = rendered(tmp_path)
    assert snapshot.steps == 301
    assert snapshot.health.notes[0].startswith("2 lines of the journal left out")
    assert "its numbers are too large" in snapshot.health.notes[0]


def test_names_beyond_the_limit_share_a_row(tmp_path):
    write(tmp_path, {**INTERVAL, "sections": {f"s{i}": SECTION for i in range(20_000)}})
    snapshot = rendered(tmp_path)
    assert len(snapshot.sections) <= MOST_NAMES + 2
    assert snapshot.sections["(other names)"].count == 20_000 - MOST_NAMES
    assert f"over {MOST_NAMES} section names" in snapshot.health.notes[0]


@pytest.mark.parametrize("last", [498, 499])
def test_long_chains_and_circles_of_parents_are_listed(tmp_path, last):
    sections = {f"s{i}": SECTION for i in range(500)}
    parents = [[f"s{i}", f"s{(i + 1) % 500}", 1] for i in range(last + 1)]
    write(tmp_path, {**INTERVAL, "sections": sections, "parents": [*parents, ["s7", "s7", 9]]})
    assert render_final(rendered(tmp_path), [], is_full=True).count("\n") > 500


def test_epochs_beyond_the_limit_are_counted(tmp_path):
    epoch = [
        {"kind": "epoch_begin", "number": 1},
        {"kind": "epoch_end", "batches": 1, "samples": 1, "is_complete": True},
    ]
    write(tmp_path, INTERVAL, *epoch * (MOST_EPOCHS + 3))
    snapshot = read_run(tmp_path)
    assert len(snapshot.epochs) == MOST_EPOCHS
    assert snapshot.health.notes[0] == f"only the first {MOST_EPOCHS} epochs are listed, 3 more are left out"


def test_text_of_a_journal_is_escaped(tmp_path):
    flops = [1, HOSTILE, HOSTILE, HOSTILE]
    machine = {"looks": 1, "levels": {}, "series": {}, "facts": {"gpu0.name": HOSTILE, "gpu-5.name": "x", "cores": "x"}}
    device = {"kind": HOSTILE, "name": HOSTILE, "timing": HOSTILE, "spans": 1, "unmeasured": {HOSTILE: 1}}
    write(
        tmp_path,
        {
            **INTERVAL, "sections": {HOSTILE: SECTION, "other": SECTION}, "parents": [[HOSTILE, "other", 1]],
            "step_ns": [1] * 40, "flops": flops, "machine": machine, "device": device,
            "step_lines": [[40, HOSTILE, 1, HOSTILE, HOSTILE]], "loaders": [[HOSTILE, 1, 1, 1]],
            "open_sections": [HOSTILE], "notes": [HOSTILE], "disabled": [HOSTILE],
        },
        {"kind": "end", "ended_by": HOSTILE, "notes": [HOSTILE, "\ud800"], "disabled": [HOSTILE], "overhead_s": 0.1},
    )  # fmt: skip
    snapshot = rendered(tmp_path)
    assert snapshot.ended_by == "a\\x1b[2J\\nb\\u202e\\x85"
    assert repr(snapshot).isprintable()
    assert "\\x1b" in repr(snapshot.machine)


def test_duplicate_keys_and_columns_of_later_versions_do_no_harm(tmp_path):
    write(tmp_path, json.dumps({**INTERVAL, "later": [[]]}).replace('"dropped": 0', '"dropped": 1, "dropped": 2'))
    assert rendered(tmp_path).health.dropped == 2


def test_a_pending_interval_counts_only_if_it_is_the_last(tmp_path):
    pending = {**INTERVAL, "kind": "pending", "end_ns": 2 * 10**9, "begin_ns": 10**9, "step_ns": [1]}
    later = {**INTERVAL, "begin_ns": 10**9, "end_ns": 3 * 10**9, "step_ns": [1, 2]}
    write(tmp_path, INTERVAL, pending, later, *[{"kind": "lost", "intervals": 1}] * 2)
    snapshot = rendered(tmp_path)
    assert (snapshot.steps, snapshot.wall_s) == (2, 3.0)
    assert "2 intervals not written: the disk did not respond for too long" in snapshot.health.notes
    write(tmp_path, INTERVAL, pending, pending)
    assert (rendered(tmp_path).steps, rendered(tmp_path).wall_s) == (1, 2.0)


def test_hostile_settings_in_meta_are_ignored(tmp_path):
    train(journal_in(tmp_path))
    for thresholds in (
        '{"warm-up": 1e999}',
        '{"warm-up": NaN}',
        f'{{"warm-up": {10**400}}}',
        "[" * 10_000,
        '{"x": []}',
    ):
        (tmp_path / "meta.json").write_text(f'{{"settings": {{"thresholds": {thresholds}}}}}')
        assert rendered(tmp_path).thresholds == {}
    (tmp_path / "meta.json").write_text('{"command": "' + "'a' " * 2_000_000 + '"}')
    rendered(tmp_path)


LARGE_NUMBERS = (2**53, 1e60, 2**1024, -1e60)  # the largest that most fields take, and larger ones


@pytest.mark.parametrize("numbers", [LARGE_NUMBERS[:1], LARGE_NUMBERS[1:]])
def test_any_number_of_an_interval_may_be_large(tmp_path, numbers):
    interval, next_number = full_interval(0), itertools.cycle(numbers)
    for inside, key in [(inside, key) for _, inside, key in leaves(interval)]:
        before, inside[key] = inside[key], next(next_number)
        write(tmp_path, {**INTERVAL, "end_ns": 10**6}, interval)
        rendered(tmp_path)
        inside[key] = before
