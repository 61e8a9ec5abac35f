"""A journal reads back as the stats of the running session."""

import json
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.device import device_run
from tests.support.every_field import filled
from tests.support.recording import FakeRun
from training_profiler.base.errors import RunFolderError
from training_profiler.model.interval import StepFlops
from training_profiler.model.loader_workers import WorkerLine, WorkerSums
from training_profiler.model.location import Location
from training_profiler.model.program import CallFacts, CallSite, ProgramFacts
from training_profiler.model.snapshot import Health, StepStats
from training_profiler.recording.data_loader import LoaderArguments, LoaderCounts
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.storage.journal import JournalLines
from training_profiler.storage.journal_lines import BadLineError, SpansLine, checked_facts, decode_line
from training_profiler.storage.run_reader import read_run
from training_profiler.storage.timeline_reader import read_series

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
    for field in (field.name for field in fields(live) if field.name not in ("health", "run_folder", "settled_lines")):
        assert_same(getattr(read, field), getattr(live, field))


def assert_same(read: Any, live: Any) -> None:
    if isinstance(live, StepStats):  # blocks in which no section had time are longer in a journal
        read, live = replace(read, halves=None), replace(live, halves=None)
    assert read == live


WORKERS = WorkerSums(2, 20, 900, 800, 90, 700, 50, 1, 3, 60, 20, (WorkerLine("decode", "data.py", 31, "get", "", 48),))
PLACES = [
    None,
    Location("models/été.py", 7, "<module>"),
    Location("train.py", 9, "main", waits_in="item", called="torch.cat"),
    Location("net.py", 4, "run", inside="lib/t.py:3 fit > lib/u.py:9 go", phase="callback on_step_end"),
    Location("data.py", 5, "get", activity="imports"),
    Location("data.py", 7, "get", making="decode", waits_for="a queue between processes", held_by="x.py:3 f"),
]
NAMES = ["data_loading", "forward_pass", "backward_pass", "optimizer_step", "validation_epoch", "sampling", "a", "b"]


