from tests.support.traces import Trace
from training_profiler.cli import main


def ranks(folder, waits, extra):
    """Write a trace per rank: each waits so long in every all-reduce, and ``extra`` of them computes longer."""
    for rank, wait in enumerate(waits):
        trace = Trace(distributedInfo={"rank": rank, "world_size": len(waits)}).step(1, 0, 1000)
        for i in range(4):
            trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200 * i + 100 - wait, 10 + wait, stream=9)
            if rank == extra:
                trace.kernel("ampere_sgemm_128x64_tn", 200 * i, 90)
        trace.write(folder, f"rank{rank}.pt.trace.json")
    return folder


def test_late_rank_is_named_with_what_it_does_longer(tmp_path, capsys):
    assert main(["trace", str(ranks(tmp_path, (80, 70, 0, 80), 2))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "for the last one to reach all_reduce. Of this rank 2 caused 100%." in out
    assert "Rank 2 has 0.360 ms more of computation." in out


def test_a_late_rank_is_named_with_what_it_waits_for_before_its_first_work(tmp_path, capsys):
    for rank, wait in enumerate((80, 70, 0, 80)):
        trace = Trace(distributedInfo={"rank": rank, "world_size": 4}).step(1, 0, 115)
        if not wait:
            trace.mark("enumerate(DataLoader)#_Iter.__next__", 0, 90).op("aten::mm", 90, 5)
        launched = (0 if wait else 94, 5)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100 - wait, 10 + wait, stream=9, launched=launched)
        trace.write(tmp_path, f"rank{rank}.pt.trace.json")
    assert main(["trace", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Rank 2 has 0.090 ms more of idle time of the cause data loader." in out
    assert "; figures of rank 0) The device is busy for" in out  # which differs between the ranks


def test_ranks_that_hardly_wait_are_not_named(tmp_path, capsys):
    assert main(["trace", str(ranks(tmp_path, (8, 7, 0, 8), 2))]) == 0
    assert "for the last one" not in capsys.readouterr().out


def test_rules_that_cannot_run_on_some_ranks_are_listed_with_these(tmp_path, capsys):
    for rank in range(6):
        trace = Trace(distributedInfo={"rank": rank, "world_size": 6}).step(1, 0, 1000).kernel("k", 0, 5)
        if rank == 3:
            trace.memory(10, 2**20, **{"Total Allocated": 2**20, "Total Reserved": 2**21})
        trace.write(tmp_path, f"rank{rank}.pt.trace.json")
    assert main(["trace", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    lacking = "memory events (profile_memory=True) (on rank 0, rank 1, rank 2 and 2 more): memory-grows, fragmentation"
    assert lacking in out
    assert "- three steps (profiler.step()): step-time-varies" in out


def test_several_late_ranks_have_their_shares(tmp_path, capsys):
    for rank, waits in enumerate(((0, 80, 80), (80, 0, 0), (80, 80, 80))):
        trace = Trace(distributedInfo={"rank": rank, "world_size": 3}).step(1, 0, 1000)
        for i, wait in enumerate(waits):
            trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200 * i + 100 - wait, 10 + wait)
        trace.write(tmp_path, f"rank{rank}.pt.trace.json")
    assert main(["trace", str(tmp_path)]) == 0
    assert "ranks 1 (67%), 0 (33%)" in capsys.readouterr().out
