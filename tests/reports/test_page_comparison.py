"""The page of a comparison without a browser: its parts, its numbers, and what names cannot do to it."""

import re

import numpy as np
import pytest

from tests.reports.page_runs import HOSTILE
from tests.reports.test_page import Parsed, data_in
from tests.statistics.test_compare import noise, run_of
from training_profiler.reports.comparison import ComparedRuns
from training_profiler.reports.page_comparison import render_comparisons
from training_profiler.statistics.compare import compare
from training_profiler.statistics.differences import Differing


def pair(factor=1.2, name="candidate", steps=300, steps_before=300, stretch=50):
    """Return the comparison of a run with one whose forward pass takes longer."""
    random = np.random.default_rng(0)
    before = run_of(0.1 * noise(steps_before, random), stretch=stretch)
    after = run_of(0.1 * factor * noise(steps, random), loading=0.3 / factor, stretch=stretch)
    facts = [Differing(f"settings.{name}", None, name)]
    return ComparedRuns("runs/a (baseline)", f"runs/b ({name})", compare(before, after), {}, facts, [f"before: {name}"])


def rows_of(page, part):
    """Return the cells' texts of the rows of a part's table."""
    section = page[page.index(f'<section id="{part}"') :].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.partition("<tbody>")[2])
    return [[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def test_the_page_has_verdict_steps_sections_differences_and_notes():
    page = render_comparisons([pair()])
    parsed = Parsed(page)
    assert parsed.open == []
    parts = ["pair1-verdict", "pair1-steps", "pair1-sections", "pair1-differs", "pair1-notes"]
    assert [each for each in parsed.ids if each in parts] == parts
    assert len(parsed.ids) == len(set(parsed.ids))
    assert re.search(r'class="verdict red".*?SLOWER: a step takes \d+\.\d% longer', page)
    assert "Carried by forward_pass: +" in page
    assert "before: 290 steps compared, left out 10 of warm-up" in page
    assert rows_of(page, "pair1-differs") == [["settings.candidate", "unknown", "candidate"]]


@pytest.mark.parametrize(("factor", "color"), [(1.0, "yellow"), (1.2, "red"), (0.8, "green")])
def test_the_verdict_has_its_color(factor, color):
    assert f'class="verdict {color}"' in render_comparisons([pair(factor)])


def test_each_section_has_both_times_and_its_interval_on_one_scale():
    comparison = pair().comparison
    page = render_comparisons([pair()])
    rows = {row[0]: row for row in rows_of(page, "pair1-sections")}
    assert list(rows) == ["typical step", "mean step", *(row.name for row in comparison.sections)]
    (forward,) = [row for row in comparison.sections if row.name == "forward_pass"]
    assert rows["forward_pass"][1:6] == [
        f"{forward.before_s * 1000:.1f}",
        f"{forward.after_s * 1000:.1f}",
        f"+{forward.seconds * 1000:.1f} ms",
        f"{forward.seconds / comparison.typical.before_s:+.1%}",
        f"{forward.low_s * 1000:+.3g} to {forward.high_s * 1000:+.3g} ms",
    ]
    assert rows["forward_pass"][-1] == "yes"
    lines = re.findall(r'<i style="left:([-\d.]+)%;width:([\d.]+)%">', page)
    ends = [(float(left), float(left) + float(width)) for left, width in lines]
    assert len(ends) == len(rows)
    assert (min(left for left, _ in ends), max(right for _, right in ends)) == (pytest.approx(0), pytest.approx(100))


def test_with_other_numbers_of_samples_changes_are_those_for_the_same_number():
    steps = 0.1 * noise(300, np.random.default_rng(0))
    comparison = compare(run_of(steps, samples=50 * 32), run_of(1.5 * steps, samples=50 * 64))
    page = render_comparisons([ComparedRuns("a", "b", comparison, {}, [], [])])
    row = rows_of(page, "pair1-sections")[0]
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
