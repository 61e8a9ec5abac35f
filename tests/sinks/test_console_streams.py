"""The streams that reports are printed to: their layout, and writes of the program that are under way."""

import io
import sys

import pytest

from training_profiler.reports.layout import Layout
from training_profiler.sinks.console import Console, stream_layout


class Interrupted(io.BufferedWriter):
    """A stream whose own write was interrupted by a signal: Python does not let it be flushed meanwhile."""

    def flush(self):
        if not self.closed:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")


def test_report_during_the_programs_own_write(tmp_path, monkeypatch):
    path = tmp_path / "printed"
    stream = io.TextIOWrapper(Interrupted(io.FileIO(path, "w")), write_through=True)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        Console("stdout").print("a report\n")
    assert path.read_text() == "a report\n"


@pytest.fixture
def layout_of_stdout(tmp_path, monkeypatch):
    """Return a function that returns the layout of a file as standard output, with these variables set."""

    def layout(encoding="utf-8", **variables):
        for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "ANSI_COLORS_DISABLED"):
            monkeypatch.delenv(name, raising=False)
        with monkeypatch.context() as patched, (tmp_path / "out").open("w", encoding=encoding) as file:
            for name, value in {"TERM": "xterm", **variables}.items():
                patched.setenv(name, value)
            patched.setattr(sys, "__stdout__", None)
            patched.setattr(sys, "stdout", file)  # here: pytest replaces it between a fixture and its test
            return stream_layout(file, "table")

    return layout


def test_file_has_80_columns_without_color(layout_of_stdout):
    assert layout_of_stdout() == Layout(80, False, True, "table")


def test_columns_variable_sets_the_width(layout_of_stdout):
    assert layout_of_stdout(COLUMNS="132").width == 132
    assert layout_of_stdout(COLUMNS="7").width == 40


@pytest.mark.parametrize(
    ("variables", "has_color"),
    [
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_color_follows_the_variables(layout_of_stdout, variables, has_color):
    assert layout_of_stdout(**variables).has_color is has_color


def test_dumb_terminals_and_other_encodings_get_ascii(layout_of_stdout):
    assert layout_of_stdout().is_unicode
    assert not layout_of_stdout(encoding="latin-1").is_unicode
    assert not layout_of_stdout(TERM="dumb").is_unicode


def test_other_streams_have_no_color_and_80_columns(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "132")
    assert stream_layout(io.StringIO(), "table") == Layout(80, False, False, "table")


def test_closed_stream_has_the_layout_of_a_file():
    closed = io.StringIO()
    closed.close()
    assert stream_layout(closed, "lines") == Layout(format="lines")
    assert stream_layout(None, "lines") == Layout(format="lines")
