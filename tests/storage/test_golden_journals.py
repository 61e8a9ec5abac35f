"""The journals and rank messages in ``journals/`` are read to the same values, and written with the same figures.

``python -m tests.storage.test_golden_journals`` writes the files again. Do that only for an intended change of the
format, and never remove the files of an earlier one.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct, structs

from tests.support.many_ranks import BEGAN_S, LAUNCH, RUN, S, who
from tests.support.recording import FakeRun
from training_profiler.base.sections import SectionNames
from training_profiler.model.interval import IntervalRecord, StepFlops
from training_profiler.model.location import Location
from training_profiler.model.ranks import GradientSyncTotals, RankId
from training_profiler.model.snapshot import DeviceTimingStats, Health
from training_profiler.ranks.message import Heartbeat, Message, unpack
from training_profiler.ranks.summary import (
    RankSection,
    RankSummary,
    RankSummaryBuilder,
    RankSyncPoint,
    StepTimeBucket,
    rank_summary_from_data,
)
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.storage.journal import Journal, interval_of
from training_profiler.storage.journal_lines import IntervalLine, decode_line
from training_profiler.storage.replay import totals_of
from training_profiler.storage.run_reader import read_run
from training_profiler.torch_capture.request import REQUEST, RequestBox, write_request

HERE = Path(__file__).parent / "journals"
MS = 1_000_000
NOTHING = GradientSyncTotals()
GPU = DeviceTimingStats("cuda", "NVIDIA Fake", "events", 40, {"graph capture": 2})


def write_journal(folder: Path, rank: int) -> None:
    """Write a journal in which every kind of line and every key occurs."""
    run = FakeRun(warmup=None if rank else 2)
    begin: dict[str, Any] = {"run": RUN, "pid": 100 + rank, "host": "node0", "wall_ns": BEGAN_S * S}
    begin |= {"who": dataclasses.asdict(who(rank, world_size=2)), "launched": LAUNCH._asdict()}
    builder = RankSummaryBuilder(run.names)
    run.journal = Journal(
        folder / f"rank{rank}.jsonl", rank, run.names, run.clock(), run.accumulator.warmup_steps, begin
    )
    main, aux = LoaderCounts("main", loader_id=7), LoaderCounts("aux", loader_id=8)
    run.loaders, main.requested_share = [main, aux], 0.75
    run.accumulator.slowed_by_capture.begin(20)
    run.accumulator.slowed_by_capture.end(22)

    def flush(exchanged: GradientSyncTotals = NOTHING) -> None:
        run.drain()
        run.accumulator.add_gradient_sync(exchanged)
        totals, step_ns = run.accumulator.pop_totals()
        values = {"ram_own_bytes": 1000.0 + len(step_ns), "cpu_process": 1.3, "gpu0.allocated_bytes": 70.5}
        facts = {"cores": 2.0, "ram_host_total_bytes": 1000, "gpu0.name": "Tesla T4"}
        totals.machine.add_samples([MachineSample(run.clock(), values, {"cpu_process": 0.7}, facts)])
        totals.batches, totals.samples = 4, 128
        totals.flops, totals.slow_steps = StepFlops(10**12, "float16", "Tesla T4", "flash"), 3
        run.sums.add(totals, step_ns)
        builder.add(totals, step_ns, exchanged)
        health = Health(disabled=("console (OSError)",), overhead_s=0.25, notes=("a note",))
        run.journal.append(
            run.journal.lines.interval(
                totals, step_ns, health, run.loaders, open_sections=("forward_pass",), device=GPU
            )
        )
        summary = builder.summary(
            who(rank, world_size=2),
            run.sums.run,
            run.names.names,
            begin_ns=BEGAN_S * S,
            sent_ns=BEGAN_S * S + run.clock(),
            sync_points=[RankSyncPoint("barrier:0", 1, 2)],
            inside=("forward_pass",),
        )
        run.journal.append(run.journal.lines.rank(summary.to_data()))

    for epoch in (1, 2):
        run.recorder.mark(EPOCH_BEGIN)
        flush()
        run.journal.append(run.journal.lines.epoch_begin(epoch))
        for i in range(20):
            loader = aux if i % 4 == 1 else main
            run.recorder.buffer().record_loader(loader.loader_id, run.clock())
            run.spend("data_loading", 0.05 + 0.01 * (i % 3))
            loader.add(4, 50 * MS, True)
            run.sample_line(Location("train.py", 88, "get_batch"), 3)
            with run.section("forward_pass"):
                run.sample_line(Location("models/été.py", 7, "<module>", "item"), 2)
                run.spend("attention", 0.1)
                if i % 7 == 0:
                    flush()
            run.spend("backward_pass", 0.2 + 0.01 * rank)
            run.sample_line(None)
            run.step(optimizer_step=0.03 + 0.001 * i)
            run.accumulator.add_device_time(run.names.id_of("forward_pass"), 90 * MS)
        flush(GradientSyncTotals(20, 10, 20 * 4 * MS, 20 * MS, of_steps=((3, 3 * MS), (4, 5 * MS))))
        with run.section("validation_epoch"):
            run.recorder.buffer().record_loader(aux.loader_id, run.clock())
            run.spend("data_loading", 0.7)
            aux.add(None, 700 * MS, False)
            run.spend("forward_pass", 0.5)
        run.recorder.mark(EPOCH_END)
        flush()
        run.journal.append(run.journal.lines.epoch_end(None if rank else 20, 80, True))
    run.journal.close(Health(notes=("a note",)), "KeyboardInterrupt")


def messages() -> dict[str, bytes]:
    """Return messages between ranks: a heartbeat alone, and one followed by a full summary."""
    summary = RankSummary(
        who=RankId(3, 4, "node1", 1, 1, 2),
        number=5,
        begin_ns=10 * S,
        sent_ns=20 * S,
        steps=100,
        settled_steps=90,
        settled_ns=9 * S,
        sync_ns=S,
        knows_sync=True,
        sections={"forward_pass": RankSection(1, 2, 3, 4, 5, 6, 7, 8), "été": RankSection()},
        exchanges=9,
        sampled=3,
        exchange_ns=7 * MS,
        exchange_hidden_ns=2 * MS,
        step_times=[StepTimeBucket(4, 5, 6), StepTimeBucket(1, 2, 3)],
        blocks={0: list(range(16)), 32: [-1] * 16},
        hottest_lines={"forward_pass": "train.py:31 fetch"},
        sync_points=[RankSyncPoint("all:0", 1, 2)],
        inside=["forward_pass"],
        is_final=True,
        ended_by="SIGTERM",
    )
    alive = Heartbeat(100, ("forward_pass", "été"), 1.5, "node1")
    return {
        "message-heartbeat.bin": Message(Heartbeat()).pack(),
        "message-summary.bin": Message(alive, msgspec.json.encode(summary.to_data()), True, 12).pack(),
    }


def as_plain(record):
    return structs.asdict(record) if isinstance(record, Struct) else dataclasses.asdict(record)


def plain(value: Any) -> Any:
    """Return a value converted to JSON and back."""
    return json.loads(json.dumps(value, default=as_plain))


def read_values(folder: Path) -> Any:
    """Return all values read from the files in ``folder``."""
    report = dataclasses.asdict(dataclasses.replace(read_run(folder), run_folder=None))
    received = {}
    for path in sorted(folder.glob("*.bin")):
        message = unpack(path.read_bytes())
        summary = rank_summary_from_data(json.loads(message.data)) if message.data else None
        head = dataclasses.asdict(dataclasses.replace(message, data=b""))
        received[path.name] = [
            {**head, "data": "", "stacks": message.stacks.decode()},
            None if summary is None else summary.to_data(),
        ]
    request = RequestBox(0).read_new(str(folder))
    assert request is not None
    return plain({"report": report, "received": received, "request": [request.steps, request.ranks]})


def write_all(folder: Path) -> None:
    for rank in (0, 1):
        write_journal(folder, rank)
    for name, packed in messages().items():
        (folder / name).write_bytes(packed)
    write_request(folder, 3, (0, 2))


FILES = ["rank0.jsonl", "rank1.jsonl", "message-heartbeat.bin", "message-summary.bin", REQUEST]


def rounded(value: Any) -> Any:
    """Return JSON data with floats rounded: the order in which numpy adds depends on the CPU."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def lines_of(path: Path) -> list[Any]:
    """Return what each line of JSON says: an interval may leave out fields that have their default."""
    return [rounded(said_in(line)) for line in path.read_bytes().splitlines()]