class RandomRun(FakeRun):
    """A run of random sections, steps, samples and sums of all kinds, drained and written at random moments."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(journal=folder / JOURNAL, warmup=self.random.choice([None, None, 0, 3]))
        self.clock.advance(1)
        if self.random.random() < 0.5:
            self.collected_since_ns = self.clock()
        self.loaders = [LoaderCounts(name, number) for number, name in enumerate(("main", "aux"), 1)]
        self.loaders[0].requested_share = 0.75
        self.loaders[0].use_workers(WORKERS)
        self.loaders[1].use_arguments(LoaderArguments(2, True, made_at="train.py:4"))
        self.entered: list[Any] = []
        self.has_capture = False

    def enter(self) -> None:
        self.entered.append(self.section(self.random.choice(NAMES)))
        self.entered[-1].__enter__()

    def leave(self) -> None:
        if self.entered:
            self.entered.pop(-1 if self.random.random() < 0.9 else 0).__exit__(None, None, None)

    def look(self) -> None:
        self.sample_line(self.random.choice(PLACES), self.random.randint(1, 6))

    def many_steps(self) -> None:
        slow = self.random.choice((1, 1, 3))
        for _ in range(self.random.randint(1, 60)):
            for name in NAMES[:4]:
                with self.section(name):
                    self.clock.advance_ns(self.random.randint(1, 10**6) * slow)
                    self.look()
            self.step()

    def fetch(self) -> None:
        loader = self.random.choice(self.loaders)
        self.recorder.buffer().record_loader(loader.loader_id, self.clock())
        loader.add(self.random.choice([None, 4]), self.random.randint(0, 1000), self.random.random() < 0.7)
        loader.by_phase["train"].cut_passes += 1
        self.spend("data_loading", 0.001)

    def garbage(self) -> None:
        self.collect(0.002, self.random.randint(0, 2), is_asked=self.random.random() < 0.3)

    def machine(self) -> None:
        self.drain()
        memory = 1e9 + 1e6 * self.random.random()
        values = {"ram_own_bytes": memory, "cpu_process": 1.3, "gpu0.allocated_bytes": memory / 7}
        values |= {"gpu0.counted_power_w": 70.0, "gpu0.utilization": self.random.random(), "page_faults": 3.0}
        sample = MachineSample(self.clock(), values, {"cpu_process": 0.7}, {"cores": 2.0, "gpu0.name": "Tesla T4"})
        totals = self.accumulator.totals
        totals.machine.add_samples([sample], totals.loop_begin_ns, self.accumulator.settled_ns())

    def counts(self) -> None:
        totals = self.accumulator.totals
        totals.batches, totals.samples = 9, self.random.choice([None, 288])
        totals.tokens = self.random.choice([None, 1000])
        totals.flops, totals.slow_steps = StepFlops(10**12, "float16", "Tesla T4"), 3
        totals.with_grad = (1, 3)
        totals.input_sizes.add(self.accumulator.steps + 1, 1000.0)

    def epoch(self) -> None:
        if self.sums.is_in_epoch:
            self.end_epoch(self.random.choice([None, 3]), 12)
        else:
            self.begin_epoch(1)

    def capture(self) -> None:
        capture, self.has_capture = self.accumulator.slowed_by_capture, not self.has_capture
        capture.begin(self.accumulator.steps + 1) if self.has_capture else capture.end(self.accumulator.steps + 2)

    def pass_all(self, operations: int) -> None:
        often = [self.enter, self.leave, self.leave, self.look, self.step]
        seldom = [self.many_steps, self.flush, self.drain, self.fetch, self.garbage, self.machine, self.counts]
        for _ in range(operations):
            self.clock.advance_ns(self.random.randint(1, 10**6))
            choices = self.random.choices((often, seldom, [self.epoch, self.capture]), (20, 3, 1))[0]
            self.random.choice(choices)()
        if self.sums.is_in_epoch:
            self.epoch()
        self.flush()


@pytest.mark.parametrize("seed", range(24))
def test_any_run_reads_back(tmp_path, seed):
    run = RandomRun(tmp_path, seed)
    run.pass_all(run.random.choice((20, 100, 600)))
    assert_reads_back(run, tmp_path)


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


def test_a_closed_journal_ignores_further_lines(tmp_path):
    run = journal_in(tmp_path)
    run.journal.close(Health(), None)
    before = (tmp_path / JOURNAL).read_text()
    run.journal.append(run.journal.lines.epoch_begin(1))
    run.journal.close(Health(), None)
    assert (tmp_path / JOURNAL).read_text() == before


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
    ("content", "asked", "message"),
    [
        ('{"kind": "begin", "schema": 99}\n', "", "has schema 99, this version reads 1; read it with the version"),
        (None, "nowhere", "nowhere does not exist; example of a run folder: runs/"),
        ("", JOURNAL, "rank0.jsonl is a file, not a run folder; example of a run folder: /"),
        (None, "", "is not a run folder: rank0.jsonl cannot be read"),
    ],
)
def test_what_is_not_a_run_of_this_version_is_rejected(tmp_path, content, asked, message):
    if content is not None:
        (tmp_path / JOURNAL).write_text(content)
    with pytest.raises(RunFolderError, match=message):
        read_run(tmp_path / asked)


@pytest.fixture
def run(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    run.step(forward_pass=1.0)
    run.flush()
    return run


def write_pending(run):
    """Write a preview of what the recorder holds, as a session does."""
    preview = run.accumulator.preview()
    preview.add(run.recorder.peek(), run.recorder.thread_id())
    inside = preview.open_sections(run.recorder.thread_id())
    run.journal.append(
        JournalLines(run.names).interval(
            *preview.pop_totals(), Health(), run.loaders, open_sections=inside, is_pending=True
        )
    )


def test_the_last_pending_interval_counts(run, tmp_path):
    with run.section("forward_pass"):
        for _ in range(3):
            run.clock.advance(2.0)
            write_pending(run)
        snapshot = read_run(tmp_path)
    assert (snapshot.steps, snapshot.wall_s, snapshot.open_sections) == (1, 7.0, ("forward_pass",))
    assert sum(section.self_s for section in snapshot.sections.values()) == pytest.approx(7.0)
    run.journal.close(Health(), None)


def journal_of(folder):
    run = FakeRun(warmup=0, journal=folder / "rank0.jsonl", spans=True)
    for _ in range(3):
        with run.section("forward_pass"):
            run.clock.advance_ns(1_499)
            run.spend("attention\x1b[31m", 2e-6)
            run.clock.advance_ns(501)
        run.step()
    run.flush(is_last=True)
    return folder / "rank0.jsonl"


def lines_of(path, kind):
    return [line for line in path.read_bytes().splitlines() if json.loads(line)["kind"] == kind]


def test_steps_read_back_with_nested_spans_to_the_microsecond(tmp_path):
    journal_of(tmp_path)
    (series,) = read_series(tmp_path)
    assert [(step.number, step.why, step.duration_ns) for step in series.recorded] == [
        (1, "first", 4_000),
        (2, "first", 4_000),
        (3, "last", 4_000),
    ]
    step = series.recorded[1]
    (lane,) = step.lanes
    assert lane.thread == "MainThread"
    assert lane.by_begin() == [("forward_pass", 0, 4), ("attention\\x1b[31m", 1, 3)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["steps"][0].__setitem__(3, 0),  # ends before its begin
        lambda data: data["steps"][0][6][0][1].append(0),  # columns of different lengths
        lambda data: data["steps"][0][6][0].__setitem__(1, [7, 7]),  # a name that is not there
        lambda data: data["steps"][0][6][0].__setitem__(3, [-1, -1]),  # a span that ends before its begin
        lambda data: data["steps"][0][6][0].__setitem__(2, [2**60, 0]),
        lambda data: data["steps"][0].__setitem__(1, "often"),
    ],
)
def test_a_damaged_record_is_refused_and_the_rest_of_the_journal_is_read(tmp_path, damage):
    path = journal_of(tmp_path)
    (line,) = lines_of(path, "spans")
    assert isinstance(decode_line(line), SpansLine)
    data = json.loads(line)
    damage(data)
    damaged = json.dumps(data).encode()
    with pytest.raises(BadLineError):
        decode_line(damaged)
    path.write_bytes(path.read_bytes().replace(line, damaged))
    assert [(series.steps, series.recorded) for series in read_series(tmp_path)] == [(3, ())]
    assert "1 line of the journal left out" in " ".join(read_run(tmp_path).health.notes)


def test_more_steps_than_a_run_records_are_not_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("training_profiler.storage.timeline_reader.MOST_SPANS", 6)
    journal_of(tmp_path)
    (series,) = read_series(tmp_path)
    assert [step.number for step in series.recorded] == [1, 2]


FACTS = msgspec.convert(filled(ProgramFacts), ProgramFacts)


def test_facts_read_back_from_json():
    facts = checked_facts(FACTS)
    assert checked_facts(msgspec.convert(json.loads(json.dumps(facts)), ProgramFacts)) == facts
    assert checked_facts(ProgramFacts()) == ProgramFacts()


def test_numbers_and_texts_that_cannot_be_are_mended():
    site = CallSite("\x1b.py", -3, "/\n", -7, "\x1b")
    calls = (CallFacts("a", "b", site, (("x", "\x1b"),) * 99),)
    mended = checked_facts(FACTS._replace(kept_graphs=-1, autocast="\x1b[31m", operators=-5, calls=calls))
    (call,) = mended.calls
    assert (mended.kept_graphs, mended.operators) == (0, 0)
    assert "\x1b" not in f"{mended.autocast}{call}"
    assert (call.site.line, call.site.column, len(call.arguments)) == (0, -1, 32)
