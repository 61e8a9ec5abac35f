"""Reports of many ranks whose files may be elsewhere, torn, or of another attempt."""

import json

import pytest

from tests.support.many_ranks import RUN, S, simple_stats, summary_by, write_rank
from training_profiler.base.errors import RunFolderError
from training_profiler.model.ranks import AttemptStats, GradientSyncStats
from training_profiler.storage import run_reader
from training_profiler.storage.run_reader import read_run


@pytest.fixture(autouse=True)
def simple_ranks(monkeypatch):
    monkeypatch.setattr(run_reader, "all_ranks_stats", simple_stats)


def ranks_in(snapshot):
    return [(row.who.rank, row.steps) for row in snapshot.ranks.ranks]


@pytest.mark.parametrize("names", [("node0", "node1"), (RUN, "node1")])
def test_one_folder_per_machine_is_one_run(tmp_path, names):
    for rank in range(4):
        write_rank(tmp_path / names[rank // 2], rank)
    assert ranks_in(read_run(tmp_path)) == [(rank, 10) for rank in range(4)]


def test_a_broken_journal_is_skipped_and_named_once(tmp_path):
    path = write_rank(tmp_path, 0)
    path.write_text(path.read_text().replace('"step_ns":[', '"step_ns":["x",'))
    write_rank(tmp_path, 1, steps=15)
    read = read_run(tmp_path)
    assert (read.steps, ranks_in(read)) == (15, [(0, 10), (1, 15)])  # its last summary is complete
    above, sentence = read.ranks.left_out
    assert above == "the figures above are rank 1's: rank 0's journal cannot be read"
    assert sentence.startswith(f"left out: {path} holds a line that is not a journal's: ")


def test_left_out_files_are_notes_without_rank_stats(tmp_path):
    write_rank(tmp_path, 0, sends=False, who={"world_size": 1})
    (tmp_path / "rank1.jsonl").write_bytes(b"")
    read = read_run(tmp_path)
    assert read.ranks is None
    none = "does not begin like a journal; is it a file of the profiler's?"
    assert read.health.notes == (f"left out: rank1.jsonl {none}",)


def test_earlier_attempts_are_listed_with_their_ends(tmp_path):
    write_rank(tmp_path, 0, steps=20, ended_by="SIGTERM")
    write_rank(tmp_path, 1, steps=20)
    write_rank(tmp_path, 1, attempt=1, steps=15, is_ended=False)
    write_rank(tmp_path, 0, attempt=2, steps=5)
    read = read_run(tmp_path)
    assert (read.steps, ranks_in(read), read.ranks.missing) == (5, [(0, 5)], (1, 2, 3))
    assert read.attempts == (
        AttemptStats(0, 20, 20.0, "SIGTERM", is_ended=True),
        AttemptStats(1, 15, 15.0, None, is_ended=False),
    )


def test_a_requested_attempt_has_a_note_if_not_the_last(tmp_path):
    write_rank(tmp_path, 0, steps=20, ended_by="SIGTERM")
    write_rank(tmp_path, 0, attempt=1, steps=5)
    read = read_run(tmp_path, attempt=0)
    assert (read.steps, read.ended_by, read.attempts) == (20, "SIGTERM", ())
    assert read.health.notes == ("this is attempt 0; the last one was attempt 1",)
    with pytest.raises(RunFolderError, match="has no attempt 2; it has attempts 0, 1; example: "):
        read_run(tmp_path, attempt=2)


def test_dropped_intervals_have_a_note(tmp_path):
    path = write_rank(tmp_path, 0)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], '{"kind":"held","dropped":1}\n', *lines[3:]]))
    read = read_run(tmp_path)
    assert (read.steps, read.health.notes) == (
        5,
        ("1 interval was dropped before this rank knew of the run's folder",),
    )


def test_gradient_sync_is_of_the_reported_rank(tmp_path):
    write_rank(tmp_path, 0)
    path = write_rank(tmp_path, 1, is_ended=False)
    assert read_run(tmp_path).gradient_sync is None
    exchanged = {"exchanges": 10, "sampled": 4, "exchange_ns": 20 * S, "exchange_hidden_ns": 15 * S}
    with path.open("a") as file:
        file.write(json.dumps({"kind": "rank", **summary_by(1, 10, 10, **exchanged).to_data()}) + "\n")
    assert read_run(tmp_path).gradient_sync is None
    (tmp_path / "rank0.jsonl").unlink()
    assert read_run(tmp_path).gradient_sync == GradientSyncStats(10, 4, 2.0, 0.75, 0.5)


def test_thresholds_come_from_the_folder_of_the_journal(tmp_path):
    write_rank(tmp_path / "node0", 0)
    write_rank(tmp_path / "node1", 2)
    (tmp_path / "node0" / "meta.json").write_text(json.dumps({"settings": {"thresholds": {"straggler": 0.3}}}))
    assert read_run(tmp_path).thresholds == {"straggler": 0.3}


def test_a_folder_of_runs_is_not_a_folder_of_machines(tmp_path):
    write_rank(tmp_path / RUN, 0)
    with pytest.raises(RunFolderError, match=f"holds a run; give that folder itself, e.g. .*{RUN}"):
        read_run(tmp_path)
    write_rank(tmp_path / "20261121-150000", 0, run="20261121-150000")
    with pytest.raises(RunFolderError, match=r"holds 2 runs; give that folder itself, e.g. .*20261121-150000"):
        read_run(tmp_path)


def test_a_folder_of_garbage_is_rejected(tmp_path):
    (tmp_path / "rank2-attempt1.jsonl").write_bytes(b"x")
    (tmp_path / "rank1.jsonl").mkdir()
    with pytest.raises(RunFolderError, match=r"rank2-attempt1.jsonl does not begin like a journal"):
        read_run(tmp_path)
