"""The page of a run in a browser: no complaint, charts are drawn, zoom, sort and search work, names do no harm."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reports.page_runs import HOSTILE, page_of
from tests.reports.test_page_comparison import pair
from tests.support.browser import BROWSER, Page, browser
from training_profiler.reports.page_comparison import render_comparisons

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome to open the page with"),
]
DRAWN = """[...document.querySelectorAll("canvas")].map(c => {
  const p = c.getContext("2d").getImageData(0, 0, c.width, c.height).data; const seen = new Set();
  for (let i = 0; i < p.length; i += 4) if (p[i + 3]) seen.add(p[i] << 16 | p[i + 1] << 8 | p[i + 2]);
  return seen.size; })"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    path.write_text(page_of(ranks=4, steps=400), encoding="utf-8")
    with browser(folder) as page:
        page.open(path)
        yield page
        assert page.complaints == []


def middle(page: Page, selector: str) -> tuple[float, float, float]:
    box = page.evaluate(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
        "const b = e.getBoundingClientRect(); return [b.left, b.top + b.height / 2, b.width]; })()"
    )
    return tuple(box)


def test_every_chart_is_drawn(page: Page) -> None:
    colors = page.evaluate(DRAWN)
    assert len(colors) >= 6  # steps, sections, histogram, two of the machine, ranks
    assert min(colors) > 3
    assert page.complaints == []


def test_dragging_zooms_both_charts_and_a_double_click_shows_everything(page: Page) -> None:
    assert page.evaluate("document.querySelector('#shown').textContent") == "steps 1 to 400"
    left, y, width = middle(page, "#step-chart .u-over")
    page.mouse("mouseMoved", left + 0.25 * width, y)
    page.mouse("mousePressed", left + 0.25 * width, y)
    page.mouse("mouseMoved", left + 0.5 * width, y)
    page.mouse("mouseReleased", left + 0.5 * width, y)
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")
    first, last = page.evaluate("document.querySelector('#shown').textContent.match(/\\d+/g).map(Number)")
    assert 95 <= first <= 105
    assert 195 <= last <= 205
    page.evaluate("document.querySelector('[data-zoom=all]').click()")
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")
    assert page.evaluate("document.querySelector('#shown').textContent") == "steps 1 to 400"


def test_a_click_on_an_outlier_shows_what_it_consists_of(page: Page) -> None:
    left, y, width = middle(page, "#step-chart .u-over")
    x = left + width * 200 / 399  # step 201 is the longest
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.mouse(kind, x, y)
    shown = page.evaluate("document.querySelector('#step').innerText")
    assert shown.startswith("Step 201: ")
    assert "data_loading" in shown


def test_a_recorded_step_is_drawn_span_by_span_and_a_click_zooms(page: Page) -> None:
    page.evaluate(
        "(s => { s.value = 1; s.dispatchEvent(new Event('change')); })(document.querySelector('#recorded-step'))"
    )
    boxes = """[...document.querySelectorAll('#lanes button')].filter(b => !b.hidden).map(b => {
      const r = b.getBoundingClientRect(), l = b.parentElement.getBoundingClientRect();
      return [b.textContent, Math.round(100 * (r.left - l.left) / l.width), Math.round(100 * r.width / l.width),
        Math.round(r.top - l.top) > 5]; })"""
    assert page.evaluate(boxes) == [["a", 0, 50, False], ["b", 25, 25, True], ["prefetch", 0, 25, False]]
    assert page.evaluate("document.querySelector('#lanes-to').textContent") == "315 ms"
    page.evaluate("document.querySelectorAll('#lanes button')[1].click()")
    assert page.evaluate(boxes)[:2] == [["a", 0, 98, False], ["b", 2, 96, True]]
    page.evaluate("document.querySelector('#recorded-whole').click()")
    assert page.evaluate(boxes)[1] == ["b", 25, 25, True]


def test_the_keyboard_moves_from_step_to_step(page: Page) -> None:
    page.evaluate("document.querySelector('#step-chart').focus()")
    before = page.evaluate("Number(document.querySelector('#goto').value || 0)")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert page.evaluate("Number(document.querySelector('#goto').value)") == before + 1


def test_a_column_sorts_by_its_numbers(page: Page) -> None:
    rows = "[...document.querySelectorAll('#sections tbody tr')]"
    column = f"{rows}.map(r => r.cells[4].dataset.value).filter(v => v).map(Number)"
    button = "document.querySelector('#sections thead th:nth-child(5) button').click()"
    page.evaluate(button)
    down = page.evaluate(column)
    assert down == sorted(down, reverse=True)
    page.evaluate(button)
    assert page.evaluate(column) == down[::-1]


