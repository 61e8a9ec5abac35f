"""``training-profiler watch`` on folders that are written step by step, on a fake clock."""

import io
import json
import os
import socket
import time

import pytest

from tests.support.commands import printed, refused
from tests.support.recording import FakeRun
from training_profiler.base.errors import RunFolderError
from training_profiler.cli import INTERRUPTED, main, watch
from training_profiler.cli.watch import FullScreen, PlainScreen, Watcher
from training_profiler.storage.run_folder import META


class Training:
    """A run that goes on while the watcher sleeps; the clock moves only then."""

    def __init__(self, folder, *acts, pid=None):
        folder.mkdir(parents=True)
        self.folder, self.now_s, self.slept = folder, 0.0, []
        self._acts, self._pid = list(acts), os.getpid() if pid is None else pid
        (folder / META).write_text(json.dumps({"command": "python train.py"}))

    def begin(self):
        self.run = FakeRun(journal=self.folder / "rank0.jsonl")
        path = self.folder / "rank0.jsonl"
        line = json.loads(path.read_text()) | {
            "pid": self._pid,
            "host": socket.gethostname(),
            "wall_ns": time.time_ns(),
        }
        path.write_text(json.dumps(line) + "\n")

    def steps(self, count=10, step_s=0.1):
        for _ in range(count):
            self.run.step(forward_pass=step_s)
        self.run.flush()

    def end(self):
        self.run.journal.close(self.run.snapshot().health, None)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds
        if not self._acts:
            raise KeyboardInterrupt
        act = self._acts.pop(0)
        act(self) if act else None

    def watcher(self):
        return Watcher(self.folder, None, self.sleep, lambda: self.now_s)


def test_a_run_is_followed_from_before_its_first_line_to_its_end(tmp_path, capsys):
    training = Training(tmp_path / "run", Training.begin, Training.steps, None, Training.steps, Training.end)
    assert training.watcher().follow(PlainScreen(), 2.0) == 0
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line.startswith("Profiler: ")] == [
        "Profiler: step 10 | 10.0 steps/s | forward_pass 100%",
        "Profiler: step 20 | 10.0 steps/s | forward_pass 100%",
    ]
    assert out.index("the run is running") < out.index("step 10") < out.index("the run has ended")
    assert training.slept == [2.0] * 5
    assert err.count("\n") == 1


def test_a_process_that_is_gone_is_given_a_minute_and_one_that_was_gone_none(tmp_path, capsys):
    def gone(training):
        path = training.folder / "rank0.jsonl"
        path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {2**22 - 3}'))

    training = Training(tmp_path / "a", *[None] * 40)
    training.begin()
    training.steps()
    watcher = training.watcher()
    training._acts[:1] = [gone]
    assert watcher.follow(PlainScreen(), 2.0) == 0
    assert 60 <= training.now_s <= 64
    assert "the run is killed" in capsys.readouterr().out
    other = Training(tmp_path / "b", pid=2**22 - 3)
    other.begin()
    other.steps()
    assert other.watcher().follow(PlainScreen(), 2.0) == 0
    assert other.slept == []


def test_a_journal_that_is_cut_meanwhile_is_read_again_and_said(tmp_path, capsys):
    def cut(training):
        path = training.folder / "rank0.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))

    def empty(training):
        (training.folder / "rank0.jsonl").write_bytes(b"")

    def restored(training):
        (training.folder / "rank0.jsonl").write_bytes(training.kept)
        training.end()

    training = Training(tmp_path / "run", cut, empty, restored, None)
    training.begin()
    training.steps()
    training.steps()
    training.kept = (training.folder / "rank0.jsonl").read_bytes()
    assert training.watcher().follow(PlainScreen(), 1.0) == 0
    out, err = capsys.readouterr()
    assert watch.BEGAN_AGAIN in out
    assert "does not begin like a journal" in err


def test_a_folder_that_is_removed_meanwhile_is_an_error(tmp_path):
    def removed(training):
        for path in training.folder.iterdir():
            path.unlink()
        training.folder.rmdir()

    training = Training(tmp_path / "run", removed)
    training.begin()
    training.steps()
    with pytest.raises(RunFolderError, match="does not exist"):
        training.watcher().follow(PlainScreen(), 1.0)


def full_screen(width, height, **options):
    """Return a drawn terminal, and the stream that has what is drawn."""
    stream, rich_console = io.StringIO(), pytest.importorskip("rich.console")
    console = rich_console.Console(
        file=stream, force_terminal=True, width=width, height=height, legacy_windows=False, **options
    )
    return FullScreen(console), stream


@pytest.mark.parametrize(("size", "color"), [((80, 24), True), ((50, 12), False)])
def test_the_whole_terminal_is_drawn_and_given_back(tmp_path, capsys, size, color):
    screen, stream = full_screen(*size, no_color=not color)
    training = Training(tmp_path / "run", Training.steps, Training.end)
    training.begin()
    training.steps()
    assert training.watcher().follow(screen, 2.0) == 0
    drawn = stream.getvalue()
    assert drawn.startswith("\x1b[?1049h")
    assert drawn.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in drawn
    assert "last steps: 100 ms each" in drawn
    assert ("\x1b[1;3" in drawn or "\x1b[1m" in drawn) is color
    assert "the run has ended" in capsys.readouterr().out  # stays on the terminal


def test_ctrl_c_gives_the_terminal_back_and_is_status_130(tmp_path, monkeypatch):
    screen, stream = full_screen(80, 24)
    training = Training(tmp_path / "run")  # its first sleep is interrupted
    training.begin()
    monkeypatch.setattr(watch, "_screen", lambda: screen)
    monkeypatch.setattr(watch, "Watcher", lambda folder, attempt: training.watcher())
    assert main(["watch", str(tmp_path / "run")]) == INTERRUPTED
    assert stream.getvalue().count("\x1b[?1049l") == 1


def test_once_prints_a_run_without_an_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    training = Training(tmp_path / "runs" / "20261121-142530")
    training.begin()
    training.steps(30)
    out = printed(capsys, "watch", "--once")
    assert out.startswith("runs/20261121-142530: running")
    assert "train.py - 30 steps in 3.00 s" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    monkeypatch.setenv("LINES", "12")
    assert len(printed(capsys, "watch", "--once").splitlines()) == 11


def test_the_first_run_of_a_folder_is_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        training = Training(tmp_path / "runs" / "20261121-142530")
        training.begin()
        training.steps()
        training.end()

    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert main(["watch", "--interval", "3"]) == 0
    assert slept == [3.0]
    assert "waiting for the first run, Ctrl-C leaves. No runs in ./runs. Make one" in capsys.readouterr().err


def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    newer, empty, garbage = (tmp_path / name for name in ("newer", "empty", "garbage"))
    for folder, content in ((newer, b'{"kind":"begin","schema":9}\n'), (garbage, b"\x00\xff none\n" * 9)):
        folder.mkdir()
        (folder / "rank0.jsonl").write_bytes(content)
    empty.mkdir()
    for words in (["nothing"], ["newer"], ["garbage"], ["newer", "--once"], ["empty", "--once"], ["--once"]):
        refused(capsys, "watch", *words)
    for wrong in ("0", "nan", "soon"):
        assert main(["watch", "--interval", wrong]) == 2
    assert "is not a time from 0.2 to 3600 s" in capsys.readouterr().err


def test_without_rich_a_line_says_what_to_install(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(watch._screen(), PlainScreen)
    assert "pip install 'training-profiler[watch]'" in capsys.readouterr().err
