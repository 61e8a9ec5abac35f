"""The page without a browser: whole, self-contained, small, and closed to what names contain."""

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.reports.page_runs import HOSTILE, MS, page_of, recorded_step, series_of, snapshot
from tests.support.golden import assert_golden
from tests.support.recording import snapshot_of
from training_profiler.base.html import Cell, element, table, text
from training_profiler.diagnosis import Finding
from training_profiler.model.series import Lane, RankSeries
from training_profiler.model.snapshot import LineStats, LoaderStats, Snapshot, Throughput
from training_profiler.reports.page_charts import MOST_BLOCKS, MOST_STEPS, chart_data, recorded_data, rows_of
from training_profiler.reports.page_render import PageOrigin, places, render_page

GOLDEN = Path(__file__).parents[1] / "golden" / "reports" / "page.txt"
VOID = {"meta", "link", "input", "img", "br", "hr", "wbr"}
EXPECTED = {"findings", "steps", "recorded", "sections", "flame", "lines", "epochs", "loaders", "machine", "ranks",
            "captures", "checklist", "health", "about"}  # fmt: skip


class Parsed(HTMLParser):
    """The tags of a page, which must be closed in order, its ids and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.texts.append(data)


def data_in(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


def test_the_page_has_all_its_parts_with_unique_ids():
    parsed = Parsed(page_of(ranks=2))
    assert parsed.open == []
    assert set(parsed.ids) >= EXPECTED
    assert len(parsed.ids) == len(set(parsed.ids))


def body_of(page: str) -> list[str]:
    """Return the elements of the page's body, without its header and its scripts."""
    return page.partition("</noscript>")[2].partition("</main>")[0].strip().replace("><", ">\n<").split("\n")


def pages() -> dict[str, str]:
    """Return the first page whole, and of the others what only they have."""
    run, series = snapshot(), series_of(0, 4)

    def of_run(*series: RankSeries, **changes: Any) -> str:
        return render_page(replace(run, **changes), [], series, PageOrigin(), {})

    step = recorded_step(1, "first", MS, "a")
    device = Lane("device cuda:0", ("a",), (500,), (3_000,))
    ahead = snapshot_of(
        {"forward_pass": 0.1, "backward_pass": 0.1}, std_s=0.2, median_s=0.02, explained={"other": 0.99}
    )
    line = LineStats("train.py", 16, "main", share=0.8, samples=400, waiting_share=0.7, waits_in="item")
    given = {
        "the page": page_of(ranks=2),
        "without source code, as the file was changed": page_of(name=HOSTILE, has_source=False),
        "rates in digits": of_run(
            throughput=Throughput(1234.5, samples_per_s=201_276.4, tokens_per_s=3.14159, mfu=0.3)
        ),
        "a device has a note on where its spans lie": of_run(
            replace(series, recorded=(structs.replace(step, lanes=(*step.lanes, device)),))
        ),
        "a host that runs ahead is noted": of_run(
            series, step=ahead.step, sections=ahead.sections, lines={"other": (line,)}
        ),
        "a loader without lines of its workers": of_run(
            series, loaders=(LoaderStats("a", 9, None, 1.0, "train", 0.01, pin_memory=True),)
        ),
        "a run without steps": render_page(Snapshot(wall_s=1.0), [], [], PageOrigin(), {}),
    }
    bodies = {name: body_of(page) for name, page in given.items()}
    first = bodies["the page"]
    return {
        name: "\n".join(body if body is first else [each for each in body if each not in first])
        for name, body in bodies.items()
    }


def test_pages_are_drawn_to_the_letter():
    assert_golden(GOLDEN, "".join(f"##### {name}\n{text}\n" for name, text in pages().items()))


def test_the_page_loads_nothing():
    page = page_of(ranks=2)
    loading = [value for name, value in Parsed(page).attributes if name in ("src", "action", "data", "srcset")]
    assert loading == []
    assert all(value.startswith("#") for name, value in Parsed(page).attributes if name == "href")
    assert "default-src 'none'" in page
    assert not re.search(r"@import|url\(", page)


def test_no_name_adds_a_tag_an_attribute_or_an_end_of_a_script():
    plain, hostile = Parsed(page_of(ranks=2)), Parsed(page_of(ranks=2, name=HOSTILE))
    # A name with a / has one more place to break it.
    assert Counter(hostile.tags) - Counter(plain.tags) == {"wbr": 1}
    assert not Counter(plain.tags) - Counter(hostile.tags)
    assert {name for name, _ in hostile.attributes} == {name for name, _ in plain.attributes}
    assert sum(HOSTILE in each for each in hostile.texts) > 10
    assert HOSTILE in data_in(page_of(name=HOSTILE))["sections"]


@pytest.mark.parametrize("name", ["\x1b[31mred", "\u202ereversed", "\ud800", "a\nb", "\x00"])
def test_controls_and_invisible_marks_are_escaped(name):
    page = page_of(name=name)
    assert name not in page
    page.encode()


def test_ten_sections_in_ten_thousand_steps_are_less_than_a_megabyte():
    assert len(page_of(steps=10_000).encode()) < 1_000_000


def test_a_longer_run_is_drawn_in_groups_and_blocks_of_bounded_number():
    data = chart_data([series_of(0, 50_000, steps_a_block=1)], None)
    assert len(data["steps"]["ms"]) <= MOST_STEPS
    assert len(data["blocks"]["first"]) <= MOST_BLOCKS
    assert data["steps"]["group"] == 3
    assert max(data["steps"]["max"]) == data["longest"][0]["ms"]
    assert sum(data["blocks"]["steps"]) == 50_000


