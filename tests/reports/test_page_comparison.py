"""The page of a comparison without a browser: its parts, its numbers, and what names cannot do to it."""

from pathlib import Path

import numpy as np
import pytest

from tests.reports.page_runs import HOSTILE
from tests.reports.test_page import Parsed, body_of, data_in
from tests.statistics.test_compare import noise, run_of
from tests.support.golden import assert_golden
from tests.support.html_rows import rows_in
from training_profiler.reports.comparison import ComparedRuns
from training_profiler.reports.page_comparison import render_comparisons
from training_profiler.statistics.compare import compare
from training_profiler.statistics.differences import Differing

GOLDEN = Path(__file__).parents[1] / "golden" / "reports" / "page_comparison.txt"


def pair(factor=1.2, name="candidate", steps=300, steps_before=300, stretch=50):
    """Return the comparison of a run with one whose forward pass takes longer."""
    random = np.random.default_rng(0)
    before = run_of(0.1 * noise(steps_before, random), stretch=stretch)
    after = run_of(0.1 * factor * noise(steps, random), loading=0.3 / factor, stretch=stretch)
    facts = [Differing(f"settings.{name}", None, name)]
    return ComparedRuns("runs/a (baseline)", f"runs/b ({name})", compare(before, after), {}, facts, [f"before: {name}"])


def test_pages_have_verdict_steps_sections_differences_and_notes_to_the_letter():
    page = render_comparisons([pair(factor) for factor in (1.0, 1.2, 0.8)])
    parsed = Parsed(page)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert_golden(GOLDEN, "\n".join(body_of(page)) + "\n")


def test_with_other_numbers_of_samples_changes_are_those_for_the_same_number():
    steps = 0.1 * noise(300, np.random.default_rng(0))
    comparison = compare(run_of(steps, samples=50 * 32), run_of(1.5 * steps, samples=50 * 64))
    page = render_comparisons([ComparedRuns("a", "b", comparison, {}, [], [])])
    row = next(row for row in rows_in(page) if row[0] == "typical step")
    assert float(row[2]) == pytest.approx(1.5 * float(row[1]), rel=0.01)
    assert row[4] == "-25.0%"
    assert float(row[3].split()[0]) == pytest.approx(-0.25 * float(row[1]), rel=0.01)


def test_steps_of_both_runs_are_drawn_at_their_numbers_without_those_left_out():
    (data,) = data_in(render_comparisons([pair(steps=200)]))["compared"]
    assert (data["group"], len(data["before"]), len(data["after"])) == (1, 300, 300)
    assert data["before"][:10] == [None] * 10
    before = pair(steps=200).comparison.before
    assert data["before"][10:] == pytest.approx((1000 * before.step_s).tolist(), rel=1e-3)
    assert data["after"][200:] == [None] * 100


def test_long_runs_are_drawn_as_means():
    (data,) = data_in(render_comparisons([pair(steps=4_500, steps_before=3_000, stretch=500)]))["compared"]
    assert (data["group"], len(data["after"])) == (5, 900)
    steps = pair(steps=4_500, steps_before=3_000, stretch=500).comparison.after
    assert data["after"][100] == pytest.approx(1000 * steps.step_s[steps.numbers // 5 == 100].mean(), rel=1e-3)


def test_no_name_adds_a_tag_or_an_attribute():
    plain, hostile = Parsed(render_comparisons([pair()])), Parsed(render_comparisons([pair(name=HOSTILE)]))
    assert sorted(hostile.tags) == sorted(plain.tags)
    assert {name for name, _ in hostile.attributes} == {name for name, _ in plain.attributes}
    assert sum(HOSTILE in each for each in hostile.texts) >= 3
