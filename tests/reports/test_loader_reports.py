from dataclasses import replace

import pytest

from tests.support.loader_workers import WORKERS
from training_profiler.reports.layout import Layout
from training_profiler.reports.loaders import loader_lines
from training_profiler.snapshot.lines import UnseenWait
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot


def loader(name, batches=100, wait_s=0.1, phase="train", **others):
    others.setdefault("data_avg_s", wait_s / batches)
    return LoaderStats(name, batches, others.pop("samples", None), wait_s, phase, **others)


FILE = Layout()


def lines(*loaders, layout=FILE, wall_s=10.0):
    return loader_lines(Snapshot(loaders=loaders, wall_s=wall_s), layout)


@pytest.mark.parametrize(
    ("loaders", "expected"),
    [
        ([], []),
        ([loader("0", 30, 0.12, samples=480)], ["DataLoader 0: 30 batches, 480 samples, 0.12 s waiting"]),
        ([loader("0", 1, 0.12, samples=1)], ["DataLoader 0: 1 batch, 1 sample, 0.12 s waiting"]),
        (
            [loader("0", 30, 0.12), loader("1", 5, 0.01, phase="val")],
            ["DataLoader 0: 30 batches, 0.12 s waiting", "DataLoader 1 (validation): 5 batches, 0.01 s waiting"],
        ),
    ],
)
def test_a_single_loader_of_a_phase_has_one_line(loaders, expected):
    assert lines(*loaders) == expected


def two(**aux):
    return (
        loader("main", 200, 0.22, samples=800, forward_avg_s=0.004, batch_wait_avg_s=0.0125, proportion=2 / 3),
        loader("aux", 100, 1.23, proportion=1 / 3, **aux),
    )


def test_several_loaders_are_a_table_without_empty_columns():
    assert lines(*two(), loader("aux", 9, 0.01, phase="val", proportion=1.0))[:6] == [
        "DataLoaders (per batch; opt: per update; between: since the previous batch):",
        "loader            batches  samples   data    fwd  between  share",
        "                                     (ms)   (ms)     (ms)",
        "main                  200      800  1.100  4.000     12.5  66.7%",
        "aux                   100            12.3                  33.3%",
        "aux (validation)        9           1.111",
    ]


def test_table_with_all_columns_fits_80_columns():
    means = dict.fromkeys(("forward_avg_s", "backward_avg_s", "optimizer_avg_s", "batch_wait_avg_s"), 1.234)
    shares = {"proportion": 0.667, "asked_proportion": 0.667}
    name = "a_loader_of_the_program.py:127"
    both = [loader(name + end, 123456, 1.0, samples=1234567, **means, **shares) for end in ("", " (a)")]
    assert max(map(len, lines(*both))) <= 80


def test_each_loader_has_one_greppable_line():
    assert lines(*two(), layout=Layout(format="lines"))[1:3] == [
        "loader main: batches=200, samples=800, data=1.100, forward=4.000, between=12.5, share=66.7%",
        "loader aux: batches=100, data=12.3, share=33.3%",
    ]


def test_loader_over_twice_as_long_is_slow():
    assert lines(*two(), layout=Layout(width=120))[-1] == (
        "Loader aux is slow: 12.3 ms per batch, against 1.10 ms for main; it causes 85% of the wait for batches"
    )


def sentences(*loaders, **options):
    return " ".join(
        line
        for line in lines(*loaders, layout=Layout(width=120), **options)
        if line.startswith(("Loader aux", "The mix"))
    )


@pytest.mark.parametrize(
    ("main", "aux", "wall_s", "is_slow"),
    [
        ((100, 1.0), (100, 1.99), 10.0, False),
        ((100, 1.0), (100, 2.01), 10.0, True),
        ((100, 0.1), (100, 0.9), 100.0, False),  # below 1% of the run
        ((100, 0.1), (7, 0.9), 10.0, False),  # too few batches
    ],
)
def test_a_loader_is_slow_if_it_takes_twice_as_long_and_that_matters(main, aux, wall_s, is_slow):
    assert bool(sentences(loader("main", *main), loader("aux", *aux), wall_s=wall_s)) == is_slow


def mix(batches, asked):
    whole = sum(batches)
    return sentences(
        *(
            loader(name, count, 0.1, data_avg_s=None, proportion=count / whole, asked_proportion=share)
            for name, count, share in zip(("main", "aux"), batches, asked, strict=True)
        )
    )