def test_a_step_that_took_many_times_as_long_leaves_the_others_no_flat_line(page: Page) -> None:
    painted = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))"
    shown = {}
    for click in ("[data-zoom=all]", "#whole", "#whole"):
        page.evaluate(f"document.querySelector('{click}').click()")
        page.evaluate(painted)
        is_whole = page.evaluate("document.querySelector('#whole').checked")
        shown[is_whole] = page.evaluate("document.querySelector('#cut').textContent")
    assert shown == {False: "1 longer step is beyond the upper end.", True: ""}


def test_numbers_stay_beside_their_units_where_there_is_little_room(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(ranks=2), encoding="utf-8")
    with browser(tmp_path, width=640) as page:
        for width in (1280, 768, 640, 360):
            page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            page.open(path)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert (
                page.evaluate("document.querySelector('#sections').getBoundingClientRect().bottom") < 1000
                or width < 1280
            )
        rows = "[...document.querySelectorAll('#sections tbody tr')].map(r => Math.round(r.offsetHeight))"
        assert len(set(page.evaluate(rows))) == 1


def test_search_leaves_the_rows_with_the_words(page: Page) -> None:
    typed = "(t => { const s = document.querySelector('#search'); s.value = t; s.dispatchEvent(new Event('input')); })"
    page.evaluate(f"{typed}('backward')")
    rows = (
        "[...document.querySelectorAll('#sections tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
    )
    assert page.evaluate(rows) == ["backward_pass"]
    page.evaluate(f"{typed}('')")
    assert len(page.evaluate(rows)) > 3


def test_dark_and_light_differ_and_both_are_drawn(page: Page) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    seen = {}
    for scheme in ("dark", "light"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        seen[scheme] = (page.evaluate(back), min(page.evaluate(DRAWN)))
    assert seen["dark"][0] != seen["light"][0]
    assert min(seen["dark"][1], seen["light"][1]) > 3


def test_hostile_names_run_nothing_and_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(ranks=2, steps=60, name=HOSTILE), encoding="utf-8")
    with browser(tmp_path) as page:
        page.open(path)
        page.evaluate("document.querySelector('#longest button').click()")
        assert page.evaluate("window.harmed") is None
        assert page.evaluate("document.querySelectorAll('img, iframe, object, link').length") == 0
        assert HOSTILE in page.evaluate("document.querySelector('#sections').innerText")
        assert HOSTILE in page.evaluate("document.querySelector('#legend').innerText")
        assert page.complaints == []


def test_a_comparison_draws_the_steps_of_both_runs_and_hostile_names_run_nothing(tmp_path: Path) -> None:
    path = tmp_path / "comparison.html"
    path.write_text(render_comparisons([pair(), pair(0.8, name=HOSTILE)]), encoding="utf-8")
    with browser(tmp_path) as page:
        page.open(path)
        assert len(page.evaluate(DRAWN)) == 2
        assert min(page.evaluate(DRAWN)) > 3
        assert "Steps that are not compared" in page.evaluate("document.querySelector('#pair2-note').textContent")
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=900, deviceScaleFactor=1, mobile=True)
        heights = "Math.max(...[...document.querySelectorAll('#pair1-sections tbody tr')].map(row => row.offsetHeight))"
        assert page.evaluate(heights) < 40  # a line
        assert page.evaluate("window.harmed") is None
        assert page.complaints == []


def test_many_steps_of_many_ranks_open(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(ranks=64, steps=10_000), encoding="utf-8")
    with browser(tmp_path) as page:
        page.open(path)
        opened_ms = page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
        print(f"{path.stat().st_size} bytes, open after {opened_ms} ms")
        assert min(page.evaluate(DRAWN)) > 3
        assert page.complaints == []


def test_a_screen_reader_has_a_name_for_each_chart_and_control(page: Page) -> None:
    page.call("Accessibility.enable")
    nodes = {node["nodeId"]: node for node in page.call("Accessibility.getFullAXTree")["nodes"] if "role" in node}
    named = {"Canvas": "image", "table": "table image", "button": "button", "checkbox": "checkbox"}
    named |= {role: role for role in ("combobox", "searchbox", "spinbutton", "link", "heading", "region")}
    seen = set()
    for node in nodes.values():
        role = node["role"]["value"]
        if node["ignored"] or role not in named:
            continue
        seen.add(role)
        around = node
        while not (around.get("name", {}).get("value") and around["role"]["value"] in named[role].split()):
            assert around.get("parentId") in nodes, node
            around = nodes[around["parentId"]]
    assert seen == set(named)
