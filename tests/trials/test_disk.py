"""A session ends before its trainings fill the disk."""

import pytest

from tests.trials.test_interleaved import FakeTraining
from tests.trials.test_planning import first_run
from training_profiler.trials import session
from training_profiler.trials.child import ChildPlan
from training_profiler.trials.disk import DiskSpaceError, DiskWatch, free_bytes_of
from training_profiler.trials.launcher import Program
from training_profiler.trials.process import TrialProcess
from training_profiler.trials.results import FASTER, NOT_CONFIRMED, NOT_SHOWN
from training_profiler.trials.state import Wishes

GIB = 2**30
FULL = DiskSpaceError("stopped before the disk is full")


def watch(tmp_path, *free_gib):
    """Return a watch of a disk that has this much space each time it is asked."""
    found = iter(free_gib)
    return DiskWatch(tmp_path, lambda folder: int(next(found) * GIB))


def test_the_session_ends_when_a_quarter_of_the_free_space_is_left(tmp_path):
    disk = watch(tmp_path, 100, 60, 25, 24.9)
    disk.check()
    disk.check()
    with pytest.raises(DiskSpaceError, match=r"had 100\.0 GiB free, and has 24\.9 GiB; TMPDIR"):
        disk.check()


def test_the_space_is_that_of_the_disk(tmp_path):
    assert free_bytes_of(tmp_path) > 0
    DiskWatch(tmp_path).check()


def test_the_space_is_watched_while_a_training_runs(tmp_path):
    training = TrialProcess(tmp_path, ChildPlan("", "no table", [], 3), watch(tmp_path, 100, 10).check)
    try:
        with pytest.raises(DiskSpaceError):
            training.wait_for_block(60)
    finally:
        training.close()


class FakeLauncher:
    """Starts trainings of which the first, unchanged ones find the disk full in a block."""

    def __init__(self, full_in):
        self.program = Program(["python", "train.py"], True, "train.py")
        self.trainings = []
        self._full_in = iter(full_in)  # one for each wave of trainings

    def start(self, treatments, warmup):
        is_first = all(training.is_closed for training in self.trainings)
        fails_at = next(self._full_in) if is_first else None
        self.trainings.append(FakeTraining(0.02 if treatments else 0.04, fails_at, FULL))
        return self.trainings[-1]

    def left(self):
        return []


def run(monkeypatch, tmp_path, *full_in):
    monkeypatch.setattr(session, "run_first", lambda *given: (first_run(), tmp_path))
    launcher = FakeLauncher(full_in)
    wishes = Wishes(300.0, only=("sleep*0.5",))
    try:
        return session.TrialSession(launcher, "tests.trials.changes", wishes, tmp_path, clock=lambda: 0.0).run()
    finally:
        assert all(training.is_closed for training in launcher.trainings)


@pytest.mark.parametrize(
    ("full_in", "verdict"),
    [
        ((1,), NOT_SHOWN),  # too few rounds for a verdict
        ((8,), NOT_CONFIRMED),
        ((None, 0), NOT_CONFIRMED),  # before the fresh trials
        ((None, 25), FASTER),
    ],
)
def test_the_results_so_far_are_kept_with_the_reason(monkeypatch, tmp_path, full_in, verdict):
    results = run(monkeypatch, tmp_path, *full_in)
    (row,) = results.rows
    assert row.verdict == verdict
    assert row.effect.relative == pytest.approx(-0.5)
    assert results.is_interrupted
    assert results.notes.count(str(FULL)) == 1


def test_a_session_without_a_result_is_an_error(monkeypatch, tmp_path):
    with pytest.raises(DiskSpaceError):
        run(monkeypatch, tmp_path, 0)
