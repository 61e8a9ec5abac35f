"""A session runs trainings in turns; one that was interrupted goes on, and what has a last word keeps it."""

from dataclasses import replace

import pytest

from tests.trials import changes
from tests.trials.fake_training import FakeTraining
from tests.trials.test_first_run import measured
from training_profiler.base.errors import RunFolderError
from training_profiler.trials import session
from training_profiler.trials.first_run import TryError
from training_profiler.trials.launcher import DiskSpaceError, Program
from training_profiler.trials.process import EndedError, InapplicableError, TrialError
from training_profiler.trials.results import FAILED, FASTER, NO_VERDICT, NOT_CONFIRMED, NOT_SHOWN, NOT_TRIED, UNDECIDED
from training_profiler.trials.session import TrialSession
from training_profiler.trials.state import FILE, Wishes, held, load_state, save_state
from training_profiler.trials.statistics import CpuUse
from training_profiler.trials.treatment import TrialFacts

UNCHANGED = ()
HALF, DOUBLE, NOTHING, OTHER = ("sleep=0.5",), ("sleep=2",), ("nothing",), ("losses",)
ONLY = {"only": ("sleep=0.5",)}
TWO = {"only": ("sleep=0.5", "losses")}


class FakeLauncher:
    """Starts trainings whose steps take a time by their changes; those of a name in ``ends`` raise in a round.

    Args:
        step_s: by the changes of a training.
        ends: by the changes: the start, the round and the error of a training that raises.
        cpu: by the changes: what a block of a training used of the CPUs.
    """

    def __init__(self, step_s=None, ends=None, cpu=None):
        self._cpu = cpu or {}
        self.program = Program(["python", "train.py"], True, "train.py")
        self.starts = []
        self.trainings = []
        self._step_s = {HALF: 0.02, DOUBLE: 0.08, OTHER: 0.03} | (step_s or {})
        self._ends = ends or {}

    def start(self, treatments, warmup):
        changes = tuple(each.name for each in treatments)
        self.starts.append(changes)
        start, fails_at, error = self._ends.get(changes, (0, None, None))
        step_s = self._step_s.get(changes, 0.01 if len(changes) > 1 else 0.04)
        step_s = step_s[min(self.starts.count(changes), len(step_s)) - 1] if isinstance(step_s, list) else step_s
        is_this = self.starts.count(changes) == start
        fails = {"fails_at": fails_at if is_this else None, "error": error or TrialError("out of memory")}
        self.trainings.append(FakeTraining(step_s, cpu=self._cpu.get(changes), **fails))
        return self.trainings[-1]

    def left(self):
        return []


@pytest.fixture
def part(monkeypatch, tmp_path):
    """Return a function that runs the next part of a session: the first, or one that goes on."""
    monkeypatch.setattr(session, "run_first", lambda *given: (measured(), tmp_path))
    monkeypatch.setattr(session, "read_run", lambda folder: measured().snapshot)

    def run(launcher, budget_s=300.0, is_resumed=False, clock=lambda: 0.0, **wishes):
        one = TrialSession(launcher, "tests.trials.changes", Wishes(budget_s, **wishes), tmp_path, clock=clock)
        try:
            return one.resume(tmp_path, load_state(tmp_path)) if is_resumed else one.run()
        finally:
            assert all(training.is_closed for training in launcher.trainings)

    return run


def rows(results):
    return {row.name: row for row in results.rows}


@pytest.mark.parametrize(
    ("error", "verdict", "reason"),
    [
        (TrialError("out of memory"), FAILED, "out of memory"),
        (InapplicableError("no convolutions"), NOT_TRIED, "no convolutions"),
        (EndedError("it came to its end"), NOT_SHOWN, ""),
    ],
)
def test_a_change_that_fails_leaves_the_others_alone(part, error, verdict, reason):
    found = rows(part(FakeLauncher(ends={NOTHING: (1, 9, error)}), only=("sleep=0.5", "nothing")))
    assert (found["nothing"].verdict, found["nothing"].reason) == (verdict, reason)
    assert found["sleep=0.5"].verdict == FASTER
    with pytest.raises(TryError, match="failed without a change: out of memory"):
        part(FakeLauncher(ends={UNCHANGED: (1, 0, None)}), **ONLY)


def interrupted_at(start, number):
    return {UNCHANGED: (start, number, KeyboardInterrupt())}


