"""Rules about ranks: each fires, is silent just below and without data, and none claims another's seconds."""

from dataclasses import replace
from typing import Any

from tests.support.ranks import rank_id, rank_row, ranks_of
from tests.support.recording import snapshot_of
from training_profiler.model.lines import StreamRepeats
from training_profiler.model.program import DDP, CallFacts, CallSite, OptimizerFacts, ProgramFacts
from training_profiler.model.ranks import AllRanksStats, GradientSyncStats, RankStats, SectionSpread, UnusedSearch
from training_profiler.model.snapshot import EpochStats, LoaderStats, Snapshot


def run_of(ranks: AllRanksStats | None, steps: int = 100, **shares: float) -> Snapshot:
    return replace(snapshot_of(shares or {"backward_pass": 0.95}, steps=steps, step_s=0.05), ranks=ranks)


def working(*work_ms: float, **of_last) -> list[RankStats]:
    rows = [rank_row(rank, ms / 1000) for rank, ms in enumerate(work_ms)]
    return [*rows[:-1], replace(rows[-1], **of_last)]


def synchronizing(rows, sync: float, waiting: float, **more) -> AllRanksStats:
    return ranks_of(rows, sync_share=sync, waiting_share=waiting, transfer_share=sync - waiting, **more)


def waited(waiting_ms: float) -> Snapshot:
    rows = [replace(one, waiting_s=waiting_ms / 1000) for one in working(30, 30, 30, 40)]
    return run_of(ranks_of([*rows[:-1], replace(rows[-1], waiting_s=0.0)]))


def buckets(numbers: int, cap_mb: float = 25.0) -> Snapshot:
    optimizer = OptimizerFacts("SGD", 20, ("float32",), ("cpu",), numbers=numbers)
    call = CallFacts(DDP, "DistributedDataParallel", CallSite("train.py", 9), (("bucket_cap_mb", str(cap_mb)),))
    run = run_of(synchronizing(working(30, 30), 0.2, 0.0))
    program = ProgramFacts(optimizer, calls=(call,))
    return replace(run, program=program, gradient_sync=GradientSyncStats(100, 2, 0.01))


def repeating(times: float, ranks: int = 2, samples: int | None = 2000, again: float = 0.0, **loader: Any) -> Snapshot:
    """Return a run of ranks that have trained on samples as often; of each, 800 of a pass of ``samples`` are known."""
    repeats = StreamRepeats(ranks, 128, times, again, False, 800)
    epochs = (EpochStats(1, 5.0, 100, 100, samples, 0.05, {}, None, None),) if samples else ()
    loaders = (LoaderStats("0", 100, samples, 0.1, data_set="Stream", made_at="train.py:41", **loader),)
    return replace(run_of(ranks_of(working(*[30] * ranks), repeats=repeats)), epochs=epochs, loaders=loaders)


def sized(*elements: float | None, **of_last: Any) -> Snapshot:
    """Return a run of four ranks, of which the last works longer, and whose inputs are so large."""
    rows = zip(working(30, 30, 30, 60, **of_last), elements, strict=True)
    return run_of(ranks_of([replace(row, input_elements=each) for row, each in rows]))


def averaging(times: int, updates: int = 1, modules: int = 1) -> Snapshot:
    """Return a run whose DDP averages gradients so many times a step."""
    run = run_of(synchronizing(working(30, 30), 0.4, 0.0), backward_pass=0.8, optimizer_step=0.1)
    backward = replace(run.sections["backward_pass"], count=100 * times)
    updating = replace(run.sections["optimizer_step"], count=100 * updates)
    calls = tuple(CallFacts(DDP, "DistributedDataParallel", CallSite("train.py", 9 + at)) for at in range(modules))
    return replace(
        run,
        sections={**run.sections, "backward_pass": backward, "optimizer_step": updating},
        program=ProgramFacts(calls=calls),
        gradient_sync=GradientSyncStats(100 * times - 1, 99, 0.01),
    )


def searching(seconds: float, looked_at: int = 80, found: int = 0) -> Snapshot:
    """Return a run of two ranks that search for unused parameters so long in all."""
    searched = UnusedSearch(200, 2 * seconds, looked_at, found)
    run = run_of(ranks_of(working(30, 30), searched=searched), forward_pass=0.3, backward_pass=0.6)
    call = CallFacts(DDP, "DistributedDataParallel", CallSite("train.py", 9), (("static_graph", "False"),))
    return replace(run, program=ProgramFacts(calls=(call,)))


