"""No row of the user is lost or doubled: a fake W&B that follows its rules, without its processes."""

import io
import sys
import types
from contextlib import contextmanager

import pytest

from training_profiler.sinks.program_runs import WandbRun
from training_profiler.sinks.sink import MetricRow, SinkContext


class Run:
    """Rows as in W&B: uncommitted values join the current row, an older step is refused."""

    starting_step = 0

    def __init__(self):
        self.rows = []
        self.step = 0
        self.defined = {}
        self._teardown_hooks = []
        self._under_way = {}

    def define_metric(self, name, **axis):
        if "*" in name[:-1]:
            raise ValueError(f"glob suffixes only: {name}")
        self.defined[name] = axis

    def log(self, metrics, step=None, commit=None):
        if step is not None and step > self.step:
            self._end_row(step)
        assert step is None or step == self.step, "a row of the user is lost"
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


def test_next_row_of_the_user_carries_the_newest_metrics(wandb, sink):
    wandb.run = run = Run()
    assert sink.poll()
    run.log({"loss": 1})
    sink.write([row(50)])
    sink.write([row(60)])
    run.log({"loss": 2})
    run.finish()
    assert run.rows == [(0, {"loss": 1}), (1, {"loss": 2, **ours(60)})]


def test_rows_are_committed_at_the_end_if_the_user_logs_nothing(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    sink.write([row(50)])
    sink.write([row(100)])
    assert run.rows == []
    run.finish()
    assert run.rows == [(0, ours(50)), (1, ours(100))]


def test_rows_are_held_until_a_run_begins(wandb, sink):
    assert not sink.poll()
    sink.write([row(50)])
    wandb.run = run = Run()
    assert sink.poll()
    sink.write([])
    run.finish()
    assert run.rows == [(0, ours(50))]


def test_ended_run_gets_no_rows(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    run.finish()
    assert not sink.poll()
    sink.write([row(50)])
    assert run.rows == []


class Artifact:
    def __init__(self, name, type):
        self.name, self.type, self.files = name, type, {}

    @contextmanager
    def new_file(self, name, mode, encoding):
        file = io.StringIO()
        yield file
        self.files[name] = file.getvalue()


def test_report_is_an_artifact_of_the_run_that_ends(wandb):
    wandb.Artifact = Artifact
    sink = WandbRun()
    report = {"report.txt": "Slowest component", "report.json": "{}"}
    sink.connect(SinkContext(guard=lambda work: work(), flush=lambda: None, report=lambda: report))
    wandb.run = run = Run()
    run.id, artifacts = "x1", []
    run.log_artifact = artifacts.append
    sink.poll()
    run.finish()
    (artifact,) = artifacts
    assert (artifact.name, artifact.type, artifact.files) == ("profiling-x1", "profiling-report", report)
    sink.after_fork_in_child()


def test_each_metric_is_defined_with_its_own_axis(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    run.log({"loss": 1})
    sink.write([row(50)])
    assert run.defined == {
        "profiling/step": {},
        "profiling/mfu": {"step_metric": "profiling/step", "step_sync": False},
    }


def test_a_metric_that_looks_like_a_pattern_gets_a_name_of_its_own(wandb, sink):
    wandb.run = run = Run()
    sink.poll()
    run.log({"loss": 1.0})
    sink.write([MetricRow(1, 1.0, {"profiling/timing_a_b_avg": 1.0, "profiling/timing_a*b_avg": 2.0})])
    run.log({"loss": 1.0})
    logged = {"profiling/timing_a_b_avg": 1.0, "profiling/timing_a_b_avg-2": 2.0}
    assert logged.items() <= run.rows[-1][1].items()


def test_private_hooks_of_wandb_may_be_missing(wandb, sink, monkeypatch):
    monkeypatch.delitem(sys.modules, "wandb.sdk.wandb_run")
    wandb.run = Run()
    assert sink.poll()
    assert wandb.run._teardown_hooks == []
