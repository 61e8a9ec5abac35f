"""What the traces of several ranks show of each other; what is printed is in a golden file."""

from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from tests.support.traces import Trace
from training_profiler.cli import main

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def of_rank(rank, of):
    return Trace(distributedInfo={"rank": rank, "world_size": of})


def late(*waits, longer):
    """Return a trace per rank: each waits so long in every all-reduce, and one of them computes longer."""
    traces = [of_rank(rank, len(waits)).step(1, 0, 1000) for rank in range(len(waits))]
    for rank, wait in enumerate(waits):
        for i in range(4):
            traces[rank].kernel(REDUCE, 200 * i + 100 - wait, 10 + wait, stream=9)
            if rank == longer:
                traces[rank].kernel("ampere_sgemm_128x64_tn", 200 * i, 90)
    return traces


def waiting_for_data():
    """Return a trace per rank, one of which waits for a batch before its first work."""
    traces = []
    for rank, wait in enumerate((80, 70, 0, 80)):
        trace = of_rank(rank, 4).step(1, 0, 115)
        if not wait:
            trace.mark("enumerate(DataLoader)#_Iter.__next__", 0, 90).op("aten::mm", 90, 5)
        launched = (0 if wait else 94, 5)
        traces.append(trace.kernel(REDUCE, 100 - wait, 10 + wait, stream=9, launched=launched))
    return traces


def with_memory_on_one():
    traces = [of_rank(rank, 6).step(1, 0, 1000).kernel("k", 0, 5) for rank in range(6)]
    traces[3].memory(10, 2**20, **{"Total Allocated": 2**20, "Total Reserved": 2**21})
    return traces


def late_in_turn():
    traces = [of_rank(rank, 3).step(1, 0, 1000) for rank in range(3)]
    for trace, waits in zip(traces, ((0, 80, 80), (80, 0, 0), (80, 80, 80)), strict=True):
        for i, wait in enumerate(waits):
            trace.kernel("ncclDevKernel_AllReduce", 200 * i + 100 - wait, 10 + wait)
    return traces


JOBS = {
    "a late rank is named with what it does longer": late(80, 70, 0, 80, longer=2),
    "and with what it waits for before its first work": waiting_for_data(),
    "ranks that hardly wait are not named": late(8, 7, 0, 8, longer=2),
    "rules that cannot run on some ranks are listed with these": with_memory_on_one(),
    "several late ranks have their shares": late_in_turn(),
}


def joined(traces):
    """Return one trace of those of all ranks, with their numbers before each pid, as TraceLens joins them."""
    trace = Trace(**traces[0].top)
    for rank, of in enumerate(traces):
        for event in of.events:
            trace.events.append(event | {"pid": f"{rank}_{event['pid']}"} if "pid" in event else event)
    return trace


@pytest.mark.parametrize("claim", JOBS)
@pytest.mark.parametrize("options", [(), ("--json",), ("--view", "communication", "--view", "critical-path")])
def test_a_joined_trace_of_all_ranks_equals_the_folder(claim, options, tmp_path, capsys):
    for rank, trace in enumerate(JOBS[claim]):
        trace.write(tmp_path, f"rank{rank}.pt.trace.json")
    assert main(["trace", str(tmp_path), *options]) == 0
    of_folder = capsys.readouterr().out.replace(".pt.trace.json", "")
    (tmp_path / "joined").mkdir()
    assert main(["trace", str(joined(JOBS[claim]).write(tmp_path / "joined", "all.json")), *options]) == 0
    assert capsys.readouterr().out == of_folder


def test_traces_that_are_joined_are_compared_rank_by_rank(tmp_path, capsys):
    path = joined(JOBS["several late ranks have their shares"]).write(tmp_path, "all.json")
    assert main(["trace", str(path), "--compare", str(path)]) == 0
    assert capsys.readouterr().out.count("=== Comparison per step ===") == 3


def test_what_is_said_of_each_job_is_as_before(tmp_path, capsys):
    texts = []
    for i, (claim, traces) in enumerate(JOBS.items()):
        (tmp_path / str(i)).mkdir()
        for rank, trace in enumerate(traces):
            trace.write(tmp_path / str(i), f"rank{rank}.pt.trace.json")
        assert main(["trace", str(tmp_path / str(i))]) == 0
        texts.append(f"##### {claim}\n{capsys.readouterr().out}")
    assert_golden(Path(__file__).parents[1] / "golden" / "trace_ranks.txt", "\n".join(texts))
