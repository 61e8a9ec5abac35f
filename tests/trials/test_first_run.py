"""What the first run of a session says where it has shown too little, and how long would be enough."""

import time
from types import SimpleNamespace

import pytest

from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.trials import first_run
from training_profiler.trials.first_run import TryError, enough_budget, run_first


def snapshot_of(steps, before_s=0.0):
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


def test_an_interrupted_run_with_enough_steps_is_kept(run, tmp_path):
    first, folder = run(snapshot_of(20), interrupted=True)
    assert (first.is_interrupted, first.has_ended) == (True, False)
    assert folder == tmp_path / "runs" / "20261121-142530"


@pytest.mark.parametrize("snapshot", [Snapshot(), snapshot_of(19)])
def test_an_interrupted_run_that_has_shown_nothing_is_not_kept(run, tmp_path, snapshot):
    with pytest.raises(KeyboardInterrupt):
        run(snapshot, interrupted=True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("snapshot", "status", "message"),
    [
        (Snapshot(), 0, "^train.py: no training step was seen until its end$"),
        (snapshot_of(1), 0, "^train.py has 1 step in all; a trial needs 20$"),
        (snapshot_of(12), 1, "^train.py fails by itself: ValueError: x$"),
    ],
)
def test_a_program_that_ends_too_early_cannot_be_tried(run, snapshot, status, message):
    with pytest.raises(TryError, match=message):
        run(snapshot, status=status)


def test_an_error_of_slow_steps_names_a_budget_that_is_enough(run, monkeypatch):
    now_s = iter(range(0, 10_000, 41))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))
    with pytest.raises(TryError, match=r"makes 10 steps in .* of the budget; a trial needs 20: example: --budget"):
        run(snapshot_of(10), 100.0)


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
