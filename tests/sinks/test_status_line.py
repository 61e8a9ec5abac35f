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


# Writes of the program, and "~" before a status; the lines of the screen.
SCREENS = {
    "rewritten in place": (["~step 10, slow", "~step 11"], ["step 11"]),
    "lines of the program take its place": (["loss 2\n", "~a long line", "loss 1\n"], ["loss 2", "loss 1", ""]),
    "and the next one follows": (["~next", "loss 0\n", "~last", "more\n", "~end"], ["loss 0", "more", "end"]),
    "not in an unfinished line": (["epoch 1:", "~status", " done\n", "~status"], ["epoch 1: done", "status"]),
    "a line that returns": (["\r1 %", "~status", "\r50 %", "~status", "\r100 %", "~status"], ["100 %"]),
}


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize(("writes", "lines"), SCREENS.values(), ids=SCREENS)
def test_the_status_is_below_what_the_program_writes(
    terminal: Terminal, status: StatusLine, writes: list[str], lines: list[str], is_binary: bool
) -> None:
    for text in writes:
        if text.startswith("~"):
            status.show(text[1:])
        else:
            terminal.stream.buffer.write(text.encode()) if is_binary else terminal.stream.write(text)
            terminal.stream.flush()
    assert terminal.screen() == lines


def test_progress_bars_stay(terminal: Terminal, status: StatusLine) -> None:
    tqdm = pytest.importorskip("tqdm")
    for _ in tqdm.tqdm(range(3), file=terminal.stream, mininterval=0, ascii=True, ncols=40, bar_format="{n}/{total}"):
        status.show("status")
    assert terminal.screen() == ["3/3", ""]


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
