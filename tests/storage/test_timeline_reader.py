"""What a journal has over time reads back: steps, blocks of sections, epochs, the machine and line samples."""

import pytest

from tests.support.many_ranks import write_rank
from tests.support.recording import FakeRun
from training_profiler.model.location import Location
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.snapshot.snapshot import OTHER, OUTSIDE_STEPS
from training_profiler.storage.timeline_reader import read_series

S = 1_000_000_000


def trained(folder):
    run = FakeRun(journal=folder / "rank0.jsonl")
    run.begin_epoch(1)
    for number in range(4):
        with run.section("forward_pass"):
            run.sample_line(Location("train.py", 7, "loss", inside="lib/a.py:3 f > lib/b.py:4 g"), 2)
            run.clock.advance(1.0 + number)
        run.sample_line(Location("train.py", 9, "main"))
        run.clock.advance(0.5)
        run.step()
    run.end_epoch(4, 16)
    run.sample_line(Location("train.py", 11, "between"), 3)
    run.clock.advance(0.5)
    run.spend("validation_epoch", 2.0)
    run.flush()
    return run


def test_steps_and_sections_are_there_one_by_one(tmp_path):
    trained(tmp_path)
    (series,) = read_series(tmp_path)
    assert series.steps == 4
    stretch = next(each for each in series.stretches if len(each.steps_ns))
    assert [ns / S for ns in stretch.steps_ns] == [1.5, 2.5, 3.5, 4.5]
    assert stretch.steps_a_block == 1
    assert [ns / S for ns in stretch.blocks_ns["forward_pass"]] == [1.0, 2.0, 3.0, 4.0]
    assert [ns / S for ns in stretch.blocks_ns[OTHER]] == [0.5] * 4


def test_epochs_and_time_outside_steps_are_there(tmp_path):
    trained(tmp_path)
    (series,) = read_series(tmp_path)
    ((number, begin_ns, end_ns),) = [(each.number, each.begin_ns, each.end_ns) for each in series.epochs]
    assert (number, (end_ns - begin_ns) / S) == (1, 12.0)
    assert sum(stretch.outside_ns for stretch in series.stretches) == 2 * S


def test_samples_of_no_section_are_in_steps_or_outside_and_count_once(tmp_path):
    trained(tmp_path)
    (series,) = read_series(tmp_path)
    found = {
        name: {line.line: samples for line, samples in lines.items()} for name, lines in series.samples.items() if lines
    }
    assert found == {"forward_pass": {7: 8}, OTHER: {9: 4}, OUTSIDE_STEPS: {11: 3}}


def test_machine_levels_are_means_of_the_stretch(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    run.step(forward_pass=1.0)
    totals = run.totals()
    totals.machine.add_samples([MachineSample(0, {"cpu_host": value}) for value in (0.2, 0.4)])
    run.flush()
    (series,) = read_series(tmp_path)
    assert series.stretches[0].levels["cpu_host"] == pytest.approx(0.3)


def test_all_ranks_are_there_and_damaged_lines_are_left_out(tmp_path):
    for rank in (1, 0):
        path = write_rank(tmp_path, rank)
        path.write_bytes(path.read_bytes() + b'{"kind":"interval"}\n{"kind":"int')
    assert [(series.rank, series.steps, series.host) for series in read_series(tmp_path)] == [
        (0, 10, "node0"),
        (1, 10, "node0"),
    ]
