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


# The user begins a run, logs a loss and ends it; rows of ours; whether there is a run, and the rows of W&B.
ROWS = {
    "the next row of the user carries the newest": ("begin yes loss 50 60 loss end", "0: loss, 1: loss 60"),
    "committed at the end if the user logs nothing": ("begin yes 50 100 rows=0 end", "0: 50, 1: 100"),
    "held until a run begins": ("no 50 begin yes nothing end", "0: 50"),
    "an ended run gets none": ("begin yes end no 50", ""),
}


@pytest.mark.parametrize(("events", "rows"), ROWS.values(), ids=ROWS)
def test_no_row_is_lost_or_doubled(wandb, sink, events, rows):
    run = Run()
    do = {
        "begin": lambda: setattr(wandb, "run", run),
        "loss": lambda: run.log({"loss": 1}),
        "end": run.finish,
        "nothing": lambda: sink.write([]),
    }
    for event in events.split():
        if event in ("yes", "no"):
            assert sink.poll() == (event == "yes")
        elif event == "rows=0":
            assert run.rows == []
        else:
            do.get(event, lambda event=event: sink.write([row(int(event))]))()
    assert all(metrics.get("profiling/mfu", 0) == metrics.get("profiling/step", 0) / 100 for _, metrics in run.rows)
    found = [(number, [*["loss"] * ("loss" in metrics), metrics.get("profiling/step")]) for number, metrics in run.rows]
    assert ", ".join(f"{number}: {' '.join(str(each) for each in words if each)}" for number, words in found) == rows


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
