"""No text of others controls a terminal, breaks a table or is not JSON."""

import json

import pytest

from training_profiler.base.text import escaped, one_line, printable, printable_data, printable_lines

HOSTILE = [
    "\x1b[2J\x1b[31m", "\x1b]0;title\x07", "\x00", "\x7f", "\x85", "\x9b31m", "a\nb", "a\r\n", "\t", "\u2028", "\u2029",
    "\u202e", "\u202a", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c", "\u200b", "\ufeff", "\ud800", "\udcff",
    "\U000e0001",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped_everywhere(text: str) -> None:
    assert printable(text).isprintable()
    assert escaped(text).isprintable()
    assert one_line(text).isprintable()
    assert printable_lines(text).replace("\n", "").isprintable()
    data = printable_data({text: [text, (text,)]})
    assert all(key.isprintable() and value[0].isprintable() for key, value in data.items())
    printable(text).encode()


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("forward_pass", "Schritt für Schritt", "前向传播", "x" * 120, "█▌ 3 %"):
        assert printable(text) == text
    assert printable_lines("one\n\ntwo\n") == "one\n\ntwo\n"


def test_long_text_is_cut() -> None:
    assert printable("x" * 10_000_000) == "x" * 119 + "…"
    assert len(printable("\x00" * 121)) == 120
    assert len(one_line("é" * 10_000)) == 1000


def test_colors_of_a_report_stay_and_others_do_not() -> None:
    text = "\x1b[1m\x1b[31mred\x1b[0m\x1b[2J\n"
    assert printable_lines(text, has_color=True) == "\x1b[1m\x1b[31mred\x1b[0m\\x1b[2J\n"
    assert printable_lines(text) == "\\x1b[1m\\x1b[31mred\\x1b[0m\\x1b[2J\n"


def test_data_is_always_json() -> None:
    data = printable_data({"a": float("nan"), "b": [float("inf"), 1.5, None, True, 3], 7: -float("inf")})
    assert data == {"a": None, "b": [None, 1.5, None, True, 3], 7: None}
    assert json.dumps(data, allow_nan=False)
