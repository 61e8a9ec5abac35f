import json

from tests.support.recording import FakeRun
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.storage.run_reader import read_run
from training_profiler.storage.series_reader import SeriesReader


def sample(wait, at_ns=0):
    values = {"cpu_wait": wait, "cpu_process": 1.0 - wait, "cpu_host": 1.0}
    return MachineSample(at_ns, values, facts={"host_cores": 4.0})


def series_in(folder):
    reader = SeriesReader()
    read_run(folder, series=reader)
    return reader.series(0)


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


def test_steps_and_sections_are_those_of_the_run(tmp_path):
    write(tmp_path, [[], []])
    series = series_in(tmp_path)
    assert (series.steps, len(series.stretches), series.rank) == (4, 2, 0)
    assert series.stretches[1].step_s.tolist() == [0.375, 0.375]
    assert series.stretches[1].sections["forward_pass"].tolist() == [0.25, 0.25]
    assert series.stretches[1].lost is None


def test_a_journal_without_series_has_one_block_for_each_interval(tmp_path):
    write(tmp_path, [[]])
    lines = [json.loads(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("steps_a_block", None)
        for section in line.get("sections", {}).values():
            section.pop("series_us", None)
    (tmp_path / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (stretch,) = series_in(tmp_path).stretches
    assert stretch.steps_a_block == 2
    assert stretch.sections["forward_pass"].tolist() == [0.5]


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
    assert [stretch.samples for stretch in series_in(tmp_path).stretches] == [16, 0, 16]
