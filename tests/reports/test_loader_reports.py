from training_profiler.reports.loaders import loader_lines
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot


def loader(name, batches=100, wait_s=0.1, phase="train", **others):
    others.setdefault("data_avg_s", wait_s / batches)
    return LoaderStats(name, batches, others.pop("samples", None), wait_s, phase, **others)


def lines(*loaders, is_table=True, wall_s=10.0):
    return loader_lines(Snapshot(loaders=loaders, wall_s=wall_s), is_table)


def test_no_loader_is_no_line():
    assert lines() == []


def test_a_single_loader_has_one_line():
    assert lines(loader("0", 30, 0.12, samples=480)) == ["Loader 0: 30 batches, 480 samples, 0.12s of waiting"]


def test_a_single_loader_and_that_of_validation_have_a_line_each():
    assert lines(loader("0", 30, 0.12), loader("1", 5, 0.01, phase="val")) == [
        "Loader 0: 30 batches, 0.12s of waiting",
        "Loader 1 (validation): 5 batches, 0.01s of waiting",
    ]


def two(**aux):
    return (
        loader("main", 200, 0.22, samples=800, forward_avg_s=0.004, batch_wait_avg_s=0.0125, proportion=2 / 3),
        loader("aux", 100, 1.23, proportion=1 / 3, **aux),
    )


def test_several_loaders_are_a_table_without_columns_of_nothing():
    assert lines(*two(), loader("aux", 9, 0.01, phase="val", proportion=1.0))[:5] == [
        "Loaders (ms a batch; optimizer: an update; between: since the batch before):",
        "  loader            batches  samples   data  forward  between  share",
        "  main                  200      800  1.100    4.000     12.5  66.7%",
        "  aux                   100            12.3                    33.3%",
        "  aux (validation)        9           1.111",
    ]


def test_with_lines_each_loader_is_one_to_grep():
    assert lines(*two(), is_table=False)[1:3] == [
        "loader main: batches=200, samples=800, data=1.100, forward=4.000, between=12.5, share=66.7%",
        "loader aux: batches=100, data=12.3, share=33.3%",
    ]


def test_a_loader_that_takes_over_twice_as_long_as_the_others_is_called_slow():
    assert lines(*two())[-1] == (
        "Loader aux is slow: 12.3 ms per batch, against 1.10 ms for main; it causes 85% of the wait for batches"
    )


def said(*loaders, **options):
    return " ".join(line for line in lines(*loaders, **options) if line.startswith(("Loader aux", "The mix")))


def test_a_loader_just_below_twice_the_others_is_not_called_slow():
    assert said(loader("main", 100, 1.0), loader("aux", 100, 1.99)) == ""
    assert said(loader("main", 100, 1.0), loader("aux", 100, 2.01)) != ""


def test_a_slow_loader_below_a_hundredth_of_the_run_is_not_worth_a_sentence():
    assert said(loader("main", 100, 0.1), loader("aux", 100, 0.9), wall_s=100.0) == ""


def test_a_loader_of_few_batches_is_not_compared():
    assert said(loader("main", 100, 0.1), loader("aux", 7, 0.9)) == ""


def mix(batches, asked):
    whole = sum(batches)
    return said(
        *(
            loader(name, count, 0.1, data_avg_s=None, proportion=count / whole, asked_proportion=share)
            for name, count, share in zip(("main", "aux"), batches, asked, strict=True)
        )
    )


def test_a_mix_as_asked_is_said_to_be():
    assert mix((200, 100), (2 / 3, 1 / 3)) == "The mix is main 66.7%, aux 33.3%, as asked"


def test_a_mix_that_differs_names_both_shares():
    assert mix((800, 200), (2 / 3, 1 / 3)) == (
        "The mix of loaders differs from the configured one: main 80.0% instead of 66.7%, aux 20.0% instead of 33.3%"
    )


def test_what_drawing_at_random_explains_is_as_asked():
    assert mix((72, 28), (2 / 3, 1 / 3)).endswith("as asked")  # sigma is 4.7 points


def test_one_point_is_rounding():
    assert mix((657_000, 343_000), (2 / 3, 1 / 3)).endswith("as asked")
    assert not mix((655_000, 345_000), (2 / 3, 1 / 3)).endswith("as asked")


def test_without_a_mix_that_was_asked_for_nothing_is_said_of_it():
    assert mix((800, 200), (None, None)) == ""
