"""How many workers would keep up follows from the time for a batch, and from the CPUs."""

from dataclasses import replace

import pytest

from tests.support.loader_workers import WORKERS, machine, waiting_run
from tests.support.recording import snapshot_of
from training_profiler.snapshot.machine import Level
from training_profiler.snapshot.snapshot import LoaderStats
from training_profiler.trials.workers import workers_that_would_do

LOADER = LoaderStats("0", 200, None, 6.0, num_workers=0, is_map_style=True)


def prediction(share, cores=2.0, loader=LOADER, step_s=0.05, **machine_stats):
    """Return the prediction for a training that waits for batches for this share of its steps."""
    run = snapshot_of({"data_loading": share, "forward_pass": 1 - share}, steps=200, step_s=step_s)
    run = replace(run, loaders=(loader,), machine=replace(machine(1.0, cores), **machine_stats))
    return workers_that_would_do(run, loader)


def with_workers(loader_workers, cores=8.0, num_workers=2, using_s=0.010):
    """Return the same for a training with workers, 40 ms a step."""
    run = replace(waiting_run(loader_workers, num_workers, using_s=using_s), machine=machine(2.0, cores))
    return workers_that_would_do(run, run.loaders[0])


def test_without_workers_the_training_itself_has_shown_how_long_a_batch_takes():
    assert (
        prediction(0.62) == "2 workers would keep up, with a CPU each: a batch takes 31.0 ms to make and 19.0 ms to use"
    )
    assert str(prediction(0.3)).startswith("1 worker would keep up: ")


def test_a_loader_that_takes_nearly_all_of_a_step_is_bounded_by_the_cpus():
    assert prediction(0.997) == (
        "more than 64 workers would be needed to keep up, with a CPU each: a batch takes 49.9 ms to make and 0.15 ms "
        "to use; if all of that is computing, 2 CPUs would make one in 24.9 ms at best"
    )
    assert str(prediction(0.9)).endswith("; if all of that is computing, 2 CPUs would make one in 22.5 ms at best")
    assert str(prediction(0.9)).startswith("9 workers would keep up, ")


def test_with_enough_cpus_or_unknown_ones_no_bound_is_said():
    assert "at best" not in str(prediction(0.9, cores=16.0))
    run = replace(waiting_run(), machine=None)
    assert "at best" not in str(workers_that_would_do(run, run.loaders[0]))


def test_time_that_the_training_lost_to_other_programs_is_not_time_for_a_batch():
    text = prediction(0.9, cpu_wait=Level(0.4, 0.4, 0.4))
    assert text == (
        "9 workers would keep up, with a CPU each: a batch takes 27.0 ms to make and 3.00 ms to use; if all of that is "
        "computing, 2 CPUs would make one in 13.5 ms at best"
    )


def test_ranks_share_the_cpus():
    assert str(prediction(0.62, cores=4.0, local_ranks=4)).endswith("1 CPU a rank would make one in 31.0 ms at best")


def test_a_step_of_several_batches_uses_each_of_them_in_a_part_of_its_time():
    loader = replace(LOADER, batches=800)
    assert str(prediction(0.62, loader=loader)).endswith("a batch takes 7.75 ms to make and 4.75 ms to use")


def test_with_workers_their_own_times_count():
    assert with_workers(WORKERS) == "8 workers would keep up: a batch takes 80.0 ms to make and 10.0 ms to use"
    assert with_workers(WORKERS, cores=4.0) == (
        "8 workers would keep up: a batch takes 80.0 ms to make and 10.0 ms to use; "
        "4 CPUs would make one in 20.0 ms at best"
    )


def test_workers_that_wait_for_a_disk_need_few_cpus():
    text = with_workers(replace(WORKERS, cpu_avg_s=0.004), cores=1.0)
    assert text == "8 workers would keep up: a batch takes 80.0 ms to make and 10.0 ms to use"


def test_time_in_which_a_worker_had_no_cpu_is_not_time_for_a_batch():
    queued = replace(WORKERS, cpu_avg_s=0.040, queued_avg_s=0.040)
    assert str(with_workers(queued)).startswith("4 workers would keep up: a batch takes 40.0 ms to make")


@pytest.mark.parametrize(
    "text",
    [
        prediction(0.02),  # waits for nothing
        prediction(1.0),  # uses batches in no time that could be measured
        prediction(0.62, loader=replace(LOADER, is_map_style=False)),  # each worker may yield everything
        prediction(0.62, loader=replace(LOADER, num_workers=None)),  # not torch's
        with_workers(None),
        with_workers(replace(WORKERS, batches=9)),
        with_workers(WORKERS, num_workers=8),  # enough, and late for another reason
    ],
)
def test_nothing_is_said_where_it_is_unknown_or_does_not_matter(text):
    assert text is None


def test_nothing_is_said_of_two_loaders_whose_waiting_is_known_only_together():
    run = snapshot_of({"data_loading": 0.62}, steps=200)
    run = replace(run, loaders=(LOADER, replace(LOADER, name="1")), machine=machine(1.0))
    assert workers_that_would_do(run, LOADER) is None
