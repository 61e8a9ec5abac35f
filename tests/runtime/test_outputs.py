"""What goes out of a session reaches the trackers of the primary rank, at its step."""

import json
import multiprocessing

import pytest

from tests.support.recording import FakeRun, snapshot_of
from training_profiler.ranks.summary import RankSummary
from training_profiler.runtime.outputs import Outputs
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.settings import Launch, Settings
from training_profiler.snapshot.ranks import RankId
from training_profiler.snapshot.snapshot import OTHER, EpochStats, Health, LoaderStats, Snapshot


def outlets_in(folder, **settings):
    run = FakeRun()
    chosen = Settings(dir=str(folder), sinks=("jsonl",), **settings)
    return Outputs(chosen, run.names, run.clock(), FaultGuard(), lambda tracker: None)


def rows_in(folder):
    files = list(folder.rglob("metrics.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_intervals_epochs_and_loaders_are_rows_at_their_step(tmp_path, capsys):
    outputs = outlets_in(tmp_path)
    outputs.begin_training()
    outputs.periodic(snapshot_of({"forward_pass": 0.5}, steps=50))
    outputs.loader_row(51, [LoaderStats("a", 1, 1, 0.1, data_avg_s=0.002)])
    outputs.epoch(EpochStats(1, 2.0, 60, None, None, None, {OTHER: 2.0}, None, None), 60)
    outputs.final(lambda: Snapshot(), (), Health)
    first, second, third = rows_in(tmp_path)
    assert (first["step"], first["profiling/batches_per_second"]) == (50, 10.0)
    assert (second["step"], second["profile/train/dl_a/time_data_ms"]) == (51, 2.0)
    assert (third["step"], third["profiling/epoch_total_time"]) == (60, 2.0)


def test_what_lies_between_the_last_step_and_the_end_is_no_interval(tmp_path, capsys):
    outputs = outlets_in(tmp_path)
    outputs.begin_training()
    outputs.interval_row(Snapshot(steps=50, wall_s=0.1, step=None))
    outputs.final(lambda: Snapshot(), (), Health)
    assert rows_in(tmp_path) == []


def test_ranks_that_do_not_report_have_no_trackers(tmp_path, capsys):
    outputs = outlets_in(tmp_path, rank=1)
    outputs.open()
    outputs.begin_training()
    outputs.periodic(snapshot_of({"forward_pass": 0.5}))
    outputs.final(lambda: Snapshot(), (), Health)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".jsonl"}
    assert rows_in(tmp_path) == []
    assert capsys.readouterr().out == ""


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def outlets_of(folder, rank):
    outputs = outlets_in(folder, rank=rank, launch=Launch(world_size=2, is_torchrun=True))
    outputs.channel.begin = lambda: None  # no thread: it has nobody to talk to
    return outputs


def test_every_rank_has_a_journal_in_the_folder_of_rank_0_and_what_it_tells_stands_in_it(tmp_path, capsys):
    first, second = outlets_of(tmp_path, 0), outlets_of(tmp_path, 1)
    first.open()
    second.open()
    second.tell(RankSummary(RankId(1, 2), steps=7))
    second.channel._transport.run_name = first._files.folder.name
    second.tell(RankSummary(RankId(1, 2), steps=8, is_final=True))
    second.close(Health, None)
    first.final(lambda: Snapshot(), (), Health)
    assert [(path.parent.name, path.name) for path in sorted(tmp_path.glob("*/rank*.jsonl"))] == [
        (first._files.folder.name, "rank0.jsonl"),
        (first._files.folder.name, "rank1.jsonl"),
    ]
    lines = lines_of(first._files.folder / "rank1.jsonl")
    assert [(line["kind"], line.get("steps")) for line in lines] == [
        ("begin", None),
        ("rank", 7),
        ("rank", 8),
        ("end", None),
    ]
    assert second.channel.folder == first.channel.folder == first._files.folder
    assert "run name" not in capsys.readouterr().out


@pytest.mark.parametrize(("is_torchrun", "world_size"), [(False, 1), (True, 2)])
def test_a_world_size_that_is_left_over_in_a_shell_makes_no_other_ranks(tmp_path, is_torchrun, world_size):
    outputs = outlets_in(tmp_path, launch=Launch(world_size=2, is_torchrun=is_torchrun))
    assert outputs.rank.who.world_size == world_size
    assert outputs.rank.is_one_of_many() is is_torchrun


def test_only_other_ranks_tell_on_the_board(tmp_path, capsys):
    for rank, told in ((0, 0), (1, 1)):
        outputs = outlets_of(tmp_path, rank)
        outputs.tell(RankSummary(RankId(rank, 2)))
        assert len(outputs.channel._outbox) == told
        outputs.close(Health, None)


@pytest.mark.parametrize(
    ("is_child", "launch", "opens"),
    [
        (False, Launch(), True),
        (True, Launch(), False),
        (True, Launch(world_size=2), False),
        (True, Launch(world_size=2, is_torchrun=True), True),
    ],
)
def test_a_process_that_does_not_know_its_rank_opens_no_folder_before_it_has_to(
    tmp_path, capsys, monkeypatch, is_child, launch, opens
):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if is_child else None)
    outputs = outlets_in(tmp_path, launch=launch)
    outputs.open()
    assert bool(list(tmp_path.iterdir())) is opens
    outputs.journal(lambda journal: None)
    assert len(list(tmp_path.iterdir())) == 1
    outputs.final(lambda: Snapshot(), (), Health)