CAUSED = {"cause": "data_loading", "cause_s": 0.009, "place": "train.py:31 fetch", "slower_since_step": 40}
ONE_HOST = [rank_row(rank, ms / 1000, who=rank_id(rank, per_host=8)) for rank, ms in enumerate((30, 30, 30, 39, 40))]
LOADS = {"data_loading": 0.05, "backward_pass": 0.9}
PASSES = {"forward_pass": 0.2, "backward_pass": 0.78}
SAVES = SectionSpread("checkpointing", 1, 0.5, 0.5, 0.5, rank_id(0), 0.0, False, never_on=(1,), slowest_total_s=0.5)
STOPPED = replace(rank_row(1), steps=120, last_message_s_ago=35.0, inside=("step", "backward_pass"))
SILENT_RANKS = [replace(rank_row(rank, steps=rank), last_message_s_ago=9.0) for rank in range(100)]
EVEN = ranks_of(working(30, 30, 30, 30), waiting_share=0.02, sync_share=0.05)
LATE = ranks_of(working(20, 20, 20, 40), waiting_share=0.4, sync_share=0.45)
FOR_ONE = ranks_of(working(36, 36, 36, 40), waiting_share=0.1, sync_share=0.8, transfer_share=0.7)
OF_FORWARD = {"cause": "forward_pass", "cause_s": 0.01}
CAUSES = {
    "generating data": ("data_generation", ""),
    "forward pass": ("forward_pass", ""),
    "backward pass": ("backward_pass", ""),
    "transfer": ("data_transfer", ""),
    "a line in no section": ("other", "train.py:5 log"),
    "in no section": ("other", ""),
    "the user's section": ("augment", ""),
    "a section that the user calls other": ("user:other", ""),
}
SAYS = {
    "straggler": {
        "with a cause": run_of(ranks_of(working(30, 30, 30, 40, **CAUSED))),
        "just over a tenth": run_of(ranks_of(working(30, 30, 30, 33.1))),
        "of two": run_of(ranks_of(working(30, 40))),
        "a threshold of the run": replace(run_of(ranks_of(working(30, 30, 30, 32))), thresholds={"straggler": 0.05}),
        "beside the next rank": run_of(ranks_of(working(30, 30, 32, 40))),
        "several": run_of(ranks_of(ONE_HOST)),
        "others wait for it": waited(5.01),
        "just over 5 % of the step": run_of(ranks_of(working(2, 2, 2, 4.51))),
        "another one on its host is quick": run_of(ranks_of(working(30, 30, 32, 41))),
        "on a slow host": run_of(ranks_of(working(30, 30, 40, 60))),
        "loading is not efficient": run_of(ranks_of(working(30, 30, 40, cause="data_loading", cause_s=0.01)), **LOADS),
        "of larger batches": sized(1000, 1000, 1000, 2000, **OF_FORWARD),
        "of hardly larger batches": sized(1000, 1000, 1000, 1400, **OF_FORWARD),
        "of larger batches beside its data": sized(1000, 1000, 1000, 2000, cause="data_loading", cause_s=0.01),
        "of larger batches than those that are known": sized(1000, None, 1000, 2000, **OF_FORWARD),
        "before the synchronization": run_of(FOR_ONE, forward_pass=0.2, backward_pass=0.75),
        **{
            name: run_of(ranks_of(working(30, 30, 40, cause=cause, cause_s=0.01, place=place)))
            for name, (cause, place) in CAUSES.items()
        },
    },
    "data-loading-efficient": {"equal ranks": run_of(ranks_of(working(30, 30, 30)), **LOADS)},
    "host-slow": {
        "both ranks": run_of(ranks_of(working(30, 30, 40, 41))),
        "just over a tenth": run_of(ranks_of(working(30, 30, 33.1, 33.2))),
    },
    "synchronization-heavy": {
        "waiting and transfer": run_of(synchronizing(working(30, 30), 0.13, 0.05, compared_steps=64)),
        "few buckets": buckets(10**7),
        "many buckets": buckets(3 * 10**7),
        "small buckets": buckets(10**7, cap_mb=1.0),
        "small buckets, and a smaller model": buckets(10**5, cap_mb=1.0),
        "large buckets": buckets(3 * 10**7, cap_mb=200.0),
        "without what the straggler has": run_of(synchronizing(working(30, 30, 30, 40, **OF_FORWARD), 0.35, 0.30)),
        "mostly not for the straggler": run_of(synchronizing(working(30, 30, 30, 34, **OF_FORWARD), 0.5, 0.4)),
        "averaged for each batch": averaging(4),
        "averaged for each of several updates": averaging(4, updates=2),
        "of two modules": averaging(2, modules=2),
        "of this rank": run_of(None, synchronization=0.2, backward_pass=0.8),
    },
    "uneven-work": {
        "in turn": run_of(synchronizing(working(30, 30), 0.14, 0.11)),
        "one rank's checkpoints": run_of(synchronizing(working(30, 30), 0.14, 0.11, sections=(SAVES,))),
    },
    "unneeded-search": {"on each rank": searching(0.1)},
    "ranks-repeat": {
        "all samples": repeating(2.0),
        "all samples of eight": repeating(7.6, ranks=8, samples=None, is_map_style=True),
        "a stream": repeating(2.0, is_map_style=False),
        "some of a shuffled pass": repeating(1.25),  # two ranks, each with 40 % of it
        "drawn in the same order": repeating(2.0, again=0.2),
        "ends between epochs": replace(repeating(2.0), epochs=()),
    },
    "rank-silent": {
        "comes first, with its last section": run_of(
            ranks_of(
                [rank_row(0), STOPPED, rank_row(2, 0.045), rank_row(3)], unresponsive=(1,), missing=(5, 6), world_size=7
            )
        ),
        "many": run_of(ranks_of(SILENT_RANKS, unresponsive=tuple(range(1, 100)))),
        "before the first step": Snapshot(ranks=ranks_of([RankStats(rank_id(0), 0)], missing=(1,), world_size=2)),
    },
    "backward-slow": {"alone": run_of(None, **PASSES), "equal ranks": run_of(EVEN, **PASSES)},
}
UNKNOWN = {
    "no ranks": run_of(None),
    "one": run_of(ranks_of(working(30))),
    "unknown work": run_of(ranks_of([rank_row(0, None), rank_row(1, None)])),
    "few steps of one": run_of(ranks_of([rank_row(0, 0.03), rank_row(1, 0.05, steps=9)])),
}
SILENT = {
    "straggler": {
        **UNKNOWN,
        "just below a tenth": run_of(ranks_of(working(30, 30, 30, 32.9))),
        "others do not wait": waited(4.99),
        "just below 5 % of the step": run_of(ranks_of(working(2, 2, 2, 4.49))),
        "its whole host is slow": run_of(ranks_of(working(30, 30, 40, 41))),
    },
    "data-loading-efficient": {"it delays another rank": run_of(ranks_of(working(30, 30, 40, **CAUSED)), **LOADS)},
    "host-slow": {
        **UNKNOWN,
        "one quick rank": run_of(ranks_of(working(30, 30, 32, 41))),
        "just below a tenth": run_of(ranks_of(working(30, 30, 32.9, 33.2))),
    },
    "synchronization-heavy": {"just below a tenth": run_of(synchronizing(working(30, 30), 0.099, 0.0))},
    "uneven-work": {
        **UNKNOWN,
        "a straggler": run_of(synchronizing(working(30, 40), 0.3, 0.2)),
    },
    "unneeded-search": {
        "found once": searching(0.1, found=1),
        "few are known": searching(0.1, looked_at=39),
        "below 0.2 %": searching(0.0095),
        "unknown": run_of(ranks_of(working(30, 30))),
    },
    "ranks-repeat": {
        "divided": repeating(1.0),
        "a few in common": repeating(1.04, samples=6000),
        "more than by chance": repeating(1.6),
        "less than by chance": repeating(1.1),
        "in a pass of unknown length": repeating(1.25, samples=None),
        "a constant batch": repeating(2.0, again=1.0),
        "a constant batch of eight": repeating(8.0, ranks=8, again=1.0),
        "drawn by each": repeating(1.25, again=0.2),
        "unknown": run_of(ranks_of(working(30, 30))),
        "one rank": run_of(None),
    },
    "rank-silent": {"all report": run_of(ranks_of(working(30, 30)))},
    "backward-slow": {"it waits for a slow rank": run_of(LATE, **PASSES)},
}
