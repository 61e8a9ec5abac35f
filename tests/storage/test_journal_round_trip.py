"""A journal reads back as the stats of the running session."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.device import device_run
from tests.support.recording import FakeRun
from training_profiler.base.errors import RunFolderError
from training_profiler.model.loader_workers import WorkerLine, WorkerMemory, WorkerSums
from training_profiler.model.location import Location
from training_profiler.model.step_flops import StepFlops
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.snapshot.snapshot import Health
from training_profiler.storage.run_reader import read_run

JOURNAL = "rank0.jsonl"


def train(run: FakeRun, flushes_within_steps: bool = False) -> None:
    """Pass two epochs with validation, nested sections and an uneven loader."""
    for epoch in (1, 2):
        run.begin_epoch(epoch)
        for i in range(30):
            run.spend("data_loading", 0.05 + 0.01 * (i % 3))
            with run.section("forward_pass"):
                run.spend("attention", 0.1)
                if flushes_within_steps:
                    run.flush()
                run.clock.advance(0.02)
            if flushes_within_steps:
                run.flush()
            run.step(optimizer_step=0.03 + 0.001 * i)
        with run.section("validation_epoch"):
            run.spend("forward_pass", 0.5)
        run.end_epoch(batches=30, samples=960)
    run.flush()


def journal_in(folder, **options):
    return FakeRun(journal=folder / JOURNAL, **options)


def assert_reads_back(run: FakeRun, folder) -> None:
    live, read = run.snapshot(), read_run(folder)
    assert read.sections == live.sections
    assert read.lines == live.lines
    assert read.step == live.step
    assert read.epochs == live.epochs
    assert read.loaders == live.loaders
    assert read.machine == live.machine
    assert read.throughput == live.throughput
    assert (read.steps, read.wall_s) == (live.steps, live.wall_s)


@pytest.mark.parametrize("warmup", [None, 3])
@pytest.mark.parametrize("flushes_within_steps", [False, True])
def test_a_journal_reads_back_as_the_stats_of_the_run(tmp_path, warmup, flushes_within_steps):
    run = journal_in(tmp_path, warmup=warmup)
    train(run, flushes_within_steps)
    assert_reads_back(run, tmp_path)
    assert warmup is None or read_run(tmp_path).step.warmup_count == warmup


def test_steps_slowed_by_capture_read_back(tmp_path):
    run = journal_in(tmp_path)
    run.accumulator.slowed_by_capture.begin(30)
    run.accumulator.slowed_by_capture.end(34)
    train(run)
    assert_reads_back(run, tmp_path)
    assert read_run(tmp_path).step.disturbed_count == 5


def test_device_time_reads_back(tmp_path, monkeypatch):
    run = device_run(monkeypatch, journal=tmp_path / JOURNAL)
    train(run)
    run.work("forward_pass", device_s=2.0)
    run.flush()
    run.clock.advance(5)  # added in an interval without a span of the section
    live = run.snapshot()
    assert_reads_back(run, tmp_path)
    assert read_run(tmp_path).device == live.device == run.time.stats()
    assert live.sections["forward_pass"].device_count == 61
    assert live.device.spans == sum(section.device_count for section in live.sections.values())


def test_a_journal_of_a_version_without_device_time_is_read(tmp_path):
    run = journal_in(tmp_path)
    train(run)
    assert '"device' not in (tmp_path / JOURNAL).read_text()
    assert read_run(tmp_path).device is None


def test_loaders_read_back(tmp_path):
    run = journal_in(tmp_path)
    counts = LoaderCounts("train")
    counts.add(32, 500_000_000, True)
    counts.by_phase["train"].cut_passes = 1
    run.loaders = [counts]
    train(run)
    assert_reads_back(run, tmp_path)
    assert [loader.cut_passes for loader in read_run(tmp_path).loaders] == [1]
    assert [(loader.name, loader.batches, loader.samples, loader.wait_s) for loader in read_run(tmp_path).loaders] == [
        ("train", 1, 32, 0.5)
    ]


def test_the_work_of_loader_workers_reads_back(tmp_path):
    run = journal_in(tmp_path)
    counts = LoaderCounts("train")
    counts.add(32, 500_000_000, True)
    line = WorkerLine("transform", "data.py", 31, "Blur.__call__", "", 48)
    counts.use_workers(WorkerSums(2, 20, 900, 800, 90, 700, 50, 1, 3, 60, 20, (line,), (WorkerMemory(1, 2, 3),)))
    run.loaders = [counts]
    train(run)
    assert_reads_back(run, tmp_path)
    (workers,) = [loader.workers for loader in read_run(tmp_path).loaders]
    assert (workers.batches, workers.lines[0].place, workers.memory_bytes) == (20, "data.py:31", 2)


def test_the_cost_of_each_loader_reads_back(tmp_path):
    run = journal_in(tmp_path)
    main, aux = LoaderCounts("main"), LoaderCounts("aux")
    run.loaders, main.requested_share = [main, aux], 0.75
    for loader in (main, aux, main, main):
        run.recorder.buffer().record_loader(loader.loader_id, run.clock())
        run.spend("data_loading", 0.1)
        loader.add(4, 100_000_000, True)
        run.step(forward_pass=0.2, backward_pass=0.3, optimizer_step=0.05)
        run.flush()
    with run.section("validation_epoch"):
        run.recorder.buffer().record_loader(aux.loader_id, run.clock())
        run.spend("data_loading", 0.7)
        aux.add(None, 700_000_000, False)
    run.flush()
    assert_reads_back(run, tmp_path)
    first, second, third = read_run(tmp_path).loaders
    assert (first.proportion, first.asked_proportion, first.forward_avg_s) == (0.75, 0.75, 0.2)
    assert (second.phase, third.phase, third.data_avg_s, third.samples) == ("train", "val", 0.7, None)


def test_lines_read_back(tmp_path):
    run = journal_in(tmp_path)
    places = [Location("train.py", 88, "get_batch"), None, Location("models/été.py", 7, "<module>")]
    for i in range(80):
        run.spend("data_loading", 0.1)
        run.sample_line(places[i % 3])
        run.clock.advance(0.1)
        with run.section("validation_epoch"):
            run.sample_line(places[i % 2])
            run.clock.advance(0.1)
        if i % 7 == 0:
            run.flush()  # in the middle of a step
        run.step()
    run.sample_line(places[0], 40)
    run.clock.advance(1)
    run.flush()
    assert_reads_back(run, tmp_path)
    assert read_run(tmp_path).lines.keys() == {"other", "(outside steps)", "validation_epoch"}


def sample_machine(run: FakeRun, memory_bytes: float) -> None:
    """Add one sample of the machine."""
    run.drain()
    values = {"ram_own_bytes": memory_bytes, "cpu_process": 1.3, "gpu0.allocated_bytes": memory_bytes / 7}
    values["gpu0.counted_power_w"] = 70.0
    facts = {"cores": 2.0, "ram_host_total_bytes": 1000, "gpu0.name": "Tesla T4"}
    run.accumulator.totals.machine.add_samples([MachineSample(run.clock(), values, {"cpu_process": 0.7}, facts)])


def test_the_machine_and_throughput_read_back(tmp_path):
    run = journal_in(tmp_path)
    run.begin_epoch(1)
    for i in range(100):
        run.step(forward_pass=0.1 + i / 7919)
        sample_machine(run, 1000.0 + i / 3)
        totals = run.accumulator.totals
        totals.batches, totals.samples = 9, 288
        totals.tokens = 1000 if i % 2 else None
        if i == 2:
            totals.flops = StepFlops(10**12, "float16", "Tesla T4")
            totals.slow_steps = 3
        if i % 9 == 0:
            run.flush()
    run.end_epoch(batches=400, samples=12800)
    assert_reads_back(run, tmp_path)
    read = read_run(tmp_path)
    assert read.machine.samples == 100
    assert read.machine.ram_growth.bytes > 20
    assert read.machine.gpus[0].energy_j == pytest.approx(7000)
    assert read.epochs[0].machine == read.machine
    assert read.throughput.peak_tflops == 65.0
    assert read.step.warmup_count == 3
    assert read.throughput.samples_per_s is not None
    assert read.throughput.tokens_per_s is not None


def early(line):
    """Return a line as an earlier version wrote it."""
    later = ("by_loader", "lines", "step_lines", "machine", "batches", "samples", "flops", "slow_steps")
    kept = {key: value for key, value in line.items() if key not in later}
    ends = {"batches": 30, "samples": 960} if line["kind"] == "epoch_end" else {}
    return {**kept, **ends, "loaders": [columns[:4] for columns in line.get("loaders", [])]}


def test_a_journal_without_what_came_later_can_be_read(tmp_path):
    run = journal_in(tmp_path)
    counts = LoaderCounts("train")
    counts.add(32, 500_000_000, True)
    run.loaders = [counts]
    train(run)
    journal = tmp_path / JOURNAL
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps(early(line)) + "\n" for line in lines))
    assert_reads_back(run, tmp_path)


@given(st.lists(st.tuples(st.sampled_from(["enter", "exit", "step", "look", "flush"]), st.integers(1, 4)), max_size=60))
def test_any_run_reads_back(tmp_path_factory, operations):
    folder = tmp_path_factory.mktemp("run")
    run = journal_in(folder)
    names, entered = ("data_loading", "forward_pass", "validation_epoch", "a"), []
    for what, number in operations:
        run.clock.advance_ns(number * 1_000)
        if what == "enter":
            entered.append(run.section(names[number - 1]))
            entered[-1].__enter__()
        elif what == "exit" and entered:
            entered.pop().__exit__(None, None, None)
        elif what == "step":
            run.step()
        elif what == "look":
            run.sample_line(Location("train.py", number, "main"), 20)
        elif what == "flush":
            run.flush()
    assert_reads_back(run, folder)


def test_the_end_of_a_run_reads_back(tmp_path):
    run = journal_in(tmp_path)
    train(run)
    run.journal.close(Health(disabled=("console (OSError)",), overhead_s=0.5, notes=("a note",)), "KeyboardInterrupt")
    read = read_run(tmp_path)
    assert read.ended_by == "KeyboardInterrupt"
    assert read.health == Health(disabled=("console (OSError)",), overhead_s=0.5, notes=("a note",))


def test_a_closed_journal_ignores_further_lines(tmp_path):
    run = journal_in(tmp_path)
    run.journal.close(Health(), None)
    before = (tmp_path / JOURNAL).read_text()
    run.journal.append(run.journal.lines.epoch_begin(1))
    run.journal.close(Health(), None)
    assert (tmp_path / JOURNAL).read_text() == before


def test_every_line_is_json(tmp_path):
    run = journal_in(tmp_path)
    train(run)
    run.journal.close(Health(), None)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / JOURNAL).read_text().splitlines()]
    epoch = ["interval", "epoch_begin", "interval", "epoch_end"]
    assert kinds == ["begin", *epoch, *epoch, "interval", "end"]


def test_a_killed_run_has_a_note(tmp_path):
    train(journal_in(tmp_path))
    assert read_run(tmp_path).health.notes == (
        "the run did not come to its end (or still runs): what followed the last interval is missing",
    )


def test_an_epoch_cut_by_a_kill_is_not_complete(tmp_path):
    run = journal_in(tmp_path)
    run.begin_epoch(1)
    run.step(forward_pass=1)
    run.flush()
    (epoch,) = read_run(tmp_path).epochs
    assert (epoch.number, epoch.steps, epoch.is_complete) == (1, 1, False)


def test_a_run_that_was_killed_while_its_first_interval_was_written_has_no_steps_yet(tmp_path):
    train(journal_in(tmp_path))
    path = tmp_path / JOURNAL
    begin, first = path.read_bytes().splitlines(keepends=True)[:2]
    path.write_bytes(begin + first[:100])
    read = read_run(tmp_path)
    assert (read.steps, read.wall_s) == (0, 0.0)
    assert "1 torn line in the journal left out" in read.health.notes


def test_a_torn_last_line_is_left_out_with_a_note(tmp_path):
    run = journal_in(tmp_path)
    train(run)
    stats = run.sums.snapshot(Health()).sections
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[1][:100])
    read = read_run(tmp_path)
    assert read.sections == stats
    assert "1 torn line in the journal left out" in read.health.notes


def test_a_journal_cut_anywhere_is_read_or_rejected(tmp_path):
    train(journal_in(tmp_path))
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    for length in range(0, len(whole), 997):
        path.write_bytes(whole[:length])
        if b"\n" in whole[:length]:
            assert read_run(tmp_path).run_folder == str(tmp_path)
        else:
            with pytest.raises(RunFolderError, match="does not begin like a journal"):
                read_run(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\x00\xff\xfe", b"hello\n", b"[1, 2]\n", b"[" * 100_000, b'{"kind": "end"}\n']
)
def test_a_file_that_is_not_a_journal_is_rejected(tmp_path, content):
    (tmp_path / JOURNAL).write_bytes(content)
    with pytest.raises(
        RunFolderError, match=r"rank0.jsonl does not begin like a journal; is it a file of the profiler's\?"
    ):
        read_run(tmp_path)


def test_a_journal_of_another_version_is_rejected(tmp_path):
    (tmp_path / JOURNAL).write_text('{"kind": "begin", "schema": 99}\n')
    with pytest.raises(RunFolderError, match="has schema 99, this version reads 1; read it with the version"):
        read_run(tmp_path)


def replaced(value, at, path=()):
    """Return ``value`` with the part at ``path`` replaced by ``at``."""
    if not path:
        return at
    return {**value, path[0]: replaced(value.get(path[0], {}), at, path[1:])}


PARTS = [
    ("begin_ns",),
    ("sections",),
    ("sections", "forward_pass"),
    ("sections", "forward_pass", "count"),
    ("sections", "forward_pass", "bins"),
    ("sections", "forward_pass", "mean_ns"),
    ("sections", "forward_pass", "coupling"),
    ("parents",),
    ("coupling",),
    ("step_ns",),
    ("loaders",),
    ("dropped",),
]


@pytest.mark.parametrize("garbage", ["text", [1, 2], {}, None, 10**30, [[10**9], [1]]])
@pytest.mark.parametrize("part", PARTS)
def test_a_garbled_line_raises_only_our_error(tmp_path, part, garbage):
    train(journal_in(tmp_path))
    path = tmp_path / JOURNAL
    lines = path.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if '"forward_pass":' in line)
    lines[number] = json.dumps(replaced(json.loads(lines[number]), garbage, part))
    path.write_text("\n".join(lines) + "\n")
    with contextlib.suppress(RunFolderError):  # some garbage is valid
        read_run(tmp_path)


def test_a_missing_folder_is_rejected_with_an_example(tmp_path):
    with pytest.raises(RunFolderError, match="nowhere does not exist; example: training-profiler report runs/"):
        read_run(tmp_path / "nowhere")


def test_a_file_in_place_of_a_folder_is_rejected(tmp_path):
    (tmp_path / JOURNAL).write_text("")
    with pytest.raises(RunFolderError, match=r"rank0.jsonl is a file; give the run folder around it"):
        read_run(tmp_path / JOURNAL)


def test_a_folder_of_runs_is_rejected_with_the_latest(tmp_path):
    for name in ("20261121-142530", "20261121-150000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / JOURNAL).write_text("")
    with pytest.raises(RunFolderError, match=r"holds 2 runs; give that folder itself, e.g. .*20261121-150000"):
        read_run(tmp_path)


def test_a_folder_without_a_run_is_rejected(tmp_path):
    with pytest.raises(RunFolderError, match=r"is not a run folder: rank0.jsonl cannot be read"):
        read_run(tmp_path)
