"""The page without a browser: whole, self-contained, small, and closed to what names contain."""

import json
import re
from collections import Counter
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest

from tests.reports.page_runs import HOSTILE, MS, page_of, recorded_step, series_of, snapshot
from tests.support.recording import snapshot_of
from training_profiler.base.html import Cell, element, table, text
from training_profiler.diagnosis import Finding
from training_profiler.model.series import Lane, Span
from training_profiler.model.snapshot import LineStats, LoaderStats, Snapshot, Throughput
from training_profiler.reports.exports import stacks_of
from training_profiler.reports.page_charts import MOST_BLOCKS, MOST_STEPS, chart_data, recorded_data, rows_of
from training_profiler.reports.page_render import PageOrigin, _breakable, flame, places, render_page
from training_profiler.reports.sections import table_label, training_rows

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


def test_rates_are_written_in_digits():
    run = replace(snapshot(), throughput=Throughput(1234.5, samples_per_s=201_276.4, tokens_per_s=3.14159))
    texts = Parsed(render_page(run, [], [series_of(0, 400)], PageOrigin("a", "a", "a", "a", {}, {}), {}, {})).texts
    shown = [text for text in texts if text.strip()]
    for name, rate in (("steps a second", "1234"), ("samples a second", "201276"), ("tokens a second", "3.14")):
        assert shown[shown.index(name) + 1] == rate


def test_the_page_says_why_it_has_no_source_code():
    page = page_of(name=HOSTILE, has_source=False)
    assert "<mark>" not in page
    assert f"No lines of source code: train.py (changed by {escape(HOSTILE)})" in page
    assert "No lines of source code" not in page_of()


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
    spans = [Span("a", 0, 10), Span("b", 2, 6), Span("c", 3, 4), Span("d", 6, 10), Span("late", 8, 12)]
    rows = {span.section: row for span, row in rows_of(spans[::-1])}
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


