"""What goes out of a session reaches the trackers of the primary rank, at its step."""

import json

from fakes import FakeRun, snapshot_of

from training_profiler.outlets import Outlets
from training_profiler.settings import Settings
from training_profiler.snapshot import OTHER, EpochFigures, Health, LoaderFigures, Snapshot
from training_profiler.upkeep import Upkeep


def outlets_in(folder, **settings):
    run = FakeRun()
    chosen = Settings(dir=str(folder), sinks=("jsonl",), **settings)
    return Outlets(chosen, run.names, run.clock(), Upkeep(run.recorder, 0.0), lambda tracker: None)


def rows_in(folder):
    files = list(folder.rglob("metrics.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_intervals_epochs_and_loaders_are_rows_at_their_step(tmp_path, capsys):
    outlets = outlets_in(tmp_path)
    outlets.begin_training()
    outlets.periodic(snapshot_of({"forward_pass": 0.5}, steps=50))
    outlets.loader_row(51, [LoaderFigures("a", 1, 1, 0.1, data_avg_s=0.002)])
    outlets.epoch(EpochFigures(1, 2.0, 60, None, None, None, {OTHER: 2.0}, None, None), 60)
    outlets.final(lambda: Snapshot(), (), Health)
    first, second, third = rows_in(tmp_path)
    assert (first["step"], first["profiling/batches_per_second"]) == (50, 10.0)
    assert (second["step"], second["profile/train/dl_a/time_data_ms"]) == (51, 2.0)
    assert (third["step"], third["profiling/epoch_total_time"]) == (60, 2.0)


def test_what_lies_between_the_last_step_and_the_end_is_no_interval(tmp_path, capsys):
    outlets = outlets_in(tmp_path)
    outlets.begin_training()
    outlets.interval_row(Snapshot(steps=50, wall_s=0.1, step=None))
    outlets.final(lambda: Snapshot(), (), Health)
    assert rows_in(tmp_path) == []


def test_ranks_that_do_not_report_have_no_trackers(tmp_path, capsys):
    outlets = outlets_in(tmp_path, rank=1)
    outlets.open()
    outlets.begin_training()
    outlets.periodic(snapshot_of({"forward_pass": 0.5}))
    outlets.final(lambda: Snapshot(), (), Health)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""