@pytest.mark.parametrize("number", [0, 1, 7, 9])
def test_an_interrupted_session_ends_as_if_it_had_not_been(part, tmp_path, number):
    whole = part(FakeLauncher(), **ONLY)
    first = part(FakeLauncher(ends=interrupted_at(1, number)), **ONLY)
    assert first.is_interrupted
    assert first.remaining == ("sleep=0.5",)
    second = part(FakeLauncher(), is_resumed=True)
    assert rows(second)["sleep=0.5"].verdict == FASTER
    assert (second.remaining, second.is_interrupted) == ((), False)
    assert rows(second)["sleep=0.5"].effect == rows(whole)["sleep=0.5"].effect
    assert rows(second)["sleep=0.5"].losses.kind == "identical"


def test_a_refuted_winner_is_not_tried_again(part):
    by_chance = {HALF: [0.02, 0.04, 0.02]}  # fast beside the others, not in the fresh trial, fast again
    first = part(FakeLauncher(by_chance, ends={OTHER: (2, 15, KeyboardInterrupt())}), **TWO)
    assert rows(first)["sleep=0.5"].verdict == NOT_CONFIRMED
    launcher = FakeLauncher({HALF: 0.04})
    assert rows(part(launcher, is_resumed=True))["sleep=0.5"].verdict == NOT_CONFIRMED
    later = FakeLauncher()
    results = part(later, is_resumed=True)
    assert rows(results)["sleep=0.5"].verdict == NOT_CONFIRMED
    assert (later.starts, results.remaining) == ([], ())


def test_what_failed_or_does_not_help_is_not_tried_again(part):
    ends = {NOTHING: (1, 2, TrialError("out of memory")), **interrupted_at(3, 4)}
    part(FakeLauncher(ends=ends), only=("sleep", "nothing"))
    launcher = FakeLauncher()
    found = rows(part(launcher, is_resumed=True))
    assert (found["nothing"].verdict, found["nothing"].reason) == (FAILED, "out of memory")
    assert found["sleep=2"].verdict == "slower"
    assert found["sleep=0.5"].verdict == FASTER
    assert set(launcher.starts) == {UNCHANGED, HALF}


BUSY = {UNCHANGED: CpuUse(1.0, 1.0, 0.9, 0.0), DOUBLE: CpuUse(1.0, 1.4, 0.6, 0.6), NOTHING: CpuUse(1.0, 1.0, 0.9, 0.0)}


def test_a_change_that_needed_a_cpu_that_others_had_is_undecided_and_tried_again(part, monkeypatch):
    monkeypatch.setattr(session, "facts_of", lambda snapshot: TrialFacts(cores=2.0))
    first = part(FakeLauncher(cpu=BUSY), only=("sleep=2", "nothing"))
    row = rows(first)["sleep=2"]
    assert (row.verdict, row.effect.relative) == (UNDECIDED, pytest.approx(1.0))
    assert "others took 0.6 of 2; alone it can save 50% at most" in row.reason
    assert (rows(first)["nothing"].verdict, first.remaining) == (NOT_SHOWN, ("sleep=2",))
    launcher = FakeLauncher({DOUBLE: 0.02})  # beside nothing else
    second = part(launcher, is_resumed=True)
    assert (rows(second)["sleep=2"].verdict, rows(second)["sleep=2"].reason, second.remaining) == (FASTER, "", ())
    assert NOTHING not in launcher.starts
    beside_others = part(FakeLauncher({DOUBLE: 0.02}, cpu=BUSY), only=("sleep=2",))  # a gain all the same
    assert rows(beside_others)["sleep=2"].verdict == FASTER


def test_a_gain_that_others_kept_from_being_confirmed_is_confirmed_later(part, monkeypatch, tmp_path):
    monkeypatch.setattr(session, "facts_of", lambda snapshot: TrialFacts(cores=2.0))
    fast_at_first = {DOUBLE: [0.02, 0.05, 0.02]}
    first = part(FakeLauncher(fast_at_first, cpu=BUSY), only=("sleep=2",))
    assert (rows(first)["sleep=2"].verdict, first.remaining) == (UNDECIDED, ("sleep=2",))
    assert load_state(tmp_path).progress.gain_error == 0
    launcher = FakeLauncher({DOUBLE: 0.02})
    assert rows(part(launcher, is_resumed=True))["sleep=2"].verdict == FASTER
    assert launcher.starts.count(DOUBLE) == 1  # only the fresh trial


def test_an_unchanged_training_that_differs_from_itself_withholds_all_verdicts(part, monkeypatch):
    launcher = FakeLauncher({UNCHANGED: [0.04, 0.042]})
    results = part(launcher, only=("sleep",))
    assert results.control.effect.differs
    assert {row.verdict for row in results.rows} == {NO_VERDICT}
    assert session.NOISY in results.notes
    assert (results.best, results.remaining) == (None, ("sleep=0.5", "sleep=2"))
    assert rows(part(FakeLauncher(), is_resumed=True))["sleep=0.5"].verdict == FASTER