def test_sections_of_a_block_add_up_to_its_steps():
    data = chart_data([series_of(0, 400)], None)
    steps, blocks = data["steps"]["ms"], data["blocks"]
    for at, (first, count) in enumerate(zip(blocks["first"], blocks["steps"], strict=True)):
        mean_ms = sum(steps[first - 1 : first - 1 + count]) / count
        assert sum(column[at] for column in blocks["ms"]) == pytest.approx(mean_ms, rel=1e-3)


def test_the_longest_step_names_the_section_above_its_mean():
    longest = chart_data([series_of(0, 400)], None)["longest"][0]
    assert (longest["step"], longest["first"], longest["of"]) == (201, 201, 4)
    assert longest["excess"][0] == 0  # data_loading has the most time of the run
    assert longest["excess"][1] == pytest.approx(300, rel=0.05)


@pytest.mark.parametrize(("every", "is_uneven"), [(80, True), (5, True), (1000, False), (1, False)])
def test_steps_of_two_kinds_have_logarithmic_charts_and_bars_of_their_own(every, is_uneven):
    series = series_of(0, 400)
    for stretch in series.stretches:
        for at in range(len(stretch.steps_ns)):
            is_long = (stretch.first_step + at) % every == every - 1
            stretch.steps_ns[at] = (140 if is_long else 2) * MS + at * MS // 1000
    data = chart_data([series], None)
    spread = data["histogram"]
    assert (data["steps"]["uneven"], spread["log"]) == (is_uneven, is_uneven)
    assert sum(spread["counts"]) + spread["beyond"] == 400
    long = sum(steps for ms, steps in zip(spread["ms"], spread["counts"], strict=True) if ms > 50)
    assert long == 400 // every


def test_ranks_are_rows_of_the_heat_map_and_one_rank_has_none():
    ranks = chart_data([series_of(rank, 400) for rank in range(3)], None)["ranks"]
    assert ranks["ranks"] == ["rank 0 (node0)", "rank 1 (node0)", "rank 2 (node0)"]
    assert {(len(metric), len(metric[0])) for metric in ranks["ms"]} == {(3, 100)}
    assert chart_data([series_of(0, 400)], None)["ranks"] is None


def test_nested_spans_are_in_the_row_of_their_depth_and_overlapping_ones_below_each_other():
    lane = Lane("MainThread", ("late", "d", "c", "b", "a"), (8, 6, 3, 2, 0), (12, 10, 4, 6, 10))
    rows = {section: row for section, _, _, row in rows_of(lane)}
    assert [*rows.items()] == [*{"a": 0, "b": 1, "c": 2, "d": 1, "late": 2}.items()]


def test_recorded_steps_are_in_the_data_with_times_since_their_begin():
    data = chart_data([series_of(0, 400)], None)["recorded"]
    assert [(step["step"], step["why"], step["ms"], step["us"]) for step in data["steps"]] == [
        (1, "first", 15.0, 15_000),
        (201, "slow", 315.0, 315_000),
    ]
    own, other = data["steps"][1]["lanes"]
    a, b, prefetch = (data["names"].index(name) for name in ("a", "b", "prefetch"))
    assert own["spans"] == [[a, 0, 157_500, 0], [b, 78_750, 78_750, 1]]
    assert other["spans"] == [[prefetch, -78_750, 157_500, 0]]


def test_a_device_has_a_lane_after_the_threads():
    step = recorded_step(1, "first", MS, "a")
    device = Lane("device cuda:0", ("a",), (500,), (3_000,))
    drawn = recorded_data(replace(series_of(0, 4), recorded=(structs.replace(step, lanes=(*step.lanes, device)),)))[
        "steps"
    ][0]
    on_device = drawn["lanes"][-1]
    assert (on_device["thread"], on_device["spans"][0][1:]) == ("device cuda:0", [500, 2500, 0])
    assert (drawn["us"], drawn["shown_us"]) == (1000, 3000)


def test_beyond_the_limit_the_shortest_slow_steps_are_left_out(monkeypatch):
    monkeypatch.setattr("training_profiler.reports.page_charts.MOST_SPANS", 9)
    steps = [recorded_step(number, "slow", number * MS, "a") for number in range(1, 6)]
    steps[0] = recorded_step(1, "first", MS, "a")
    data = recorded_data(replace(series_of(0, 4), recorded=tuple(steps)))
    assert [step["step"] for step in data["steps"]] == [1, 4, 5]
    assert data["left_out"] == 2


def test_the_lines_of_a_library_that_a_finding_lies_in_are_shown_beside_its_caller():
    line = LineStats("train.py", 3, "main", 0.3, 100, inside="lib/loop.py:9 fit > lib/log.py:4 flush")
    run = replace(snapshot(), lines={"data_loading": (line,)}, loaders=())
    finding = Finding("data-loading-bound", "waits", {"share": 0.3}, 20.0, "change it")
    assert places(run, [finding]) == {("lib/loop.py", 9), ("lib/log.py", 4), ("train.py", 3)}
    named = replace(finding, message="waits, above all in data.py:7 __getitem__ > resize (9% of it)")
    assert ("PIL/Image.py", 9) in places(snapshot(), [named])


def test_elements_escape_what_they_get_once():
    assert element("p", "<b>", element("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert text(text("<")) == "&lt;"
    assert 'data-value="2"' in table("t", ("a",), [[Cell("two", 2.0)]])
    assert table("t", ("a",), []) == ""
