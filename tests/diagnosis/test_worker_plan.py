"""How many workers a loader needs, within what the CPUs allow."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.loader_workers import BLUR, WORKERS, machine, waiting_run
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.loader_fixes import stalls_fix, waiting_fix
from training_profiler.snapshot.snapshot import LineStats, Snapshot, WorkerStats


def waiting(run: Snapshot) -> Finding:
    return next(finding for finding in diagnose(run) if finding.code == "data-loading-bound")


def test_the_finding_names_the_line_in_the_workers() -> None:
    finding = waiting(waiting_run())
    assert finding.message.endswith(
        "; in the workers above all data.py:31 Blur.__call__ (60% of their work: transform)"
    )
    assert "data.py:20 Pictures.__getitem__ (30% of their work: fetch)" in str(finding.evidence["lines"])


def test_without_samples_in_workers_no_line_of_theirs_is_named() -> None:
    assert "workers above" not in waiting(waiting_run(workers=None)).message
    assert "workers above" not in waiting(waiting_run(replace(WORKERS, lines=()))).message


def test_enough_workers_for_steps_without_waiting_are_advised_where_cpus_are_free() -> None:
    # 80 ms to make a batch and 10 ms to use it: eight workers, which take 6 CPUs more than now.
    run = waiting_run(busy=2.0, using_s=0.010)
    assert waiting_fix(run).startswith(
        "Set DataLoader(num_workers=8), now 2: making a batch takes 80.0 ms in a worker, using it 10.0 ms"
    )
    assert waiting(run).potential_saving_s == pytest.approx(200 * 0.030)


def test_the_cpus_limit_the_workers_and_the_saving() -> None:
    # Two workers use 2 CPUs and 2 are free: four workers make a batch each 20 ms.
    run = waiting_run(busy=6.0, using_s=0.010)
    assert waiting_fix(run).startswith(
        "Set DataLoader(num_workers=4), now 2: more would find no free CPU, so a batch takes at least 20.0 ms; without "
        "waiting 8 would be needed"
    )
    assert waiting(run).potential_saving_s == pytest.approx(200 * 0.020)


def test_no_more_workers_are_advised_where_no_cpu_is_free() -> None:
    fix = waiting_fix(waiting_run(busy=7.8))
    assert fix.startswith(
        "More workers would not help: all CPUs are busy, and making a batch takes 80.0 ms of CPU time, using it "
        "10.0 ms. Preprocess less per sample"
    )
    assert "num_workers" not in fix


IDLE_WORKERS = replace(WORKERS, batch_avg_s=0.004, cpu_avg_s=0.004, batch_max_s=0.050, phases={"idle": 0.9})


def handed_over(workers: WorkerStats = IDLE_WORKERS, median_s: float = 0.020, first_batches: int = 4) -> Snapshot:
    """Return a training whose batches take longer from the worker to the training than to be made."""
    run = waiting_run(workers)
    fetches = replace(run.sections["data_loading"], p50_s=median_s)
    first_s = median_s * first_batches
    first = replace(fetches, name="first_fetch", count=first_batches, total_s=first_s, parent="data_loading")
    return replace(run, sections={**run.sections, "data_loading": fetches, "first_fetch": first})


def test_no_workers_are_advised_where_taking_over_a_batch_takes_longer_than_making_it() -> None:
    run = handed_over()
    assert waiting_fix(run) == (
        "Set DataLoader(num_workers=0), now 2: the training waits 20.0 ms to take a batch over from workers that are "
        "mostly idle, and making a batch takes 4.00 ms in a worker, using it 10.0 ms"
    )
    found = waiting(run)
    assert found.potential_saving_s == pytest.approx(200 * (0.040 - 0.010 - 0.004))
    assert found.evidence["handing_over_s"] == 0.020
    assert stalls_fix(run) == waiting_fix(run)  # uneven steps have the same cause


@pytest.mark.parametrize(
    "run",
    [
        handed_over(replace(IDLE_WORKERS, phases={"idle": 0.2})),  # busy workers are late
        handed_over(median_s=0.003),  # a few long waits
        handed_over(first_batches=100),  # passes of two batches
        handed_over(replace(IDLE_WORKERS, batch_avg_s=0.027), median_s=0.028),  # hardly less than now
    ],
)
def test_workers_stay_where_something_else_makes_the_training_wait(run: Snapshot) -> None:
    assert "num_workers=0)" not in waiting_fix(run)


def test_workers_stay_where_the_sampler_is_slow() -> None:
    """They wait for its numbers, which the training process computes with any number of workers."""
    own = LineStats("train.py", 40, "train", 0.4, 200)
    sampler = LineStats("data.py", 8, "Buckets.__iter__", 0.3, 150, phase="sampler")
    run = handed_over()
    assert "num_workers=0)" in waiting_fix(replace(run, lines={"data_loading": (own,)}))
    assert "num_workers=0)" not in waiting_fix(replace(run, lines={"data_loading": (own, sampler)}))


def test_workers_that_wait_for_a_disk_need_no_cpus() -> None:
    reading = replace(WORKERS, cpu_avg_s=0.008)
    assert waiting_fix(waiting_run(reading, busy=7.0)).startswith("Set DataLoader(num_workers=8), now 2")


def test_waiting_for_a_cpu_is_not_work_that_more_workers_share() -> None:
    crowded = replace(WORKERS, batch_avg_s=0.160, queued_avg_s=0.080)
    assert "num_workers=8" in waiting_fix(waiting_run(crowded, busy=2.0))


def test_workers_that_are_fast_enough_on_average_are_not_multiplied() -> None:
    fast = replace(WORKERS, batch_avg_s=0.015, cpu_avg_s=0.015, batch_max_s=0.9)
    fix = waiting_fix(waiting_run(fast))
    assert fix.startswith("The 2 workers are enough for batches of mean length, but some take much longer: making a")
    assert "some take" not in waiting_fix(waiting_run(replace(fast, batch_max_s=0.02)))


def test_the_longest_batch_delays_nothing_while_those_made_ahead_are_used() -> None:
    fast = replace(WORKERS, batch_avg_s=0.005, cpu_avg_s=0.005, batch_max_s=0.039)
    run = waiting_run(fast)
    ahead = replace(run, loaders=(replace(run.loaders[0], prefetch_factor=2),))  # 4 batches of 10 ms
    assert "some take" not in waiting_fix(ahead)
    longer = replace(ahead.loaders[0], workers=replace(fast, batch_max_s=0.041))
    assert "some take" in waiting_fix(replace(ahead, loaders=(longer,)))


def test_enough_workers_that_are_started_for_each_pass_are_to_be_kept() -> None:
    run = waiting_run(replace(WORKERS, batch_avg_s=0.005, cpu_avg_s=0.005, batch_max_s=0.01))
    fetches = run.sections["data_loading"]
    first = replace(fetches, name="first_fetch", step_total_s=0.9 * fetches.step_total_s, parent="data_loading")
    short = replace(run, sections={**run.sections, "first_fetch": first})
    remade = replace(run.loaders[0], is_remade=True)
    fix = waiting_fix(replace(short, loaders=(remade,)))
    assert fix.startswith("Make the DataLoader once, before the loop: the program makes a new one for each pass; then ")
    assert fix.endswith(
        "workers are enough for batches of mean length: making a batch takes 5.00 ms in a worker, using it 10.0 ms"
    )


@pytest.mark.parametrize(
    "run",
    [
        waiting_run(workers=None),
        waiting_run(replace(WORKERS, batches=15)),
        replace(waiting_run(), loaders=waiting_run().loaders * 2),  # which of them made the steps wait?
    ],
)
def test_what_was_not_measured_is_not_said(run: Snapshot) -> None:
    assert "making a batch" not in waiting_fix(run)


def test_another_order_is_advised_where_ready_batches_wait_and_workers_do_too() -> None:
    uneven = replace(WORKERS, batch_avg_s=0.015, cpu_avg_s=0.015, batch_max_s=0.9, busy=0.4, held=0.62)
    advice = "set in_order=False if batches may come in another order: in 62% of the waiting, later ones were ready"
    assert advice in waiting_fix(waiting_run(uneven))
    for other in ({"busy": 0.97}, {"held": 0.1}, {"held": None}):  # busy workers make no more in another order
        assert "in_order" not in waiting_fix(waiting_run(replace(uneven, **other)))


def test_several_batches_a_step_are_counted() -> None:
    run = waiting_run(using_s=0.010)
    loader = replace(run.loaders[0], batches=400)
    # Two batches in each step of 40 ms, so 5 ms to use one.
    assert "using it 5.00 ms" in waiting_fix(replace(run, loaders=(loader,)))


def test_lines_of_several_loaders_are_weighed_by_their_work() -> None:
    run = waiting_run()
    other = replace(
        run.loaders[0], name="1", workers=replace(WORKERS, batches=600, lines=(replace(BLUR, file="b.py"),))
    )
    lines = replace(run, loaders=(*run.loaders, other)).lines_in_workers()
    assert [(line.file, round(line.share, 3)) for line in lines] == [
        ("b.py", 0.45),
        ("data.py", 0.15),
        ("data.py", 0.075),
    ]


def making(cpu_s: float | None = 0.028, busy: float = 1.0, cores: float = 8.0, **loader: Any) -> Snapshot:
    """Return a training that makes its batches itself: 40 ms a step, of which it uses 10 ms."""
    run = waiting_run(workers=None, num_workers=0)
    zero = replace(run.loaders[0], making_cpu_avg_s=cpu_s, prefetch_factor=None, **loader)
    return replace(run, loaders=(zero,), machine=machine(busy, cores))


def test_a_training_that_makes_its_batches_itself_gets_the_number_of_workers_that_would_do() -> None:
    finding = waiting(making())
    assert finding.fix.startswith(
        "Set DataLoader(num_workers=3), now 0: making a batch takes 30.0 ms (28.0 ms of CPU time), using it 10.0 ms"
    )
    assert finding.potential_saving_s == pytest.approx(200 * 0.030)
    figures = (
        "num_workers",
        "workers_needed",
        "workers_useful",
        "making_s",
        "making_cpu_s",
        "using_s",
        "least_batch_s",
    )
    assert [finding.evidence[figure] for figure in figures] == [
        *(0, 3, 3),
        *(pytest.approx(seconds) for seconds in (0.030, 0.028, 0.010, 0.010)),
    ]


def test_the_ceiling_without_workers_is_all_cpu_time_of_a_batch_on_the_cpus_that_there_are() -> None:
    # One CPU is used and one is free: 40 ms of CPU time for a batch take 20 ms on both.
    finding = waiting(making(cores=2.0))
    assert finding.fix.startswith(
        "Set DataLoader(num_workers=2), now 0: more would find no free CPU, so a batch takes at least 20.0 ms; without "
        "waiting 3 would be needed"
    )
    assert finding.potential_saving_s == pytest.approx(200 * 0.020)
    assert finding.evidence["least_batch_s"] == pytest.approx(0.020)


def lines_of_making(part: float) -> dict[str, tuple[LineStats, ...]]:
    called = {"np.load": part * 0.75}
    decode = LineStats("data.py", 7, "DS.__getitem__", part * 0.75, 90, phase="decode", called=called)
    loop = LineStats("train.py", 20, "main", 0.75 - decode.share, 10, phase="collate")
    return {"data_loading": (decode, loop)}


def test_doing_without_the_line_that_takes_longest_may_save_more_than_workers_can() -> None:
    run = making(cores=2.0)
    finding = waiting(replace(run, lines=lines_of_making(0.9)))
    assert finding.potential_saving_s == pytest.approx(200 * 0.030 * 0.9)
    assert finding.fix.startswith("Set DataLoader(num_workers=2), now 0")
    assert "less work in data.py:7 can save more" in finding.fix


@pytest.mark.parametrize(
    "lines",
    [
        lines_of_making(0.5),  # less than workers save
        {"data_loading": tuple(replace(line, called={}) for line in lines_of_making(0.9)["data_loading"])},
        {"data_loading": tuple(replace(line, called={"next": 0.6}) for line in lines_of_making(0.9)["data_loading"])},
        {"data_loading": tuple(replace(line, samples=3) for line in lines_of_making(0.9)["data_loading"])},
    ],
)
def test_other_lines_do_not_change_what_workers_save(lines: dict[str, tuple[LineStats, ...]]) -> None:
    finding = waiting(replace(making(cores=2.0), lines=lines))
    assert finding.potential_saving_s == pytest.approx(200 * 0.020)
    assert "can save more" not in finding.fix


def calling(name: str, part: float = 0.9, of_line: float = 1.0) -> dict[str, tuple[LineStats, ...]]:
    decode, loop = lines_of_making(part)["data_loading"]
    return {"data_loading": (replace(decode, called={name: of_line * decode.share}), loop)}


@pytest.mark.parametrize("name", ["torch.tensor", "np.array", "torch.FloatTensor"])
def test_tensors_that_take_most_of_the_waiting_are_made_ahead_of_time(name: str) -> None:
    finding = waiting(replace(making(cores=2.0), lines=calling(name)))
    assert finding.fix.startswith("Set DataLoader(num_workers=2), now 0")
    assert finding.fix.endswith(
        "; make the tensors of data.py:7 ahead of time, or from NumPy arrays where they are made of lists"
    )


@pytest.mark.parametrize(
    "lines", [calling("torch.tensor", part=0.45), calling("torch.tensor", of_line=0.5), calling("augmented.tensor2")]
)
def test_tensors_that_take_less_of_the_waiting_have_no_fix(lines: dict[str, tuple[LineStats, ...]]) -> None:
    assert "make the tensors" not in waiting(replace(making(cores=2.0), lines=lines)).fix


def test_workers_would_not_help_where_no_cpu_is_free() -> None:
    finding = waiting(making(busy=7.8))
    assert finding.fix.startswith(
        "Workers would not help: all CPUs are busy, and making a batch takes 28.0 ms of CPU time, using it 10.0 ms. "
        "Preprocess less per sample"
    )
    assert finding.evidence["workers_useful"] == 0
    assert finding.potential_saving_s == pytest.approx(200 * 0.030)  # by less preprocessing


def test_batches_that_wait_for_a_disk_need_little_cpu() -> None:
    # A quarter of one CPU is used, and so much is free.
    assert waiting(making(cpu_s=0.002, busy=0.25, cores=1.0)).evidence["least_batch_s"] == pytest.approx(0.010)


def test_an_iterable_data_set_has_to_divide_its_samples() -> None:
    assert "get_worker_info" in waiting_fix(making(is_map_style=False))
    assert "get_worker_info" not in waiting_fix(making(is_map_style=True))


@pytest.mark.parametrize(
    "run", [making(cpu_s=None), making(cpu_s=0.090), making(batches=15), replace(making(), machine=None)]
)
def test_what_is_not_known_without_workers_is_not_said(run: Snapshot) -> None:
    finding = waiting(run)
    assert "no free CPU" not in finding.fix
    assert finding.evidence.get("least_batch_s", 0.010) == pytest.approx(0.010)


def test_the_figures_of_workers_are_evidence_as_well() -> None:
    evidence = waiting(waiting_run(busy=6.0, using_s=0.010)).evidence
    assert (evidence["num_workers"], evidence["workers_needed"], evidence["workers_useful"]) == (2, 8, 4)
    assert evidence["least_batch_s"] == pytest.approx(0.020)
