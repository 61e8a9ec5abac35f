"""Every number that is read from a file has its bounds where it is decoded."""

import json

import msgspec
import pytest

from tests.support.every_field import filled, full_interval, unbounded
from tests.support.mutations import leaves
from training_profiler.model.bounds import MOST_NOTES, MOST_SUM, fit
from training_profiler.model.loader_workers import WorkerSums
from training_profiler.model.program import ProgramFacts
from training_profiler.model.ranks import RankStacks
from training_profiler.model.snapshot import DeviceTimingStats
from training_profiler.ranks.message import Heartbeat
from training_profiler.ranks.summary import RankSummary
from training_profiler.recording.data_loader import LoaderArguments
from training_profiler.storage.journal_lines import IntervalLine, Line, checked_facts, decode_line
from training_profiler.storage.stack_files import _Request, decode_stacks
from training_profiler.torch_capture.request import Request
from training_profiler.trace_analysis.memory_snapshot import RawSnapshot
from training_profiler.trials.results import Results
from training_profiler.trials.state import SessionState

# Checked once they are decoded.
FITTED = ("program.", "device.", "loaders.item_type.arguments.")
CHECKED_LATER = {
    "flops.flops",
    "flops.forward",
    "flops.attention_forward",
    *(f"who.{name}" for name in ("rank", "world_size", "node", "local_rank", "attempt")),
    "progress.under_way.outcomes.value_type.seed",  # of any size; it is only compared
}


@pytest.mark.parametrize(
    "kind", [Line, RankSummary, Heartbeat, _Request, Request, WorkerSums, RawSnapshot, Results, SessionState]
)
def test_integers_have_bounds_where_they_are_decoded(kind: type) -> None:
    free = {path for path in unbounded(kind) if not path.startswith(FITTED)}
    assert free - CHECKED_LATER == set()


@pytest.mark.parametrize("kind", [ProgramFacts, DeviceTimingStats, LoaderArguments, RankStacks])
@pytest.mark.parametrize("number", [2**63, 2**1024, -(2**1024)])
def test_records_without_bounds_of_their_own_are_made_to_fit(kind: type, number: int) -> None:
    data = {"record": filled(kind)}
    for _, inside, key in list(leaves(data)):
        before, inside[key] = inside[key], number
        try:
            record = msgspec.json.decode(json.dumps(data["record"]), type=kind)
        except msgspec.ValidationError:  # a float cannot be so large
            inside[key] = before
            continue
        fitted = checked_facts(record) if isinstance(record, ProgramFacts) else fit(record)
        assert all(
            -1 <= inner[place] <= MOST_SUM
            for _, inner, place in leaves([msgspec.to_builtins(fitted)])
            if inner[place] is not None
        )
        inside[key] = before


def test_stacks_are_made_to_fit() -> None:
    data = filled(RankStacks) | {"pid": 2**1024, "rank": -1}
    stacks = decode_stacks(json.dumps(data).encode())
    assert (stacks.pid, stacks.rank) == (MOST_SUM, 0)


def test_a_line_with_every_field_is_whole() -> None:
    line = decode_line(json.dumps(full_interval(0)).encode())
    assert isinstance(line, IntervalLine)
    assert checked_facts(line.program) is not None
    assert fit(line.device, MOST_NOTES) is not None
    assert line.loaders[0].counts().arguments is not None
