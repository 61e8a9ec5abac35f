"""What a journal has over time reads back: steps, blocks of sections, epochs, the machine and line samples."""

from collections import Counter

import msgspec
import pytest

from tests.support.recording import FakeRun
from training_profiler.model.interval import IntervalRecord
from training_profiler.model.location import NOT_SAMPLED, Location
from training_profiler.model.snapshot import BEFORE_TRAINING, OTHER, OUTSIDE_STEPS
from training_profiler.reports.exports import stacks_of
from training_profiler.reports.sections import table_label, training_rows
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.storage.run_reader import read_run
from training_profiler.storage.timeline_reader import RankReader, read_series

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


def test_epochs_are_there_and_lines_have_the_time_of_their_section_or_it_keeps_its_own(tmp_path):
    trained(tmp_path)
    (series,) = read_series(tmp_path)
    assert [(each.number, (each.end_ns - each.begin_ns) / S) for each in series.epochs] == [(1, 12.0)]
    assert sum(stretch.outside_ns for stretch in series.stretches) == 2 * S
    found = {name: {line.line: ns / S for line, ns in lines.items()} for name, lines in series.lines_ns.items()}
    unsampled = {"validation_epoch": {NOT_SAMPLED.line: 2.0}}
    assert found == {"forward_pass": {7: 10.0}, OTHER: {9: 2.0}, OUTSIDE_STEPS: {11: 0.5}, **unsampled}
    assert series.after_parts == {OUTSIDE_STEPS: 1.0, "validation_epoch": 1.0}
    bars = {row.section.name: row.percent for row in training_rows(read_run(tmp_path)) if row.percent}
    assert shares_of_stacks(series) == pytest.approx(
        {table_label(name): percent for name, percent in bars.items()}, abs=2
    )
    after = {stack: us for stack, us in stacks_of(series).items() if stack[0] == "after the last step"}
    assert after == {
        ("after the last step", "train.py:11 between"): 500_000,
        ("after the last step", "validation_epoch"): 2_000_000,
    }


def shares_of_stacks(series):
    """Return the percentages of the training time of the outermost frames."""
    stacks = Counter()
    for stack, us in stacks_of(series).items():
        stacks[stack[0]] += us
    del stacks["before the first step"], stacks["after the last step"]
    return {name: 100 * us / stacks.total() for name, us in stacks.items()}


@pytest.mark.parametrize("flush_s", [1, 10])
def test_time_of_lines_is_the_reports_at_any_rate_of_samples(flush_s, tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    for _ in range(800):  # a start-up of 8 s, with 100 samples a second
        run.sample_line(Location("train.py", 1, "setup"))
        run.clock.advance(0.01)
    for at in range(4_000):  # of steps, 40 s of them, one in 20 and then one in 100 has some
        times = at % (20 if at < 1000 else 100) == 0
        with run.section("data_loading"):
            run.sample_line(Location("train.py", 2, "load"), 2 * times)
            run.clock.advance(0.002)
        with run.section("forward_pass"):
            run.sample_line(Location("train.py", 3, "early" if at < 2000 else "late"), 8 * times)
            run.clock.advance(0.008)
        run.step()
        if at % (100 * flush_s) == 0:
            run.flush()
    run.flush()
    (series,), report = read_series(tmp_path), read_run(tmp_path)
    seconds = {name: sum(lines.values()) / S for name, lines in series.lines_ns.items()}
    steps = {"data_loading": 8, "forward_pass": 32, OTHER: 0}
    assert seconds == pytest.approx({BEFORE_TRAINING: 8, OUTSIDE_STEPS: 0, **steps}, abs=0.01)
    assert shares_of_stacks(series) == pytest.approx({"data_loading": 20.0, "forward_pass": 80.0}, abs=2)
    shares = {line.function: ns / S / report.wall_s for line, ns in series.lines_ns["forward_pass"].items()}
    assert shares == pytest.approx({"early": 16 / 48, "late": 16 / 48}, abs=0.03)
    assert shares == pytest.approx({line.function: line.share for line in report.lines["forward_pass"]})


def test_machine_levels_are_means_of_the_stretch(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    run.step(forward_pass=1.0)
    totals = run.totals()
    totals.machine.add_samples([MachineSample(0, {"cpu_host": value}) for value in (0.2, 0.4)])
    run.flush()
    (series,) = read_series(tmp_path)
    assert series.stretches[0].levels["cpu_host"] == pytest.approx(0.3)


def interval(sections, step_ns, **options):
    data = {
        "begin_ns": 0, "end_ns": 10**10, "first_step": 0, "step_ns": step_ns, "sections": sections, "parents": [],
        "coupling": [0, 0.0, 0.0], "first_fetch_ns": None, "dropped": 0, "unended": 0, **options,
    }  # fmt: skip
    return msgspec.convert(data, IntervalRecord)


def test_blocks_are_in_ns_time_in_no_section_is_other_and_sections_that_share_a_name_add_up():
    sections = {"forward_pass": {"series_us": [3, 4]}, "": {"series_us": [1, 0]}, "idle": {"self_ns": 7}}
    found = interval(sections, [5000, 5000, 5000], steps_a_block=2)
    assert found.blocks(lambda name: name or OTHER) == (2, {"forward_pass": (3000, 4000), OTHER: (1000, 0)})
    assert found.blocks(lambda name: "(other names)").by_section_ns == {"(other names)": (4000, 4000)}


@pytest.mark.parametrize("step_ns", [[5000, 6000], []])
def test_an_interval_without_series_is_one_block(step_ns):
    blocks = interval({"forward_pass": {"step_self_ns": 900}}, step_ns).blocks(lambda name: name or OTHER)
    assert blocks == ((2, {"forward_pass": (900,)}) if step_ns else (1, {}))


def sample(wait, at_ns=0):
    values = {"cpu_wait": wait, "cpu_process": 1.0 - wait, "cpu_host": 1.0}
    return MachineSample(at_ns, values, facts={"host_cores": 4.0})


def series_in(folder):
    reader = RankReader()
    read_run(folder, series=reader)
    return reader.series()


def write(folder, waits):
    """Write a journal with two steps in each interval, which has so many samples of the machine."""
    run = FakeRun(journal=folder / "rank0.jsonl")
    for samples in waits:
        for _ in range(2):
            run.spend("forward_pass", 0.25)
            run.step(optimizer_step=0.125)
        run.drain()
        run.accumulator.totals.machine.add_samples([sample(wait) for wait in samples])
        run.flush()
    return run


def test_lost_time_is_known_from_three_samples_on_and_guessed_at_the_end(tmp_path):
    write(tmp_path, [[0.5, 0.5], [0.5], [0.1, 0.1, 0.1], [0.3]])
    lost = [round(stretch.lost, 3) for stretch in series_in(tmp_path).stretches]
    assert lost == [0.5, 0.5, 0.1, 0.3]
    (tmp_path / "short").mkdir()
    write(tmp_path / "short", [[0.4]])
    assert [round(stretch.lost, 3) for stretch in series_in(tmp_path / "short").stretches] == [0.4]


def test_a_batch_fetched_before_the_interval_of_its_step_is_one_of_its_samples(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    for fetched, steps in ((8, 0), (8, 1), (0, 1), (16, 2)):
        for _ in range(steps):
            run.step(forward_pass=1.0)
        run.accumulator.totals.samples = fetched
        run.flush()
    assert [stretch.samples for stretch in series_in(tmp_path).stretches] == [None, 16, 0, 16]
