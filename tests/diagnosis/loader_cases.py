"""Rules about several loaders: each fires, is silent just below, and without data."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.model.lines import StreamRepeats
from training_profiler.model.snapshot import LoaderStats, Snapshot, WorkerLineStats, WorkerStats


def loader(name: str, data_avg_s: float | None = None, batches: int = 100, **others) -> LoaderStats:
    return LoaderStats(name, batches, None, (data_avg_s or 0.0) * batches, data_avg_s=data_avg_s, **others)


def run_with(*loaders: LoaderStats) -> Snapshot:
    return replace(snapshot_of({"forward_pass": 0.4, "backward_pass": 0.55}), loaders=loaders)


def mixed(share: float | None, asked: float | None) -> Snapshot:
    return run_with(loader("main", batches=200, proportion=share, requested_proportion=asked))


ITERATES = WorkerLineStats("data.py", 17, "Stream.__iter__", 0.9, 90, "fetch")
REPEATS = StreamRepeats(2, 128, 2.0, 0.0, True)


def streaming(repeats: StreamRepeats | None, *others: LoaderStats, lines: tuple[WorkerLineStats, ...] = ()) -> Snapshot:
    """Return a run whose loader has a stream, and workers that yield the same samples."""
    workers = WorkerStats(2, 100, 0.5, 0.05, 0.1, 0.05, 0.0, 90, lines=lines, repeats=repeats)
    stream = loader("0", 0.001, num_workers=2, data_set="Stream", made_at="train.py:41", workers=workers)
    return run_with(stream, *others)


SAYS = {
    "stream-repeated": {
        "each yields all": streaming(REPEATS, lines=(ITERATES,)),
        "some of four": streaming(replace(REPEATS, workers=4)),
        "one of two loaders": streaming(REPEATS, loader("1", 0.001, batches=300)),
        "a part of the stream": streaming(replace(REPEATS, is_over=False)),
    },
    "same-order": {
        "three passes": run_with(loader("0", same_order=2, made_at="train.py:41")),
        "one of two loaders": run_with(loader("0"), loader("1", same_order=3)),
    },
    "loader-slow": {
        "one of two": run_with(loader("main", 0.001), loader("aux", 0.016)),
        "just over twice the other": run_with(loader("main", 0.004), loader("aux", 0.0081)),
        "beside the mean batch of two": run_with(
            loader("a", 0.001, batches=300), loader("b", 0.005), loader("d", 0.02)
        ),
    },
    "loader-mix": {
        "another mix": run_with(
            loader("main", batches=800, proportion=0.8, requested_proportion=2 / 3),
            loader("aux", batches=200, proportion=0.2, requested_proportion=1 / 3),
        ),
        "just beyond chance": mixed(0.61, 0.5),
    },
}
SILENT = {
    "stream-repeated": {
        "divided": streaming(replace(REPEATS, times=1.0)),
        "as often as drawn samples": streaming(replace(REPEATS, times=1.5)),
        "samples come again in a worker": streaming(replace(REPEATS, again=0.11)),
        "unknown": streaming(None),
        "not observed": run_with(loader("0", 0.001, num_workers=2)),
    },
    "same-order": {
        "another order": run_with(loader("0")),
        "two passes": run_with(loader("0", same_order=1)),
        "a look at the first batch": run_with(loader("0", same_order=2, cut_passes=1)),
        "validation": run_with(loader("0", same_order=3, phase="val")),
    },
    "loader-slow": {
        "none": run_with(),
        "one": run_with(loader("main", 0.016)),
        "twice": run_with(loader("main", 0.004), loader("aux", 0.008)),
        "unknown": run_with(loader("main", None), loader("aux", 0.016)),
        "few batches": run_with(loader("main", 0.001), loader("aux", 0.016, batches=7)),
        "of a validation": run_with(loader("main", 0.001), loader("aux", 0.016, phase="val")),
        "0.9 % of the run": run_with(loader("main", 0.0001), loader("aux", 0.0009)),
    },
    "loader-mix": {
        "one point": mixed(0.51, 0.5),
        "chance: one standard deviation is 3.5 points": mixed(0.56, 0.5),
        "not asked": mixed(0.56, None),
        "unknown": mixed(None, 0.5),
    },
}
