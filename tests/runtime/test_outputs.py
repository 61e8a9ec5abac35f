"""Outputs of a session reach the trackers of the primary rank at the right step."""

import io
import json
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.recording import FakeRun, snapshot_of
from tests.support.session import FakeTraining, session_of
from training_profiler.model.ranks import RankId
from training_profiler.model.snapshot import OTHER, EpochStats, Health, LoaderStats, Snapshot
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.summary import RankSummary
from training_profiler.recording.recorder import TrainingProgress
from training_profiler.runtime import terminal
from training_profiler.runtime.terminal import NEVER_S, OutputThread
from training_profiler.safety.fault_guard import BackgroundThread, FaultGuard
from training_profiler.settings.settings import Launch, Settings
from training_profiler.storage.history import INDEX


def pipeline_in(folder, **settings):
    """Return the pipeline of a session that writes to ``folder`` and has not started."""
    run = FakeRun()
    chosen = Settings(dir=str(folder), sinks=("jsonl",), **settings)
    session = session_of(run, chosen)
    return session.run


def outputs_in(folder, **settings):
    return pipeline_in(folder, **settings).outputs


def rows_in(folder):
    files = list(folder.rglob("metrics.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


class DrawnStatus:
    """A status line of which only the first drawing is of interest."""

    def __init__(self):
        self.has_begun, self.asked, self.drawn = False, threading.Event(), threading.Event()

    @property
    def is_active(self):
        self.asked.set()
        return self.has_begun

    def start(self, stream):
        self.has_begun = True
        return True

    def show(self, text):
        self.drawn.set()

    def clear(self):
        pass

    stop = clear


def test_a_status_line_is_drawn_that_begins_while_the_console_has_nothing_to_do(tmp_path, monkeypatch):
    terminal = outputs_in(tmp_path).terminal
    monkeypatch.setattr("training_profiler.runtime.terminal.STATUS_S", 0.001)
    status = terminal.status = DrawnStatus()
    terminal._leave_to_thread("")
    assert status.asked.wait(30)
    terminal.start_status()
    assert status.drawn.wait(30)
    terminal.close()


def test_a_file_gets_a_line_of_status_where_reports_leave_a_long_gap(tmp_path, capsys, monkeypatch):
    terminal = outputs_in(tmp_path).terminal
    written, now = io.TextIOWrapper(io.BytesIO()), [100.0]
    terminal._progress = TrainingProgress()
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr("training_profiler.runtime.terminal.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(terminal.thread, "put", lambda job, size=0: True)

    def wait(seconds, ended):
        now[0], terminal._progress.steps = now[0] + seconds, terminal._progress.steps + ended
        return terminal._draw_status()

    assert terminal._draw_status() == NEVER_S  # it was not asked for
    terminal.start_status()
    assert wait(4, 10) == 11
    terminal.print("a report\n")
    assert wait(8, 10) == 7
    assert wait(7, 5) == 15
    assert wait(981, 0) == pytest.approx(100)  # nothing new; later lines are a tenth of the run apart
    terminal.set_status("forward_pass 41%")
    assert wait(112, 224) == pytest.approx(111.2)
    terminal.stop_status()
    assert wait(1000, 10) == NEVER_S
    written.seek(0)
    lines = ["Profiler: step 25 | 1.00 steps/s", "Profiler: step 249 | 2.00 steps/s | forward_pass 41%"]
    assert [line for line in written.read().splitlines() if line.startswith("Profiler")] == lines


def test_intervals_epochs_and_loaders_are_rows_at_their_step(tmp_path, capsys):
    outputs = outputs_in(tmp_path)
    outputs.start_trackers()
    outputs.periodic(snapshot_of({"forward_pass": 0.5}, steps=50), Snapshot)
    outputs.loader_row(51, [LoaderStats("a", 1, 1, 0.1, data_avg_s=0.002)])
    outputs.epoch(EpochStats(1, 2.0, 60, None, None, None, {OTHER: 2.0}, None, None), 60)
    outputs.final(lambda: Snapshot(), (), Health)
    outputs.stop()
    first, second, third = rows_in(tmp_path)
    assert (first["step"], first["profiling/batches_per_second"]) == (50, 10.0)
    assert (second["step"], second["profile/train/dl_a/time_data_ms"]) == (51, 2.0)
    assert (third["step"], third["profiling/epoch_total_time"]) == (60, 2.0)


def test_reports_that_the_user_did_not_ask_for_leave_time_between_them(tmp_path, capsys, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("training_profiler.runtime.outputs.time.monotonic", lambda: now_s[0])
    for is_given, expected in ((False, [False, True, False, True]), (True, [True] * 4)):
        outputs = outputs_in(tmp_path, is_log_every_given=is_given)
        printed = []
        for after_s in (9.9, 0.2, 9.9, 0.2):
            now_s[0] += after_s
            outputs.periodic(snapshot_of({"forward_pass": 0.5}, steps=50), Snapshot)
            printed.append("Profiling Report" in capsys.readouterr().out)
        outputs.stop()
        assert printed == expected


def test_a_report_is_only_made_for_someone(tmp_path, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("training_profiler.runtime.outputs.time.monotonic", lambda: now_s[0])
    every = [outputs_in(tmp_path) for _ in range(4)]
    plain, given, of_another_rank, _ = every
    for outputs in every[:3]:
        outputs.settings = replace(outputs.settings, sinks=())
    given.settings = replace(given.settings, is_log_every_given=True)
    of_another_rank.rank.who = RankId(1, 2)
    assert [outputs.wants_report() for outputs in every] == [False, True, True, True]
    now_s[0] += 10
    assert plain.wants_report()
    now_s[0] -= 1
    assert not plain.wants_report()
    plain.pop_rows()  # the program asks for them from now on
    assert plain.wants_report()
    for outputs in every:
        outputs.stop()


def test_cells_of_a_notebook_are_summed_up_once_and_repeat_nothing_while_the_run_is_about_as_long(
    tmp_path, capsys, monkeypatch
):
    now_s, sent = [100.0], []
    monkeypatch.setattr("training_profiler.runtime.outputs.time.monotonic", lambda: now_s[0])
    outputs = outputs_in(tmp_path)
    monkeypatch.setattr(outputs, "interval_row", lambda snapshot: sent.append(snapshot.steps))

    def cell(first_step, steps, after_s):
        now_s[0] += after_s
        run = snapshot_of({"forward_pass": 0.5}, steps=steps, step_s=0.001)
        ends = outputs.cell(replace(run, first_step=first_step), lambda: run)
        printed = capsys.readouterr().out
        kinds = ("Final Profiling Summary", "Profiling Report", "Profiler: step")
        (kind,) = (kind for kind in kinds if kind in printed)
        return kind, len(printed.splitlines()) == 1, ends

    assert cell(0, 30, 1) == ("Final Profiling Summary", False, True)
    assert cell(30, 90, 5) == ("Profiler: step", True, False)  # right after a report
    assert cell(30, 150, 6) == ("Profiling Report", False, True)
    assert cell(150, 153, 60) == ("Profiler: step", True, False)  # only a few steps
    assert cell(150, 300, 60) == ("Final Profiling Summary", False, True)  # much longer than the first
    assert cell(300, 2990, 60) == ("Profiling Report", False, True)
    assert sent == [30, 150, 300, 2990]
    outputs.stop()


def test_an_epoch_that_was_detected_has_a_line_and_a_marked_one_a_summary(tmp_path, capsys):
    outputs = outputs_in(tmp_path)
    waits = {"data_loading": 1.0, "first_fetch": 0.2, OTHER: 0.8}
    outputs.epoch(EpochStats(1, 2.0, 60, 60, 600, None, waits, None, None), 60, is_marked=False)
    outputs.epoch(EpochStats(2, 2.5, 60, 60, None, None, {OTHER: 2.5}, None, None), 120, is_marked=False)
    outputs.epoch(EpochStats(3, 0.9, 60, 60, None, None, {OTHER: 0.9}, None, None), 180, is_marked=False)
    assert capsys.readouterr().out.splitlines() == [
        "Profiler: epoch 1: 2.00 s, 60% waiting for data, 300 samples/s",
        "Profiler: epoch 2: 2.50 s, 0% waiting for data, 25% longer than before",
    ]
    outputs.epoch(EpochStats(4, 0.9, 60, 60, None, None, {OTHER: 0.9}, None, None), 240)
    assert "=== Epoch 4 Profiling Summary ===" in capsys.readouterr().out
    outputs.stop()


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def no_thread(monkeypatch):
    monkeypatch.setattr(RankChannel, "start", lambda channel: None)  # there is no store to connect to


def rank_in(folder, rank):
    return pipeline_in(folder, rank=rank, launch=Launch(world_size=2, is_torchrun=True))


def test_every_rank_writes_its_summaries_to_a_journal_in_the_folder_of_rank_0(tmp_path, capsys, no_thread):
    first, second = rank_in(tmp_path, 0), rank_in(tmp_path, 1)
    first.start()
    second.start()
    first.outputs.settle()
    folder = first.outputs._files.folder
    second._publish(RankSummary(RankId(1, 2), steps=7))
    second.exchange.channel.inbox.run_name = folder.name
    second._publish(RankSummary(RankId(1, 2), steps=8, is_final=True))
    second.outputs.close(Health, None)
    first.outputs.final(lambda: Snapshot(), (), Health)
    for pipeline in (first, second):
        pipeline.outputs.stop()
    assert [(path.parent.name, path.name) for path in sorted(tmp_path.glob("*/rank*.jsonl"))] == [
        (folder.name, "rank0.jsonl"),
        (folder.name, "rank1.jsonl"),
    ]
    lines = lines_of(folder / "rank1.jsonl")
    assert [(line["kind"], line.get("steps")) for line in lines] == [
        ("begin", None),
        ("rank", 7),
        ("rank", 8),
        ("end", None),
    ]
    assert second.exchange.channel.stores.folder == first.exchange.channel.stores.folder == folder
    assert "run name" not in capsys.readouterr().out


LONG_S = 60.0  # longer than any machine takes


@pytest.fixture
def thread():
    thread = OutputThread("test", FaultGuard().run, "test", most_jobs=4, most_bytes=100)
    yield thread
    thread.stop()
    assert thread.join(LONG_S)


class Frozen:
    """A job that waits until ``thaw``."""

    def __init__(self, thread):
        self._is_thawed, self._is_running = threading.Event(), threading.Event()
        assert thread.put(self._wait)
        assert self._is_running.wait(LONG_S)

    def _wait(self):
        self._is_running.set()
        self._is_thawed.wait(LONG_S)

    def thaw(self):
        self._is_thawed.set()


def test_waiting_bytes_are_limited_and_a_wait_is_given_up_without_progress(thread):
    frozen = Frozen(thread)
    assert thread.put(lambda: None, 60)
    assert not thread.put(lambda: None, 60)
    assert thread.put(lambda: None, 40)
    assert not thread.wait(0.01)
    assert not thread.wait(LONG_S)  # at once: nothing has moved since
    frozen.thaw()
    while thread.waiting:
        pass
    assert thread.wait(LONG_S)
    assert thread.put(lambda: None, 1000)  # a single large job is taken


def test_without_a_thread_jobs_are_done_at_once(monkeypatch):
    def cannot_start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BackgroundThread, "start", cannot_start)
    thread, done = OutputThread("test", FaultGuard().run, "test"), []
    assert thread.put(lambda: done.append(threading.current_thread()))
    assert done == [threading.current_thread()]
    assert thread.wait(LONG_S)


def test_regular_work_is_done_between_jobs_and_survives_its_failure(monkeypatch):
    monkeypatch.setattr(terminal, "IDLE_S", 0.0)
    ticks, has_ticked = [], threading.Event()

    def tick():
        ticks.append(1)
        if len(ticks) == 3:
            has_ticked.set()
            raise ValueError("a mistake")
        return 0.0 if len(ticks) < 3 else LONG_S

    guard, done = FaultGuard(), []
    thread = OutputThread("test", guard.run, "test", tick)
    thread.put(lambda: None)
    assert has_ticked.wait(LONG_S)
    thread.put(lambda: done.append(1))
    assert thread.wait(LONG_S)
    thread.stop()
    assert thread.join(LONG_S)
    assert (done, list(guard.disabled), len(ticks)) == ([1], ["test by time"], 3)


def end_of_run(folder, step_s=0.1, **settings):
    """Train, and end the run."""
    training = FakeTraining(folder, **settings)
    for at in range(200):
        training.run.step(forward_pass=step_s * (1 + 0.02 * ((at * 7) % 5 - 2)))
        training.session.step()
    training.session.close()


@pytest.mark.parametrize("has_history", [True, False])
def test_the_end_of_a_run_compares_it_with_those_before_it(tmp_path, capsys, monkeypatch, has_history):
    monkeypatch.setattr("training_profiler.runtime.outputs.DISK_S", 60.0)  # for a busy machine
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    for _ in range(3):  # the first one has no index
        end_of_run(tmp_path, history=has_history)
    capsys.readouterr()
    end_of_run(tmp_path, 0.12, history=has_history)
    said = "20% slower a step than your last 2 runs (" in " ".join(capsys.readouterr().out.split())
    assert said is has_history
    newest = max(folder for folder in tmp_path.iterdir() if folder.is_dir())
    assert (json.loads((newest / "report.json").read_text())["history"] is not None) is has_history
    assert ("slower a step than" in (newest / "report.txt").read_text()) is has_history
    assert (tmp_path / INDEX).exists() is has_history


@pytest.mark.parametrize("error", [ValueError("a mistake of ours"), None])
def test_a_history_that_fails_or_has_no_index_is_a_note_and_the_report_is_there(tmp_path, capsys, monkeypatch, error):
    def fails(*_):
        if error is not None:
            raise error
        return None, "no index of runs in here"

    monkeypatch.setattr("training_profiler.runtime.outputs.remember", fails)
    end_of_run(tmp_path)
    assert "VERDICT" in capsys.readouterr().out
    (report,) = tmp_path.glob("*/report.json")
    health = json.loads(report.read_text())["health"]
    assert health["disabled"] == (["history of runs (ValueError: a mistake of ours)"] if error else [])
    assert ("no index of runs in here" in health["notes"]) is (error is None)
