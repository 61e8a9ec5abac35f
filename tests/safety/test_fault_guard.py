import io
import logging
import os
import signal
import sys
import threading

import pytest

from tests.support.greenlets import replace_threads
from tests.support.recording import FakeClock
from training_profiler.base.units import NS_PER_MS, NS_PER_S, NS_PER_US
from training_profiler.safety.fault_guard import (
    LEAST,
    LINES,
    LONGEST_PAUSE_S,
    PARTS,
    REPORTS,
    SHARE,
    BackgroundThread,
    CostBudget,
    FaultGuard,
    NoThreadError,
    library_of_greenlets,
    log,
    unlimited,
)


def fail() -> None:
    raise ZeroDivisionError("ours")


def test_failed_part_is_disabled_and_logged_once(caplog):
    guard, calls = FaultGuard(), []
    with caplog.at_level(logging.WARNING):
        guard.run("statistics", fail)
        guard.run("statistics", lambda: calls.append("statistics"))
        guard.run("console", lambda: calls.append("console"))
    assert calls == ["console"]
    assert guard.disabled == {"statistics": "ZeroDivisionError: ours"}
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None


def test_failing_log_handler_does_not_reach_the_training(monkeypatch):
    guard = FaultGuard()
    monkeypatch.setattr("training_profiler.safety.fault_guard.log.warning", lambda *args, **kwargs: fail())
    guard.run("statistics", fail)
    assert guard.disabled == {"statistics": "ZeroDivisionError: ours"}


@pytest.fixture
def logged(monkeypatch):
    """Return a function that lets a part fail, with handlers of the user's, and returns what each of them prints."""
    root = logging.Logger("root of a test")
    monkeypatch.setattr(log, "parent", root)
    monkeypatch.setattr(log, "handlers", [])

    def run(*formatters, of=root):
        streams = [io.StringIO() for _ in formatters]
        for stream, formatter in zip(streams, formatters, strict=True):
            handler = logging.StreamHandler(stream)
            handler.setFormatter(formatter)
            of.addHandler(handler)
        FaultGuard().run("console", refuse)
        return [stream.getvalue() for stream in streams]

    return run


def refuse() -> None:
    raise OSError("closed")


SENTENCE = "console switched off, the training goes on: OSError: closed\n"


def test_a_message_says_who_speaks_where_the_program_has_no_logging(logged, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(stream))
    logged()
    assert stream.getvalue() == f"Profiler: {SENTENCE}"


@pytest.mark.parametrize(
    ("formatter", "begin"),
    [
        (None, "Profiler: "),
        (logging.Formatter("%(message)s"), "Profiler: "),
        (logging.Formatter("%(levelname)s %(filename)s %(message)s"), "WARNING fault_guard.py Profiler: "),
        (logging.Formatter(logging.BASIC_FORMAT), "WARNING:training_profiler:"),
        (logging.Formatter("%(name)-20s %(message)s"), "training_profiler    "),
        (logging.Formatter("{name} {message}", style="{"), "training_profiler "),
        (logging.Formatter("{levelname} {message}", style="{"), "WARNING Profiler: "),
        (logging.Formatter("$name $message", style="$"), "training_profiler "),
        (logging.Formatter("${name} $message", style="$"), "training_profiler "),
        (logging.Formatter("$levelname $message", style="$"), "WARNING Profiler: "),
    ],
)
def test_a_message_says_who_speaks_once(logged, formatter, begin):
    assert logged(formatter) == [begin + SENTENCE]


def test_where_one_of_several_handlers_has_no_name_the_message_has_it(logged):
    by_name = logging.Formatter(logging.BASIC_FORMAT)
    assert logged(by_name, None) == [f"WARNING:training_profiler:Profiler: {SENTENCE}", f"Profiler: {SENTENCE}"]


def test_handlers_of_our_own_logger_count_alone_if_it_does_not_propagate(logged, monkeypatch):
    monkeypatch.setattr(log, "propagate", False)
    log.parent.addHandler(logging.StreamHandler(io.StringIO()))
    assert logged(logging.Formatter(logging.BASIC_FORMAT), of=log) == [f"WARNING:training_profiler:{SENTENCE}"]


@pytest.mark.parametrize(
    ("module", "library"),
    [
        ("gevent.thread", "gevent"),
        ("eventlet.green.thread", "eventlet"),
        ("pydevd_bundle.threads", None),  # a debugger's wrapper starts threads
    ],
)
def test_libraries_that_start_greenlets_in_place_of_threads_are_known(monkeypatch, module, library):
    assert library_of_greenlets() is None
    replace_threads(monkeypatch, module)
    assert library_of_greenlets() == library


def test_python_without_its_private_functions_starts_threads(monkeypatch):
    for name in ("_start_new_thread", "_start_joinable_thread"):
        monkeypatch.delattr(threading, name, raising=False)
    assert library_of_greenlets() is None


