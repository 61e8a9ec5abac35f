import pytest

from training_profiler.trials.interleaved import BlockSchedule, Interleaved, Outcome, steps_of_a_block
from training_profiler.trials.process import Block, EndedError, InapplicableError, TrialError
from training_profiler.trials.statistics import AGAIN, UNCHANGED, Wave

SCHEDULE = BlockSchedule(warmup=3, rounds=12, block_steps=5, step_s=0.1, startup_s=1.0)


class FakeTraining:
    """A training whose blocks take a known time; fails in a block, where that is asked for."""

    def __init__(self, step_s=0.1, fails_at=None, error=None):
        self.process = self
        self.is_closed = False
        self.blocks = 0
        self._step_s, self._fails_at, self._error = step_s, fails_at, error or TrialError("out of memory")

    def wait_for_block(self, timeout_s):
        return Block(None, 2.0, (("0x1p+0",),) * 3, 7)

    def run_block(self, steps, timeout_s):
        assert not self.is_closed
        if self.blocks == self._fails_at:
            raise self._error
        self.blocks += 1
        return Block(self._step_s, None, (("0x1p+0",),) * steps, 7)

    def close(self):
        self.is_closed = True


def run(trainings, must_end=lambda: False):
    fakes = {UNCHANGED: FakeTraining(), AGAIN: FakeTraining(), **trainings}
    wave = Wave.of(list(trainings), SCHEDULE.rounds)
    interleaved = Interleaved(
        lambda name: fakes[name], SCHEDULE, wave, {name: Outcome() for name in fakes}, must_end=must_end
    )
    try:
        interleaved.run()
    finally:
        assert all(fake.is_closed for fake in fakes.values())
    return interleaved


def test_each_training_runs_a_block_in_each_round_and_all_are_closed():
    fast = FakeTraining(0.05)
    interleaved = run({"fast": fast})
    assert interleaved.wave.done == fast.blocks == 12
    assert interleaved.wave.effects()["fast"].relative == pytest.approx(-0.5)
    assert interleaved.wave.shown == {"fast"}
    assert len(interleaved.outcomes["fast"].losses) == 3 + 12 * 5


def test_a_change_that_fails_leaves_the_others_alone():
    interleaved = run({"fast": FakeTraining(0.05), "large": FakeTraining(0.05, fails_at=4)})
    assert interleaved.outcomes["large"].failure == "out of memory"
    assert interleaved.wave.shown == {"fast"}


def test_a_change_that_finds_nothing_to_change_has_not_failed():
    inapplicable = FakeTraining(fails_at=0, error=InapplicableError("no convolutions"))
    outcome = run({"fast": FakeTraining(0.05), "last": inapplicable}).outcomes["last"]
    assert (outcome.failure, outcome.applies) == ("no convolutions", False)


def test_a_failure_of_the_unchanged_training_ends_the_session():
    broken = FakeTraining(fails_at=0)
    with pytest.raises(TrialError, match="out of memory"):
        run({"fast": FakeTraining(0.05), UNCHANGED: broken})


def test_a_training_that_comes_to_its_end_ends_the_rounds_with_what_is_known():
    interleaved = run({"fast": FakeTraining(0.05, fails_at=9, error=EndedError("it came to its end"))})
    assert interleaved.outcomes["fast"].failure is None
    assert interleaved.wave.shown == {"fast"}


def test_the_rounds_end_when_the_time_is_up():
    answers = iter([False] * 8)
    interleaved = run({"fast": FakeTraining(0.05)}, must_end=lambda: next(answers, True))
    assert interleaved.wave.done == 8
    assert interleaved.wave.shown == {"fast"}


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, 11), (0.06, 3), (0.5, 2)])
def test_a_block_is_at_least_a_tenth_of_a_second_and_one_step_to_begin_with(step_s, steps):
    assert steps_of_a_block(step_s) == steps
