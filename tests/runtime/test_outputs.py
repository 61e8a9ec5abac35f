"""Outputs of a session reach the trackers of the primary rank at the right step."""

import json
import threading

import pytest

from tests.support.recording import FakeRun, snapshot_of
from tests.support.session import session_of
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.summary import RankSummary
from training_profiler.settings.settings import Launch, Settings
from training_profiler.snapshot.ranks import RankId
from training_profiler.snapshot.snapshot import OTHER, EpochStats, Health, LoaderStats, Snapshot


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
    terminal = outputs_in(tmp_path)._terminal
    monkeypatch.setattr("training_profiler.runtime.terminal.STATUS_S", 0.001)
    status = terminal._status = DrawnStatus()
    terminal._leave_to_thread("")
    assert status.asked.wait(30)
    terminal.start_status()
    assert status.drawn.wait(30)
    terminal.close()


def test_intervals_epochs_and_loaders_are_rows_at_their_step(tmp_path, capsys):
    outputs = outputs_in(tmp_path)
    outputs.start_trackers()
    outputs.periodic(snapshot_of({"forward_pass": 0.5}, steps=50))
    outputs.loader_row(51, [LoaderStats("a", 1, 1, 0.1, data_avg_s=0.002)])
    outputs.epoch(EpochStats(1, 2.0, 60, None, None, None, {OTHER: 2.0}, None, None), 60)
    outputs.final(lambda: Snapshot(), (), Health)
    outputs.stop()
    first, second, third = rows_in(tmp_path)
    assert (first["step"], first["profiling/batches_per_second"]) == (50, 10.0)
    assert (second["step"], second["profile/train/dl_a/time_data_ms"]) == (51, 2.0)
    assert (third["step"], third["profiling/epoch_total_time"]) == (60, 2.0)


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
    second.exchange._channel.run_name = folder.name
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
    assert second.exchange._channel._folder == first.exchange._channel._folder == folder
    assert "run name" not in capsys.readouterr().out
