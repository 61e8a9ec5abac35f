"""The streams that reports are printed to: their layout, and writes of the program that are under way."""

import io
import os
import sys
import threading

import pytest

from training_profiler.reports.layout import Layout
from training_profiler.sinks.console import Console, stream_layout


class Interrupted(io.BufferedWriter):
    """A stream whose own write was interrupted by a signal: Python does not let it be flushed meanwhile."""

    def flush(self):
        if not self.closed:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")


@pytest.fixture
def pipe():
    """Return both ends of a pipe, and its writing end as a stream."""
    reads, writes = os.pipe()
    stream = os.fdopen(writes, "w")
    yield reads, stream
    os.close(reads)
    stream.close()


def test_the_program_finds_room_in_a_pipe_without_progress(pipe):
    reads, stream = pipe
    console, asked = Console("stdout"), []
    while console.print("a report\n" * 100, stream, lambda: asked.append(1) or len(asked) > 2):
        pass
    assert len(asked) == 3
    os.write(stream.fileno(), b"of the program")  # does not wait
    assert os.read(reads, 1 << 20).endswith(b"of the program")


def test_a_text_larger_than_a_pipe_goes_through_whole(pipe):
    reads, stream = pipe
    text = "".join(f"line {number}\n" for number in range(30_000))
    received = []

    def read():
        while sum(map(len, received)) < len(text):
            received.append(os.read(reads, 4096))

    reader = threading.Thread(target=read)
    reader.start()
    assert Console("stdout").print(text, stream, lambda: False)
    reader.join()
    assert b"".join(received).decode() == text


def test_a_file_of_the_program_under_the_number_of_its_stream_is_left_alone(tmp_path):
    with (tmp_path / "log").open("w") as stream:
        console = Console("stdout")
        console.print("one\n", stream)
        theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
        os.dup2(theirs, stream.fileno())
        with pytest.raises(OSError, match="now is that of a file of the program"):
            console.print("two\n", stream)
        os.close(theirs)
    assert ((tmp_path / "log").read_text(), (tmp_path / "theirs").read_text()) == ("one\n", "")


def test_a_stream_that_was_closed_meanwhile_is_followed_by_the_present_one(monkeypatch):
    closed, present = io.StringIO(), io.StringIO()
    closed.close()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", present)
        assert Console("stdout").print("a report\n", closed)
    assert present.getvalue() == "a report\n"


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


@pytest.mark.parametrize(
    ("variables", "layout"),
    [
        ({}, Layout(80, False, True)),
        ({"COLUMNS": "132"}, Layout(132, False, True)),
        ({"COLUMNS": "7"}, Layout(40, False, True)),
        ({"FORCE_COLOR": "1"}, Layout(80, True, True)),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, Layout(80, False, True)),
        ({"TERM": "dumb"}, Layout(80)),
        ({"encoding": "latin-1"}, Layout(80)),
    ],
)
def test_width_color_and_characters_follow_variables_and_encoding(layout_of_stdout, variables, layout):
    assert layout_of_stdout(**variables) == layout


def test_closed_stream_has_the_layout_of_a_file():
    closed = io.StringIO()
    closed.close()
    assert stream_layout(closed, "lines") == Layout(format="lines")
    assert stream_layout(None, "lines") == Layout(format="lines")