def test_a_confirmed_change_is_only_run_together_with_later_ones(part, tmp_path):
    part(FakeLauncher(), **ONLY)
    state = load_state(tmp_path)
    left = replace(state.progress, chosen=["sleep=0.5", "losses"], gain_error=0.025)
    save_state(tmp_path, replace(state, progress=left))
    launcher = FakeLauncher()
    results = part(launcher, is_resumed=True)
    assert rows(results)["sleep=0.5"].verdict == rows(results)["losses"].verdict == FASTER
    assert results.together_names == ("sleep=0.5", "losses")
    assert HALF not in launcher.starts
    assert HALF + OTHER in launcher.starts


def test_what_there_was_no_time_for_goes_on_with_its_part_of_the_error(part, tmp_path):
    first = part(FakeLauncher(), budget_s=60.0, only=("sleep", "nothing", "losses"))
    untried = {name for name, row in rows(first).items() if row.verdict == NOT_TRIED}
    assert untried
    assert untried <= set(first.remaining)
    spent = load_state(tmp_path).progress.gain_error
    assert 0 < spent < 0.05
    second = part(FakeLauncher(), budget_s=600.0, is_resumed=True)
    assert (second.remaining, rows(second)["nothing"].verdict) == ((), NOT_SHOWN)
    assert load_state(tmp_path).progress.gain_error <= 0.05 + 1e-12


@pytest.mark.parametrize(("step_s", "is_slower"), [(0.08, True), (0.02, False), (0.04, False)])
def test_workers_that_would_keep_up_are_not_praised_where_trials_show_them_slower(part, monkeypatch, step_s, is_slower):
    monkeypatch.setattr(changes, "TREATMENTS", [replace(changes.TREATMENTS[1], name="num_workers=2")])
    monkeypatch.setattr(session, "workers_that_would_do", lambda *given: "1 worker would keep up")
    (note,) = part(FakeLauncher({("num_workers=2",): step_s}), only=("num_workers",)).notes
    assert note == "1 worker would keep up" + session.SLOWER_WITH_WORKERS * is_slower


def test_the_time_of_all_parts_counts_and_a_budget_that_is_used_up_is_an_interruption(part):
    times = iter([0.0] * 12)
    first = part(FakeLauncher(), clock=lambda: next(times, 1000.0), **ONLY)
    assert first.remaining == ("sleep=0.5",)
    assert part(FakeLauncher(), is_resumed=True).remaining == ()
    clock = iter([0.0, *[10.0] * 1000])
    assert part(FakeLauncher(), clock=lambda: next(clock), **ONLY).seconds == 10
    clock = iter([0.0, *[5.0] * 1000])
    assert part(FakeLauncher(), is_resumed=True, clock=lambda: next(clock)).seconds == 15


def test_a_session_of_another_process_or_version_does_not_go_on(part, tmp_path):
    part(FakeLauncher(ends=interrupted_at(1, 3)), **ONLY)
    with held(tmp_path), pytest.raises(RunFolderError, match="another session"):
        part(FakeLauncher(), is_resumed=True)
    state = load_state(tmp_path)
    save_state(tmp_path, replace(state, progress=replace(state.progress, chosen=["unheard"])))
    with pytest.raises(RunFolderError, match="another version"):
        part(FakeLauncher(), is_resumed=True)


FULL = DiskSpaceError("stopped before the disk is full")


@pytest.mark.parametrize(
    ("start", "number", "verdict"),
    [
        (1, 1, NOT_SHOWN),  # too few rounds for a verdict
        (1, 8, NOT_CONFIRMED),
        (3, 0, NOT_CONFIRMED),  # before the fresh trials
        (3, 25, FASTER),
    ],
)
def test_before_the_disk_is_full_the_results_so_far_are_kept_with_the_reason(part, start, number, verdict):
    results = part(FakeLauncher(ends={UNCHANGED: (start, number, FULL)}), **ONLY)
    (row,) = results.rows
    assert (row.verdict, results.is_interrupted, results.notes.count(str(FULL))) == (verdict, True, 1)
    assert row.effect.relative == pytest.approx(-0.5)
    with pytest.raises(DiskSpaceError):  # before any result
        part(FakeLauncher(ends={UNCHANGED: (1, 0, FULL)}), **ONLY)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": "x"}', "[" * 100_000])
def test_a_damaged_state_is_one_line(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunFolderError) as error:
        load_state(tmp_path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
