import io
import os
import pty
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.terminal import shown
from training_profiler.sinks.console import StatusLine


class Terminal:
    """A pseudoterminal, the stream of a program on it, and what it shows."""

    def __init__(self) -> None:
        self._outer, inner = pty.openpty()
        self.stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(inner, "w")), line_buffering=True)

    def screen(self) -> list[str]:
        """Return the lines of the screen after everything written so far."""
        os.set_blocking(self._outer, False)
        data = b""
        try:
            while part := os.read(self._outer, 65536):
                data += part
        except BlockingIOError:
            pass
        return shown(data.decode())

    def close(self) -> None:
        self.stream.close()
        os.close(self._outer)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", made.stream)
    yield made
    made.close()


@pytest.fixture
def status(terminal: Terminal) -> Iterator[StatusLine]:
    line = StatusLine()
    assert line.start(terminal.stream)
    line.clear()
    yield line
    line.stop()


def test_status_is_rewritten_in_place(terminal: Terminal, status: StatusLine) -> None:
    status.show("step 10, slow")
    status.show("step 11")
    assert terminal.screen() == ["step 11"]


def test_lines_of_the_program_take_the_place_of_the_status(terminal: Terminal, status: StatusLine) -> None:
    terminal.stream.write("loss 2\n")
    status.show("a long status line")
    terminal.stream.write("loss 1\n")
    assert terminal.screen() == ["loss 2", "loss 1", ""]
    status.show("next")
    terminal.stream.write("loss 0\n")
    status.show("last")
    terminal.stream.buffer.write(b"bytes\n")
    terminal.stream.buffer.flush()
    status.show("end")
    assert terminal.screen() == ["loss 0", "bytes", "end"]


def test_nothing_is_drawn_into_an_unfinished_line(terminal: Terminal, status: StatusLine) -> None:
    terminal.stream.write("epoch 1:")
    terminal.stream.flush()
    status.show("status")
    terminal.stream.write(" done\n")
    status.show("status")
    assert terminal.screen() == ["epoch 1: done", "status"]


def test_progress_bars_and_returned_lines_stay(terminal: Terminal, status: StatusLine) -> None:
    tqdm = pytest.importorskip("tqdm")
    for _ in tqdm.tqdm(range(3), file=terminal.stream, mininterval=0, ascii=True, ncols=40, bar_format="{n}/{total}"):
        status.show("status")
    for percent in (1, 50, 100):
        terminal.stream.write(f"\r{percent} %")
        terminal.stream.flush()
        status.show("status")
    assert terminal.screen() == ["3/3", "100 %"]


def test_end_leaves_no_trace(terminal: Terminal) -> None:
    status = StatusLine()
    status.start(terminal.stream)
    assert "write" in vars(terminal.stream.buffer.raw)
    status.clear()
    status.show("status")
    status.stop()
    assert "write" not in vars(terminal.stream.buffer.raw)
    terminal.stream.write("end\n")
    assert terminal.screen() == ["end", ""]


def test_program_that_prints_in_a_handler_of_a_signal_does_not_wait_for_itself(
    terminal: Terminal, status: StatusLine
) -> None:
    status.show("status")
    with status._writing:  # as in the middle of a write
        terminal.stream.write("from a handler\n")
    assert terminal.screen() == ["from a handler", ""]


def test_status_is_left_out_while_the_program_writes(terminal: Terminal, status: StatusLine) -> None:
    with status._writing:
        thread = threading.Thread(target=status.show, args=("status",))
        thread.start()
        thread.join()
    assert terminal.screen() == [""]


def test_files_pipes_and_plain_terminals_have_no_status(
    terminal: Terminal, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "file").open("w") as file:
        assert not StatusLine().start(file)
    assert not StatusLine().start(io.StringIO())
    assert not StatusLine().start(None)
    monkeypatch.setenv("TERM", "dumb")
    assert not StatusLine().start(terminal.stream)