def test_a_device_has_a_lane_after_the_threads_and_a_note_on_where_its_spans_lie():
    step = recorded_step(1, "first", MS, "a")
    device = Lane("device cuda:0", (Span("a", step.begin_ns + MS // 2, step.begin_ns + 3 * MS),))
    series = replace(series_of(0, 4), recorded=(step._replace(lanes=(*step.lanes, device)),))
    drawn = recorded_data(series)["steps"][0]
    on_device = drawn["lanes"][-1]
    assert (on_device["thread"], on_device["spans"][0][1:]) == ("device cuda:0", [500, 2500, 0])
    assert (drawn["us"], drawn["shown_us"]) == (1000, 3000)
    pages = [render_page(snapshot(), [], [each], PageOrigin(), {}) for each in (series, series_of(0, 4))]
    assert ["On the lane of a device" in page for page in pages] == [True, False]


@pytest.mark.parametrize(("waits", "is_noted"), [(0.7, True), (0.0, False)])
def test_a_host_that_runs_ahead_is_noted_beside_the_steps(waits, is_noted):
    run = snapshot_of({"forward_pass": 0.1, "backward_pass": 0.1}, std_s=0.2, median_s=0.02, explained={"other": 0.99})
    line = LineStats("train.py", 16, "main", share=0.8, samples=400, waiting_share=waits, waits_in="item")
    page = render_page(replace(run, lines={"other": (line,)}), [], [series_of(0, 100)], PageOrigin(), {})
    assert ("The host runs ahead of its device" in page) is is_noted


def test_beyond_the_limit_the_shortest_slow_steps_are_left_out(monkeypatch):
    monkeypatch.setattr("training_profiler.reports.page_charts.MOST_SPANS", 9)
    steps = [recorded_step(number, "slow", number * MS, "a") for number in range(1, 6)]
    steps[0] = recorded_step(1, "first", MS, "a")
    data = recorded_data(replace(series_of(0, 4), recorded=tuple(steps)))
    assert [step["step"] for step in data["steps"]] == [1, 4, 5]
    assert data["left_out"] == 2


def test_boxes_of_the_flame_view_are_as_wide_as_their_time():
    boxes = flame(stacks_of(series_of(0, 100)), str)
    widths = [int(value) for value in re.findall(r"flex-grow:(\d+)", boxes)]
    assert max(widths) == 412_000  # us of the longest section
    assert 'aria-label="f: 412000, 10.1%"' in boxes
    assert boxes.count("<button") == boxes.count("</button>") > 10


def test_workers_have_a_flame_view_of_their_own_where_their_lines_are_known():
    seen = Parsed(page_of(name="<loader>")).texts
    assert "Workers of loader <loader>" in seen
    for box in ("transform", "data.py:7 __getitem__", "PIL/Image.py:9 resize", "train.py:3 loss"):
        assert box in seen
    unknown = replace(snapshot(), loaders=(LoaderStats("a", 9, None, 1.0, "train", 0.01),))
    assert "Workers of" not in render_page(unknown, [], [series_of(0, 100)], PageOrigin(), {})


def test_long_names_of_sections_break_between_their_words():
    assert _breakable("validation_epoch/<b>") == "validation_<wbr>epoch/<wbr>&lt;b&gt;"
    assert _breakable("__a__") == "__<wbr>a__"


def test_a_run_without_steps_has_a_page():
    empty = Snapshot(wall_s=1.0)
    parsed = Parsed(render_page(empty, [], [], PageOrigin(), {}))
    assert "no training step was recorded" in "".join(parsed.texts)
    assert "steps" not in parsed.ids


def test_source_lines_stand_below_their_finding_and_the_meant_one_is_marked():
    page = page_of()
    assert re.search(r"<mark><span class=\"number\">    3 </span>y = &#x27;a&#x27;</mark>", page)


def test_the_lines_of_a_library_that_a_finding_lies_in_are_shown_beside_its_caller():
    line = LineStats("train.py", 3, "main", 0.3, 100, inside="lib/loop.py:9 fit > lib/log.py:4 flush")
    run = replace(snapshot(), lines={"data_loading": (line,)}, loaders=())
    finding = Finding("data-loading-bound", "waits", {"share": 0.3}, 20.0, "change it")
    assert places(run, [finding]) == {("lib/loop.py", 9), ("lib/log.py", 4), ("train.py", 3)}
    named = replace(finding, message="waits, above all in data.py:7 __getitem__ > resize (9% of it)")
    assert ("PIL/Image.py", 9) in places(snapshot(), [named])


def test_the_answer_and_its_bars_come_first_and_then_the_sections():
    page = page_of(ranks=2)
    marks = ['class="verdict', 'class="bars"', 'id="sections"', 'id="findings"', 'id="steps"']
    assert sorted(marks, key=page.index) == marks
    bars = training_rows(snapshot())
    assert {table_label(bar.section.name) for bar in bars} <= {*Parsed(page).texts}
    assert "change a" in page[: page.index('class="bars"')]


def test_elements_escape_what_they_get_once():
    assert element("p", "<b>", element("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert text(text("<")) == "&lt;"
    assert 'data-value="2"' in table("t", ("a",), [[Cell("two", 2.0)]])
    assert table("t", ("a",), []) == ""


def test_the_snapshot_of_the_tests_is_deterministic():
    assert page_of(ranks=2) == page_of(ranks=2)
    assert snapshot() == snapshot()


def test_columns_of_words_begin_on_the_left_and_numbers_end_on_the_right():
    rows = [["a", Cell("1.2", 1.2), "3 ms", "[[4]]", ""], ["b", Cell(""), "", "", ""]]
    shown = table("t", ["name", "number", "time", "shapes", "none"], rows)
    assert re.findall(r'<th scope="col"( class="words")?>', shown) == [' class="words"', "", "", ' class="words"', ""]
    assert re.findall(r"<td( class=\"words\")?", shown) == ["", "", ' class="words"', ""] * 2
