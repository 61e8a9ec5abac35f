"""Files of a few MB that are slow or large for a careless reader: bounded processor time and 500 MB are enough."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fuzz import JOURNALS, in_process
from tests.support.traces import Trace

pytestmark = pytest.mark.chaos
LINES = [json.loads(line) for line in (JOURNALS / "rank0.jsonl").read_bytes().splitlines()]
BEGIN = LINES[0]
SECTION = next(line["sections"]["forward_pass"] for line in LINES if "forward_pass" in line.get("sections", ()))
EMPTY = {
    "kind": "interval", "begin_ns": 10**6, "end_ns": 10**6, "first_step": 0, "step_ns": [], "sections": {},
    "parents": [], "coupling": [0, 0, 0], "first_fetch_ns": None, "dropped": 0, "unended": 0, "loaders": [],
    "open_sections": [],
}  # fmt: skip
EPOCH = [{"kind": "epoch_begin", "number": 1}, {"kind": "epoch_end", "batches": 1, "samples": 1, "is_complete": True}]
FEW = {"count": 1, "self_ns": 5}


def journal(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in (BEGIN, *lines))


def many_intervals() -> bytes:
    names = {f"s{i}": FEW for i in range(500)}
    return journal({**EMPTY, "sections": names}, *[{**EMPTY, "sections": {"s499": FEW}}] * 4_000)


def overlapping_events() -> bytes:
    trace = Trace()
    for i in range(10_000):
        trace.op(f"a{i % 7}", 10 * i, 100_000 + 100 * i)
    return trace.text().encode()


def many_devices() -> bytes:
    trace = Trace()
    for i in range(10_000):
        trace.kernel("k", 100 * i, 5, device=i)
    return trace.text().encode()


def many_steps_of_a_trace() -> bytes:
    trace = Trace()
    for i in range(8_000):
        trace.step(i, 100 * i, 10**6).kernel("k", 100 * i, 5)
    return trace.text().encode()


def whole_journal(*more: bytes) -> bytes:
    return (JOURNALS / "rank0.jsonl").read_bytes() + b"".join(more)


def tiny_members() -> bytes:
    text = Trace().op("a", 1, 2).text().encode() + b" " * 300_000
    return b"".join(gzip.compress(text[at : at + 1], 1) for at in range(len(text)))


JOURNALS_OF: dict[str, Callable[[], bytes]] = {
    "many_names": lambda: journal({**EMPTY, "sections": {f"s{i}": SECTION for i in range(10_000)}}),
    "many_empty_names": lambda: journal({**EMPTY, "sections": {str(i): {} for i in range(200_000)}}),
    "many_intervals": many_intervals,
    "many_epochs": lambda: journal(EMPTY, *EPOCH * 4_000),
    "many_steps": lambda: journal({**EMPTY, "step_ns": [1] * 2_000_000}),
    "many_lines": lambda: journal({**EMPTY, "step_lines": [[1, f"f{i}", 1, "g"] for i in range(80_000)]}),
    "many_notes": lambda: journal({**EMPTY, "notes": [""] * 1_000_000, "open_sections": ["a"] * 500_000}),
    "many_ranks": lambda: journal(*[line for line in LINES if line["kind"] == "rank"] * 700),
    "blank_lines": lambda: whole_journal(b"\n" * 9_000_000),
    "lines_of_spaces": lambda: whole_journal(b" \t\r\n" * 2_000_000),
    "tiny_lines": lambda: whole_journal(b"x\n" * 4_000_000),
    "tiny_lines_of_a_kind": lambda: whole_journal(b'{"kind":"rank"}\n' * 500_000),
    "one_long_line": lambda: whole_journal(b"[" * 9_000_000),
    "one_long_blank": lambda: whole_journal(b" " * 9_000_000),
    "deep_lines": lambda: whole_journal((b"[" * 2_000 + b"\n") * 4_000),
    "halves_of_pairs": lambda: whole_journal(b'{"kind":"rank","a":"', b"\\ud800" * 1_000_000, b'"}\n'),
}
TRACES_OF: dict[str, Callable[[], bytes]] = {
    "overlapping_events": overlapping_events,
    "many_devices": many_devices,
    "many_steps_of_a_trace": many_steps_of_a_trace,
    "empty_events": lambda: b'{"traceEvents":[' + b"{}," * 3_000_000 + b"{}]}",
    "bomb": lambda: gzip.compress(b'{"traceEvents":[' + b" " * 400_000_000, 1),
    "blank_trace": lambda: b"\n" * 9_000_000,
    "open_text": lambda: b'[NaN,"' + b'\\"' * 500_000,
    "broken_text": lambda: b'[NaN,"' + b'\\"' * 500_000 + b'\\\n"',
    "spaces_at_the_end": lambda: b"[{}" + b" " * 500_000 + b"x",
    "empty_members": lambda: gzip.compress(Trace().op("a", 1, 2).text().encode()) + gzip.compress(b"") * 400_000,
    "tiny_members": tiny_members,
    "members_of_nothing": lambda: gzip.compress(b"") * 400_000,
}


@pytest.mark.parametrize("of", JOURNALS_OF | TRACES_OF)
def test_reading_takes_time_and_memory_in_proportion(tmp_path: Path, of: str) -> None:
    data = (JOURNALS_OF | TRACES_OF)[of]()
    assert len(data) < 10_000_000
    assert in_process("journal" if of in JOURNALS_OF else "trace", [(0, data)], tmp_path) == []
