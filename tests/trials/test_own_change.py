"""One change of the user's: what a session says of it, by the times of fake trainings."""

from dataclasses import replace
from functools import partial
from math import sin
from pathlib import Path

import msgspec
import pytest

from tests.support.golden import assert_golden
from tests.trials.fake_training import FakeTraining
from tests.trials.test_first_run import measured
from training_profiler.reports.layout import Layout
from training_profiler.trials import own_change
from training_profiler.trials.first_run import TryError
from training_profiler.trials.launcher import Program
from training_profiler.trials.own_change import ChangeSession
from training_profiler.trials.process import EndedError, TrialError, UnderWay
from training_profiler.trials.report import change_verdict, render_change
from training_profiler.trials.results import FAILED, FASTER, NOT_SHOWN, SLOWER, UNDECIDED
from training_profiler.trials.statistics import CpuUse
from training_profiler.trials.variants import AS_IT_IS, Variant

CHANGED = Variant("fix.diff")
GOLDEN = Path(__file__).parents[1] / "golden" / "reports" / "own_change.txt"


def noise(number, blocks):
    """Return by how much a block is longer: it varies by 1%, and every tenth takes a half more."""
    return 1 + 0.01 * sin(number + 2.1 * blocks) + 0.5 * ((blocks + number) % 10 == 0)


class FakeLauncher:
    def __init__(self, changed, base):
        self.program, self.base = Program(["python", "train.py"], True, "train.py"), AS_IT_IS
        self.trainings = []
        self._forms = {AS_IT_IS: base, CHANGED: changed}

    def start(self, treatments, warmup, variant):
        form = self._forms[variant]
        form = form[len(self.trainings)] if isinstance(form, list) else form
        number = len(self.trainings)
        self.trainings.append(FakeTraining(noise=partial(noise, number), memory_bytes=2**29 + number * 2**20, **form))
        return self.trainings[-1]


@pytest.fixture
def found(monkeypatch, tmp_path):
    def run(changed, base=None, first=None, budget_s=300.0):
        monkeypatch.setattr(own_change, "run_first", lambda *given: (first or measured(cores=2.0), tmp_path))
        launcher = FakeLauncher(changed, base or {})
        results = ChangeSession(launcher, CHANGED, budget_s, tmp_path, clock=lambda: 0.0).run()
        assert all(training.is_closed for training in launcher.trainings)
        return replace(results, seconds=101.0)

    return run


DIFFERS = {"losses": (1.25).hex(), "prints": (1, 9)}
BUSY = CpuUse(1.0, 0.5, 0.9, 0.5)
CASES = {
    "a quarter less": ({"step_s": 0.03}, {}, FASTER),
    "a quarter more, and other losses": ({"step_s": 0.05, **DIFFERS}, {}, SLOWER),
    "nothing": ({}, {}, NOT_SHOWN),
    "nothing, beside checkpoints in every third block": ({"saving_s": 0.5}, {"saving_s": 0.5}, NOT_SHOWN),
    "slower checkpoints in every third block": ({"saving_s": 1.0}, {"saving_s": 0.5}, SLOWER),
    "twice the batch in less than twice the time": ({"step_s": 0.06, "samples": 64}, {}, FASTER),
    "a crash": ({"fails_at": 3, "error": TrialError("out of memory")}, {}, FAILED),
    "an end of its own": ({"fails_at": 15, "error": EndedError("it came to its end")}, {}, NOT_SHOWN),
    "a base that differs from itself": ({}, [{}, {"step_s": 0.06}, {}], UNDECIDED),
    "a CPU that others had": ({"step_s": 0.05, "cpu": BUSY}, {"cpu": CpuUse(1.0, 0.5, 0.9, 0.1)}, UNDECIDED),
    "losses that rounding moves": ({"losses": (1 + 2e-7).hex()}, {}, NOT_SHOWN),
}


def test_what_is_said_of_a_change(found):
    texts = []
    for name, (changed, base, verdict) in CASES.items():
        results = found(changed, base)
        (row,) = results.rows
        assert row.verdict == verdict, name
        texts += [f"--- {name}", render_change(results, "fix.diff", "as it is", Layout(80))]
        assert all(len(line) <= 40 for line in render_change(results, "fix", "it", Layout(40)).splitlines()), name
    assert_golden(GOLDEN, "\n".join(texts))


def test_times_of_samples_are_compared_where_batches_differ(found):
    (row,) = found({"step_s": 0.06, "samples": 64}).rows
    assert row.effect.relative == pytest.approx(-0.25, abs=0.02)
    (row,) = found({"step_s": 0.06, "samples": 64}, {"samples": 0.0}).rows  # of which one is unknown
    assert row.effect.relative == pytest.approx(0.5, abs=0.02)


def test_a_program_that_fails_without_the_change_is_refused(found):
    with pytest.raises(TryError, match=r"train.py failed without the change: out of memory"):
        found({}, {"fails_at": 3, "error": TrialError("out of memory")})
    with pytest.raises(TryError, match=r"fewer than 20 steps of each training fit into 10.0 s: .*--budget"):
        found({}, budget_s=10.0)


def test_a_wide_interval_decides_nothing(found, monkeypatch):
    monkeypatch.setitem(globals(), "noise", lambda number, blocks: 1.5 + sin(99 * number + 7 * blocks))
    (row,) = found({}, budget_s=30.0).rows
    assert row.verdict == UNDECIDED
    assert change_verdict(row).endswith(" a step; the interval is too wide")


@pytest.mark.parametrize(("alone", "cores"), [(0.03, 2.0), (None, 2.0), (0.03, 0.5)])
def test_waiting_for_cpus_that_others_had_is_left_out_where_all_trainings_say_how_long_it_was(found, alone, cores):
    waits = {"cpu": CpuUse(1.0, 0.5, 1.5, 0.5), "alone_s": (0.02, 0.02)}
    results = found({**waits, "alone_s": alone and (alone, alone)}, waits, measured(cores=cores))
    alone = alone if cores >= 1 else None  # a quota makes them wait as well
    (row,) = results.rows
    assert row.effect.relative == pytest.approx(0.5 if alone else 0.0, abs=0.01)
    assert results.unchanged_step_s == pytest.approx(0.02 if alone else 0.04, abs=0.001)
    left_out = "times leave out the waiting for CPUs that others had, 50% of the time"
    assert (left_out in results.notes) == (alone is not None)


def test_a_session_goes_on_where_it_was_interrupted(tmp_path):
    first, kept = measured(cores=2.0), []
    times = iter([0.0] * 60 + [1e6] * 10)
    sessions = []
    for clock in (lambda: next(times), lambda: 0.0):
        session = ChangeSession(FakeLauncher({}, {}), CHANGED, 300.0, tmp_path, clock=clock, first=first)
        session.under_way = msgspec.json.decode(kept[-1], type=UnderWay) if kept else None
        session.keep = lambda session=session: kept.append(msgspec.json.encode(session.under_way))
        sessions.append(session.run().rows[0].effect.rounds)
    assert sessions[0] in range(40, 61)
    assert sessions[1] > sessions[0]
