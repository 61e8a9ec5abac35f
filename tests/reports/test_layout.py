import pytest

from training_profiler.reports import layout
from training_profiler.reports.layout import Layout, column_width, shortened, table


def test_wrapped_text_has_the_width():
    assert Layout(width=40).wrap("one two three four five six seven eight", first="- ") == [
        "- one two three four five six seven",
        "  eight",
    ]


@pytest.mark.parametrize(
    "quantity", ["7.58 ms", "1 min 01 s", "12 h 05 min", "0.25 GiB", "59.7 MFLOP/s", "1.95 samples/s"]
)
def test_no_line_ends_between_a_number_and_its_unit(quantity):
    for before in range(24, 40):
        first, *rest = Layout(width=40).wrap(f"{'x' * before} {quantity} more")
        assert quantity in first or quantity in rest[0], before
        assert len(first) <= 40


def test_lines_to_grep_are_not_wrapped():
    text = "word " * 50 + "end"
    assert Layout(format="lines").wrap(text, first="- ") == [f"- {text}"]


def test_color_only_where_the_terminal_has_it():
    assert Layout().color("text", "red") == "text"
    assert Layout(has_color=True).color("text", "red") == "\x1b[31mtext\x1b[0m"


def test_missing_termcolor_means_no_color(monkeypatch):
    monkeypatch.setattr(layout, "colored", None)
    monkeypatch.setattr(layout, "can_colorize", None)
    assert Layout(has_color=True).color("text", "red") == "text"
    assert not layout.has_terminal_color()


def test_table_aligns_names_left_and_numbers_right():
    rows = [("a", "1"), ("  nested", "22")]
    assert table(("name", "time\n(ms)"), rows) == [
        "name      time",
        "          (ms)",
        "a            1",
        "  nested    22",
    ]
    assert column_width("time\n(ms)", ["1", "22"]) == 6


def test_missing_tabulate_leaves_plain_rows(monkeypatch):
    monkeypatch.setattr(layout, "tabulate", None)
    assert table(("name", "time\n(ms)"), [("a", "1")]) == ["name  time (ms)", "a  1"]


def test_long_names_keep_their_begin_and_end():
    assert shortened("short", 20) == "short"
    assert shortened("rank 3 (a-very-long-host-name-17)", 20) == "rank 3 (a..-name-17)"
