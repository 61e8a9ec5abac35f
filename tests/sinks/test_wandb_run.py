"""No row of the user's is lost or doubled: a stand-in for W&B that keeps its rules, without its processes."""

import sys
import types

import pytest

from training_profiler.sinks.sink import MetricRow, SinkContext
from training_profiler.sinks.wandb_run import WandbRun


class Run:
    """Rows as W&B makes them: uncommitted values join the row under way, an older step is refused."""

    starting_step = 0

    def __init__(self):
        self.rows = []
        self.step = 0
        self.defined = {}
        self._teardown_hooks = []
        self._under_way = {}

    def define_metric(self, name, **axis):
        self.defined[name] = axis

    def log(self, metrics, step=None, commit=None):
        if step is not None and step > self.step:
            self._end_row(step)
        assert step is None or step == self.step, "a row of the user's is lost"
        self._under_way |= metrics
        if commit if commit is not None else step is None:
            self._end_row(self.step + 1)

    def finish(self):
        for hook in self._teardown_hooks:
            hook.call()
        self._end_row(self.step)

    def _end_row(self, step):
        if self._under_way:
            self.rows.append((self.step, self._under_way))
        self.step, self._under_way = step, {}


@pytest.fixture
def wandb(monkeypatch):
    run_module = types.ModuleType("wandb.sdk.wandb_run")
    run_module.TeardownHook = lambda call, stage: types.SimpleNamespace(call=call, stage=stage)
    run_module.TeardownStage = types.SimpleNamespace(EARLY=1)
    module = types.ModuleType("wandb")
    module.run = None
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setitem(sys.modules, "wandb.sdk.wandb_run", run_module)
    return module


@pytest.fixture
def sink():
    sink = WandbRun()
    sink.connect(SinkContext(guard=lambda work: work(), flush=lambda: None))
    yield sink
    sink.after_fork_in_child()


def row(step):
    return MetricRow(step, 0.0, {"profiling/mfu": step / 100})


def ours(step):
    return {"profiling/mfu": step / 100, "profiling/step": step}


def test_a_row_of_the_users_takes_the_newest_along(wandb, sink):
    wandb.run = run = Run()
    assert sink.poll()
    run.log({"loss": 1})
    sink.write([row(50)])
    sink.write([row(60)])
    run.log({"loss": 2})
    run.finish()
    assert run.rows == [(0, {"loss": 1}), (1, {"loss": 2, **ours(60)})]


def test_explicit_steps_of_the_user_stay_as_they_are(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    for step in (1, 2, 3):
        run.log({"loss": step}, step=step)
        sink.write([row(step)])
        run.log({"accuracy": step}, step=step)
    run.finish()
    assert run.rows == [(step, {"loss": step, "accuracy": step, **ours(step)}) for step in (1, 2, 3)]


def test_where_the_user_logs_nothing_rows_are_committed_when_the_run_ends(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    sink.write([row(50)])
    sink.write([row(100)])
    assert run.rows == []
    run.finish()
    assert run.rows == [(0, ours(50)), (1, ours(100))]


def test_rows_wait_for_a_run_to_begin(wandb, sink):
    assert not sink.poll()
    sink.write([row(50)])
    wandb.run = run = Run()
    assert sink.poll()
    sink.write([])
    run.finish()
    assert run.rows == [(0, ours(50))]


def test_a_run_that_has_ended_gets_nothing_though_wandb_still_shows_it(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    run.finish()
    assert not sink.poll()
    sink.write([row(50)])
    assert run.rows == []


def test_a_run_that_follows_gets_its_own_rows(wandb, sink):
    wandb.run = first = Run()
    sink.poll()
    sink.write([row(50)])
    first.finish()
    wandb.run = second = Run()
    assert sink.poll()
    sink.write([row(100)])
    second.finish()
    assert (first.rows, second.rows) == ([(0, ours(50))], [(0, ours(100))])


def test_metrics_have_an_axis_of_their_own_each_by_its_name(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    run.log({"loss": 1})
    sink.write([row(50)])
    assert run.defined == {
        "profiling/step": {},
        "profiling/mfu": {"step_metric": "profiling/step", "step_sync": False},
    }


def test_without_a_run_that_is_said(sink):
    sink.poll()
    sink.write([row(50)])
    assert sink.notes() == ["wandb sink: no run was found (wandb.init()), so no metrics went to W&B"]


def test_what_wandb_keeps_private_may_be_gone(wandb, sink, monkeypatch):
    monkeypatch.delitem(sys.modules, "wandb.sdk.wandb_run")
    wandb.run = Run()
    assert sink.poll()
    assert wandb.run._teardown_hooks == []