def said_in(line: bytes) -> Any:
    is_interval = line.startswith(b'{"kind":"interval"')
    return msgspec.to_builtins(full(decode_line(line))) if is_interval else json.loads(line)


def full(record: Any) -> Any:
    """Return a record with the fields that have their default."""
    if isinstance(record, msgspec.Struct):
        return {name: full(getattr(record, name)) for name in record.__struct_fields__}
    if isinstance(record, dict):
        return {name: full(value) for name, value in record.items()}
    return record


@pytest.mark.parametrize("name", FILES)
def test_files_are_written_as_the_same_json(name, tmp_path):
    write_all(tmp_path)
    assert lines_of(tmp_path / name) == lines_of(HERE / name)


def without_new_keys(value: Any, kept: Any) -> Any:
    """Return ``value`` without the keys that ``kept``, of an earlier version, does not have."""
    if isinstance(value, dict) and isinstance(kept, dict):
        return {key: without_new_keys(part, kept[key]) for key, part in value.items() if key in kept}
    if isinstance(value, list) and isinstance(kept, list) and len(value) == len(kept):
        return [without_new_keys(part, before) for part, before in zip(value, kept, strict=True)]
    return value


def test_kept_files_are_read_to_the_same_values():
    kept = rounded(json.loads((HERE / "values.json").read_text(encoding="utf-8")))
    assert without_new_keys(rounded(read_values(HERE)), kept) == kept


@pytest.mark.parametrize("earlier", ["journals_without_series", "journals_without_end"])
def test_journals_of_earlier_versions_are_read_to_the_same_report(earlier):
    reports = [dataclasses.replace(read_run(folder), run_folder=None) for folder in (HERE.with_name(earlier), HERE)]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("name", ["rank0.jsonl", "rank1.jsonl"])
def test_intervals_of_kept_journals_are_read_and_written_alike(name):
    lines = [decode_line(line) for line in (HERE / name).read_bytes().splitlines()]
    names = SectionNames()
    for line in lines:
        if isinstance(line, IntervalLine):
            written = interval_of(IntervalRecord, totals_of(line, names), line.step_ns, names)
            again = msgspec.json.decode(msgspec.json.encode(written), type=IntervalRecord)
            kept = {name: getattr(line, name) for name in IntervalRecord.__struct_fields__}
            assert in_any_order(msgspec.structs.asdict(again)) == in_any_order(kept)


def in_any_order(data: dict[str, Any]) -> dict[str, Any]:
    lines = {name: sorted(rows, key=repr) for name, rows in data["lines"].items()}
    return {**data, "lines": lines, "step_lines": sorted(data["step_lines"], key=repr)}


if __name__ == "__main__":
    for path in HERE.iterdir():
        path.unlink()
    write_all(HERE)
    values = read_values(HERE)
    (HERE / "values.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"written: {', '.join(sorted(path.name for path in HERE.iterdir()))}\n")
