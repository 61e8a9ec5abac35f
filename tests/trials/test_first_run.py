"""What the first run of a session decides: whether there is enough to try, how much fits, how many workers keep up."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.golden import assert_golden
from tests.support.loader_workers import WORKERS, machine, waiting_run
from tests.support.recording import snapshot_of
from training_profiler.model.machine import Level, MachineStats
from training_profiler.model.snapshot import LoaderStats, Snapshot, StepStats
from training_profiler.trials import first_run
from training_profiler.trials.first_run import FirstRun, TryError, enough_budget, run_first, workers_that_would_do
from training_profiler.trials.statistics import steps_of_a_block


def short_of(steps, before_s=0.0):
    return Snapshot(steps=steps, step=SimpleNamespace(before_s=before_s, total_s=float(steps)))  # type: ignore[arg-type]


class FakeLauncher:
    """Starts a training that makes steps until the user interrupts it, or it ends by itself."""

    program = SimpleNamespace(shown="train.py")
    isolation = SimpleNamespace(name_originals=lambda folder: None)

    def __init__(self, tmp_path, status=None, interrupted=False):
        self.process = self
        self.is_closed = False
        self._tmp_path, self._status, self._is_interrupted = tmp_path, status, interrupted

    def start_profiled(self):
        return self

    def runs_of(self, training):
        return self._tmp_path / "made"

    def poll(self):
        return self._status

    def listen(self, timeout_s):
        if self._is_interrupted:
            raise KeyboardInterrupt

    def memory_bytes(self):
        return 7

    def interrupt(self, timeout_s):
        pass

    def reason(self):
        return "ValueError: x"

    def close(self):
        self.is_closed = True


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "made" / "20261121-142530").mkdir(parents=True)

    def run(snapshot, budget_s=300.0, **fake):
        monkeypatch.setattr(first_run, "_read", lambda runs: snapshot)
        monkeypatch.setattr(first_run, "diagnose", lambda snapshot: [])
        monkeypatch.setattr(first_run, "newest_runs", lambda runs, count: [runs / "20261121-142530"])
        launcher = FakeLauncher(tmp_path, **fake)
        try:
            return run_first(launcher, budget_s, tmp_path / "runs", lambda part, doing: None)
        finally:
            assert launcher.is_closed

    return run


@pytest.mark.parametrize("snapshot", [Snapshot(), short_of(19)])
def test_an_interrupted_run_is_kept_if_it_has_shown_enough(run, tmp_path, snapshot):
    with pytest.raises(KeyboardInterrupt):
        run(snapshot, interrupted=True)
    assert not (tmp_path / "runs").exists()
    first, folder = run(short_of(20), interrupted=True)
    assert (first.is_interrupted, first.has_ended) == (True, False)
    assert folder == tmp_path / "runs" / "20261121-142530"


@pytest.mark.parametrize(
    ("snapshot", "status", "message"),
    [
        (Snapshot(), 0, "^train.py: no training step was seen until its end$"),
        (short_of(1), 0, "^train.py has 1 step in all; a trial needs 20$"),
        (short_of(12), 1, "^train.py fails by itself: ValueError: x$"),
    ],
)
def test_a_program_that_ends_too_early_cannot_be_tried(run, snapshot, status, message):
    with pytest.raises(TryError, match=message):
        run(snapshot, status=status)


def test_an_error_of_slow_steps_names_a_budget_that_is_enough(run, monkeypatch):
    now_s = iter(range(0, 10_000, 41))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))
    with pytest.raises(TryError, match=r"makes 10 steps in .* of the budget; a trial needs 20: example: --budget"):
        run(short_of(10), 100.0)


@pytest.mark.parametrize(
    ("step_s", "startup_s", "budget"),
    [
        # 60 steps of the first run, then twice three trainings in 12 rounds of two steps, in 40% of what is left.
        (4.0, 0.0, "16m"),
        (4.0, 10.0, "18m"),
        (0.001, 2.0, "2m"),
        (60.0, 0.0, "4h"),
    ],
)
def test_a_budget_is_enough_for_the_first_run_the_trial_and_its_confirmation(step_s, startup_s, budget):
    assert enough_budget(step_s, startup_s) == budget
    assert [steps_of_a_block(step_s) for step_s in (0.01, 0.06, 0.5)] == [11, 3, 2]  # a tenth of a second, and one


def measured(step_s=0.04, startup_s=5.0, steps=60, has_ended=False, memory_bytes=0, cores=None):
    step = StepStats(steps, steps * step_s, step_s, 5, 5 * step_s, steps - 5, step_s, 0.0, step_s, 0, steps * step_s)
    snapshot = Snapshot(steps=steps, step=step, machine=MachineStats(9, cores=cores))
    return FirstRun(snapshot, [], startup_s, memory_bytes, has_ended)


def test_a_schedule_fits_into_its_time():
    schedule = measured(cores=2.0).schedule(10, 100)
    assert schedule.rounds >= 12
    assert schedule.seconds(10, 2) <= 100
    assert measured(cores=2.0).schedule(10, 30) is None
    assert measured(step_s=30.0).schedule(3, 300) is None
    assert measured(step_s=0.001, has_ended=True, cores=2.0).schedule(4, 1000).steps < 60  # that it makes in all
    short = measured(steps=20, has_ended=True, cores=2.0)
    assert short.schedule(4, 1000) is None
    assert str(short.why_no_schedule(1000)) == "the program has 20 steps in all, too few to compare blocks of them"


@pytest.mark.parametrize(
    ("seconds", "cycle", "block_steps", "rounds"),
    [
        (10_000, 1, 4, 30),
        (10_000, 2, 9, 20),  # 0.25 s in whole cycles, and the first step, which is not measured
        (10_000, 5, 11, 20),
        (10_000, 16, 17, 20),
        (26, 5, 6, 19),  # 0.1 s in whole cycles
        (20, 16, 4, 19),  # not even one
    ],
)
def test_a_block_has_whole_cycles_of_the_workers_as_far_as_there_is_time(seconds, cycle, block_steps, rounds):
    schedule = measured(cores=4.0).schedule(4, seconds, cycle)
    assert (schedule.block_steps, schedule.rounds, schedule.warmup) == (block_steps, rounds, 5)


@pytest.mark.parametrize(("cycle", "block_steps"), [(1, 13), (2, 13), (5, 11), (7, 8), (50, 13)])
def test_blocks_of_a_short_training_have_whole_cycles_too(cycle, block_steps):
    short = measured(step_s=0.001, steps=166, has_ended=True, cores=2.0)
    assert short.schedule(4, 1000, cycle).block_steps == block_steps


def test_trainings_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    assert measured(memory_bytes=100).most_trainings() == 7
    with pytest.raises(TryError, match="no room for three trainings"):
        measured(memory_bytes=400).most_trainings()


LOADER = LoaderStats("0", 200, None, 6.0, num_workers=0, is_map_style=True)


def prediction(share, cores=2.0, loader=LOADER, loaders=None, **machine_stats):
    """Return the prediction for a training that waits for batches for this share of its steps."""
    run = snapshot_of({"data_loading": share, "forward_pass": 1 - share}, steps=200, step_s=0.05)
    run = replace(run, loaders=loaders or (loader,), machine=replace(machine(1.0, cores), **machine_stats))
    return workers_that_would_do(run, loader)


def with_workers(loader_workers, cores=8.0, num_workers=2, using_s=0.010):
    """Return the same for a training with workers, 40 ms a step."""
    run = replace(waiting_run(loader_workers, num_workers, using_s=using_s), machine=machine(2.0, cores))
    return workers_that_would_do(run, run.loaders[0])


KEEP_UP = {
    "two workers": prediction(0.62),
    "one": prediction(0.3),
    "more than 64": prediction(0.997),
    "more than there are CPUs": prediction(0.9),
    "time lost to other programs makes no batch": prediction(0.9, cpu_wait=Level(0.4, 0.4, 0.4)),
    "a CPU a rank": prediction(0.62, cores=4.0, local_ranks=4),
    "several batches a step": prediction(0.62, loader=replace(LOADER, batches=800)),
    "the times of workers count": with_workers(WORKERS),
    "within four CPUs": with_workers(WORKERS, cores=4.0),
    "workers wait for a disk": with_workers(replace(WORKERS, cpu_avg_s=0.004), cores=1.0),
    "workers wait for a CPU": with_workers(replace(WORKERS, cpu_avg_s=0.040, cpu_wait_avg_s=0.040)),
    "enough CPUs": prediction(0.9, cores=16.0),
    "unknown CPUs": workers_that_would_do(replace(waiting_run(), machine=None), waiting_run().loaders[0]),
    "it waits for nothing": prediction(0.02),
    "it uses batches in no time that could be measured": prediction(1.0),
    "each worker may yield everything": prediction(0.62, loader=replace(LOADER, is_map_style=False)),
    "a loader that is not torch's": prediction(0.62, loader=replace(LOADER, num_workers=None)),
    "unknown workers": with_workers(None),
    "few batches of workers": with_workers(replace(WORKERS, batches=9)),
    "enough workers, and late for another reason": with_workers(WORKERS, num_workers=8),
    "one of two loaders": prediction(0.62, loaders=(LOADER, replace(LOADER, name="1"))),
}


def test_how_many_workers_would_keep_up_is_said_where_it_matters_and_is_known():
    texts = [f"##### {name}\n{text or '(nothing)'}\n" for name, text in KEEP_UP.items()]
    assert_golden(Path(__file__).parents[1] / "golden" / "reports" / "workers.txt", "".join(texts))