@pytest.mark.parametrize(
    ("batches", "asked", "text"),
    [
        ((200, 100), (2 / 3, 1 / 3), "The mix is main 66.7%, aux 33.3%, as asked"),
        (
            (800, 200),
            (2 / 3, 1 / 3),
            "The mix of loaders differs from the configured one: main 80.0% instead of 66.7%, aux 20.0% instead of "
            "33.3%",
        ),
        ((72, 28), (2 / 3, 1 / 3), "The mix is main 72.0%, aux 28.0%, as asked"),  # by chance: sigma is 4.7 points
        ((657_000, 343_000), (2 / 3, 1 / 3), "The mix is main 65.7%, aux 34.3%, as asked"),  # a point is rounding
        (
            (655_000, 345_000),
            (2 / 3, 1 / 3),
            "The mix of loaders differs from the configured one: main 65.5% instead of 66.7%, aux 34.5% instead of "
            "33.3%",
        ),
        ((800, 200), (None, None), ""),
    ],
)
def test_the_mix_is_as_asked_or_names_both_shares(batches, asked, text):
    assert mix(batches, asked) == text


def test_workers_have_their_phases_and_lines_below_their_loader():
    workers = replace(WORKERS, queued_avg_s=0.02, held=0.4, pinning=0.3)
    assert lines(loader("0", 200, 6.0, workers=workers))[1:] == [
        "Workers of loader 0: busy 97% of their time; a batch takes 80.0 ms, 20.0 ms of",
        "  it waiting for a CPU (80.0 ms of CPU time, longest 120 ms)",
        "Their time: fetch 29.0%, transform 58.0%, collate 10.0%, idle 3.0%",
        "In 40% of the waiting for a batch, later batches were ready",
        "In 30% of the waiting for a batch, the pin-memory thread copied one",
        "Memory of the largest worker: 1.5 GiB, 0.5 GiB more than at first",
        "  data.py:31  Blur.__call__                                     transform  60.0%",
        "  data.py:20  Pictures.__getitem__                              fetch      30.0%",
    ]


def test_phases_that_contradict_what_was_timed_are_left_out():
    idle = replace(WORKERS, busy=0.09, samples=117, phases={"idle": 1.0})
    assert not any(line.startswith("Their time") for line in lines(loader("0", 200, 6.0, workers=idle)))
    few = replace(idle, samples=20, phases={"fetch": 0.02, "idle": 0.98})  # may be chance
    assert any(line.startswith("Their time") for line in lines(loader("0", 200, 6.0, workers=few)))


def test_workers_that_could_not_be_observed_are_said_to_be_so():
    unseen = loader("0", 30, 0.12, num_workers=2, made_at="train.py:9")
    assert lines(unseen)[1:] == ["Workers of loader 0: no figures of what they do"]
    # torchdata's loader is made without torch's __init__, so where is not known.
    assert lines(replace(unseen, made_at=""))[1:] == ["Workers of loader 0: no figures of what they do"]
    for other in (replace(unseen, num_workers=0), replace(unseen, batches=29), replace(unseen, name="images")):
        assert lines(other)[1:] == []


def test_batches_that_the_training_makes_have_their_phases_below_the_loader():
    run = Snapshot(loaders=(loader("0", 30, 0.12),), making={"fetch": 0.29, "decode": 0.61, "collate": 0.1})
    assert loader_lines(run, FILE)[1:] == [
        "Making batches in the training itself: fetch 29.0%, decode 61.0%, collate 10.0%"
    ]


def test_work_that_is_not_sampled_is_said_to_be_so():
    wait = UnseenWait("a queue between processes", "train.py:9 main", 0.342, 171)
    run = Snapshot(unseen=(wait,))
    assert " ".join(line.strip() for line in loader_lines(run, FILE)) == (
        "Not sampled: the training spends 34.2% of the run in a queue between processes, at train.py:9 main; what runs "
        "behind it has no lines here"
    )
    assert loader_lines(replace(run, unseen=(replace(wait, share=0.009),)), FILE) == []
    # A thread of the program may read ahead from a loader of torch, whose workers are observed, in either phase.
    ahead = replace(run, loaders=(loader("0", 30, 0.12, num_workers=2),))
    assert "Not sampled" not in "".join(loader_lines(ahead, FILE))
    validation = loader("1", 30, 0.12, phase="val", num_workers=0)
    assert "Not sampled" not in "".join(loader_lines(replace(run, loaders=(validation,)), FILE))
    assert "Not sampled" in "".join(loader_lines(replace(ahead, unseen=(replace(wait, in_loader=True),)), FILE))


def test_workers_without_samples_have_only_what_is_exact():
    workers = replace(WORKERS, phases={}, lines=(), memory_bytes=None)
    assert len(lines(loader("0", 200, 6.0, workers=workers))) == 3