def test_part_that_starts_no_thread_is_disabled_without_a_word(caplog):
    def work():
        raise NoThreadError("gevent has replaced threads by greenlets")

    guard = FaultGuard()
    guard.run("line sampler", work)
    assert guard.disabled == {"line sampler": "NoThreadError: gevent has replaced threads by greenlets"}
    assert caplog.records == []


LONG_S = 30.0  # bounds a hang; nothing here waits for long


def started(work, guard=None):
    thread = BackgroundThread("test", work, (guard or FaultGuard()).run, "test part")
    thread.start()
    return thread


def test_thread_is_a_daemon_of_ours_that_takes_no_signals_and_does_not_wait_for_itself():
    seen = []

    def work(thread):
        current, mask = threading.current_thread(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        seen.append((current.name, current.daemon, thread.is_current(), thread.join(LONG_S)))
        seen.append({signal.SIGINT, signal.SIGTERM} <= mask)

    thread = started(work)
    assert thread.join(LONG_S)
    assert seen == [("training_profiler test", True, True, False), True]
    assert not thread.is_current()
    assert thread.cpu_ns > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_thread_is_gone_in_a_forked_child():
    thread = started(lambda thread: thread.wait_for_stop(LONG_S))
    child = os.fork()
    if not child:
        thread.stop()
        os._exit(0 if thread.join(LONG_S) and not thread.is_alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.stop()
    assert thread.join(LONG_S)


def test_no_greenlet_is_started_in_place_of_a_thread(monkeypatch):
    replace_threads(monkeypatch, "gevent.thread")
    thread = BackgroundThread("test", lambda thread: None, lambda part, work: work(), "test")
    with pytest.raises(NoThreadError, match="gevent"):
        thread.start()
    assert not thread.is_alive()


def test_a_thread_that_began_before_gevent_replaced_threads_ends_without_an_error(monkeypatch):
    lost, real = [], threading.get_ident
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    thread = started(lambda thread: thread.wait_for_stop(LONG_S))
    main = real()
    replace_threads(monkeypatch, "gevent.thread")
    monkeypatch.setattr(threading, "get_ident", lambda: main if real() == main else -real())
    thread.stop()
    assert thread.join(LONG_S)
    assert lost == []


HZ = 50


class Work:
    """A run of steps with everything beside it, on a clock that only this moves."""

    def __init__(self, step_s: float, step_cost_ns: int = 0) -> None:
        self.clock = FakeClock()
        self.begin_ns = self.clock()
        self.budget = CostBudget(self.clock, self.begin_ns, {"patches": lambda: self.steps * step_cost_ns})
        self.steps = self.reports = self.samples = 0
        self.sampled_ns = 0
        self._step_s = step_s

    def run(self, seconds: float, sample_ns: int, report_ns: int, every: int = 50, free: int = 0) -> None:
        """Train, with a report every so many steps, and samples at the pace of the budget."""
        lines, reports = self.budget.pace(LINES), self.budget.pace(REPORTS)
        end_ns = self.clock() + round(seconds * NS_PER_S)
        next_sample_ns = self.clock()
        while self.clock() < end_ns:
            self.clock.advance(self._step_s)
            self.steps += 1
            while self.clock() >= next_sample_ns:
                self.samples += 1
                self.sampled_ns += sample_ns
                next_sample_ns += round(lines.pause_s(1 / HZ, self.sampled_ns) * NS_PER_S)
            if self.steps % every == 0 and reports.allows(free):
                self.reports += 1
                reports.spend(report_ns)

    def share(self, step_cost_ns: int = 0, report_ns: int = 0) -> float:
        """Return what all of it cost, of the time."""
        spent_ns = self.steps * step_cost_ns + self.sampled_ns + self.reports * report_ns
        return spent_ns / (self.clock() - self.begin_ns)


@pytest.mark.parametrize(
    ("step_s", "sample_us", "report_ms", "step_cost_us", "run_s"),
    [
        *((step_s, sample_us, 8, 0, 60) for step_s in (0.0003, 0.05) for sample_us in (20, 200, 2000)),
        (0.02, 150, 5, 20, 4),
    ],
)
def test_the_budget_is_kept_at_any_cost(step_s, sample_us, report_ms, step_cost_us, run_s):
    work = Work(step_s, step_cost_us * NS_PER_US)
    work.run(run_s, sample_us * NS_PER_US, report_ms * NS_PER_MS)
    assert work.share(step_cost_us * NS_PER_US, report_ms * NS_PER_MS) <= 1.05 * SHARE
    assert work.samples > 0
    assert work.reports > 0
    assert sum(PARTS.values()) == pytest.approx(1.0)


def test_cheap_work_is_done_in_full():
    work = Work(0.05)
    work.run(20, 10 * NS_PER_US, 100 * NS_PER_US)
    assert (work.samples, work.reports) == (1001, 8)
    assert work.budget.notes()[1:] == []


def test_a_cost_that_rises_is_paid_by_fewer_samples():
    work = Work(0.05)
    work.run(30, 30 * NS_PER_US, 0)
    before = work.samples
    work.run(30, 3000 * NS_PER_US, 0)
    assert work.samples - before < before / 4
    assert work.share() <= 1.05 * SHARE


def test_lines_are_sampled_four_times_a_second_while_the_first_samples_are_paid_for():
    work = Work(0.05, 300 * NS_PER_US)
    lines = work.budget.pace(LINES)
    work.clock.advance(6)
    lines.spend(300 * 150 * NS_PER_US)
    assert lines.pause_s(1 / HZ, 301 * 150 * NS_PER_US) == pytest.approx(0.25)
    work.run(600, 150 * NS_PER_US, 0)
    assert work.share() <= LEAST


def test_the_last_half_of_a_short_run_has_samples_whatever_one_of_them_waited_for():
    work = Work(0.01, step_cost_ns=100 * NS_PER_US)
    work.clock.advance(6)
    lines = work.budget.pace(LINES)
    work.sampled_ns = 300 * 100 * NS_PER_US
    lines.spend(work.sampled_ns)
    for cost_us in (100, 10_000, 100):
        work.sampled_ns += cost_us * NS_PER_US
        assert lines.pause_s(1 / HZ, work.sampled_ns) <= 0.2, cost_us
    for _ in range(3):  # it always takes so long
        work.sampled_ns += 10 * NS_PER_MS
        pause_s = lines.pause_s(1 / HZ, work.sampled_ns)
    assert pause_s > 5


def test_what_a_step_pays_leaves_less_to_the_rest():
    costs_ns = [0, 100 * NS_PER_US, 200 * NS_PER_US]
    works = [Work(0.05, cost_ns) for cost_ns in costs_ns]
    for work, cost_ns in zip(works, costs_ns, strict=True):
        work.run(60, 200 * NS_PER_US, 8 * NS_PER_MS)
        assert work.share(cost_ns, 8 * NS_PER_MS) <= max(1.05 * SHARE, cost_ns / 50 / NS_PER_MS + 1.05 * LEAST)
    assert works[0].samples > works[1].samples > works[2].samples > 0


def test_where_the_patches_alone_cost_more_the_rest_keeps_to_its_least():
    work = Work(0.0003, step_cost_ns=60 * NS_PER_US)
    work.run(20, 150 * NS_PER_US, 5 * NS_PER_MS)
    rest_ns = work.sampled_ns + work.reports * 5 * NS_PER_MS
    assert 0 < rest_ns <= 1.1 * LEAST * 20 * NS_PER_S
    assert work.samples >= 20


def test_what_gives_way_is_said_with_how_much():
    work = Work(0.05, step_cost_ns=100 * NS_PER_US)
    work.run(60, 200 * NS_PER_US, 0)
    costs, lines = work.budget.notes()
    made = work.samples / 60
    assert costs.startswith("CPU time of the profiler, on all its threads: 0.")
    assert "patches 0.20%" in costs
    assert lines.startswith(
        f"line sampler: {made:.2g} times a second and not 50, because the profiler's budget is 0.5%"
    )


def test_no_pause_is_endless():
    clock = FakeClock()
    lines = CostBudget(clock, clock()).pace(LINES)
    clock.advance(0.1)
    assert lines.pause_s(0.02, NS_PER_S) == LONGEST_PAUSE_S
    assert lines.pause_s(0.02, NS_PER_S, free=2) == 0.02


def test_without_a_run_nothing_waits():
    pace = unlimited()
    assert pace.pause_s(0.02, NS_PER_S) == 0.02
    assert pace.allows()


def test_pauses_at_any_cost_add_up_no_costs() -> None:
    asked = []
    budget = CostBudget(FakeClock(), 0, {"patches": lambda: asked.append(1) or 0.0})
    for sample in range(5):
        budget.pace(LINES).pause_s(1 / HZ, sample * NS_PER_MS, free=4)
    assert asked == [1]


@pytest.mark.parametrize("step_cost_us", [0, 60])
@pytest.mark.parametrize("report_ms", [0, 2, 8])
def test_what_is_surely_refused_is_refused(step_cost_us, report_ms):
    """Asked at each report of a run, no answer is another one within the time of a refusal."""
    work = Work(0.0003, step_cost_us * NS_PER_US)
    reports, lines = work.budget.pace(REPORTS), work.budget.pace(LINES)
    until_ns = passed = 0
    for number in range(40_000):
        work.clock.advance(0.0003)
        work.steps += 1
        if number % 500 == 0:  # a part that has used more than its own
            lines.spend(5 * NS_PER_MS)
        if number % 50 == 0:
            is_allowed = reports.allows(3)
            assert not (is_allowed and work.clock() < until_ns)
            passed += work.clock() < until_ns
            if is_allowed:
                reports.spend(report_ms * NS_PER_MS)
            else:
                until_ns = work.clock() + reports.refuses_for_ns()
    assert passed == 0 if report_ms == 0 else passed > 400
