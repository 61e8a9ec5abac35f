"""The handler for Ignite's engines."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.integrations.trainers.conftest import Runs
from training_profiler import api

pytestmark = [pytest.mark.integrations, pytest.mark.xdist_group("ignite")]  # its import takes seconds
pytest.importorskip("ignite")
EPOCHS, BATCHES = 2, 6
ROOT = Path(__file__).parents[3]
PROGRAM = """
from tests.integrations.trainers.test_ignite import train
train()
print("trained", flush=True)
"""


def attach(engine: Any, **settings: Any) -> None:
    from training_profiler.integrations.ignite import TrainingProfilerHandler

    TrainingProfilerHandler(**settings).attach(engine)


def train(
    has_profiler: bool = True,
    fails_at: int = 0,
    failure: type[BaseException] = RuntimeError,
    metrics: list[Any] | None = None,
    at_epoch_end: Callable[[], Any] = int,
    add_handlers: Callable[[Any], Any] = id,
    **settings: Any,
) -> list[str]:
    """Train a small network with an engine; return its losses."""
    from ignite.engine import Engine, Events

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(TensorDataset(torch.randn(8 * BATCHES, 8), torch.randn(8 * BATCHES, 1)), batch_size=8)
    losses = []

    def update(engine: Any, batch: Any) -> float:
        if engine.state.iteration == fails_at:
            raise failure("as planned")
        optimizer.zero_grad()
        loss = (model(batch[0]) - batch[1]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    engine = Engine(update)
    if has_profiler:
        attach(engine, **settings)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output.hex()))
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: at_epoch_end())
    add_handlers(engine)
    if metrics is not None:
        engine.add_event_handler(Events.COMPLETED, lambda engine: metrics.append(dict(engine.state.metrics)))
    engine.run(data, max_epochs=EPOCHS)
    return losses


def check_counts(runs: Runs) -> None:
    report = runs.report()
    assert report["steps"] == EPOCHS * BATCHES
    assert report["sections"]["forward_pass"]["count"] == EPOCHS * BATCHES
    assert report["throughput"]["samples_per_s"] > 0


def test_training_is_a_run_of_its_own_and_stays_the_same(runs: Runs) -> None:
    plain = train(has_profiler=False)
    assert train() == plain
    check_counts(runs)


def test_handlers_are_sections_by_their_event(runs: Runs) -> None:
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver, ProgressBar

    evaluator = Engine(lambda engine, batch: batch)
    evaluator.add_event_handler(Events.COMPLETED, lambda: None)

    def add_handlers(trainer: Any) -> None:
        saver = Checkpoint({"model": torch.nn.Linear(2, 2)}, DiskSaver("saved"), n_saved=None)
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), saver)
        ProgressBar().attach(trainer, event_name=Events.ITERATION_STARTED, closing_event_name=Events.COMPLETED)

    before = Engine._fire_event
    train(at_epoch_end=lambda: evaluator.run(range(3)), add_handlers=add_handlers)
    counts = {name: section["count"] for name, section in runs.report()["sections"].items()}
    assert counts["handlers ITERATION_COMPLETED"] == counts["progress bar"] == EPOCHS * BATCHES
    assert counts["checkpointing"] == EPOCHS * BATCHES // 2
    assert counts["handlers EPOCH_COMPLETED"] == EPOCHS
    assert counts["handlers COMPLETED"] == EPOCHS  # of the evaluator: with the trainer's, the run ends
    assert not any("STARTED" in name for name in counts)
    assert Engine._fire_event is before


def test_under_run_nothing_is_counted_twice(runs: Runs) -> None:
    runs.profile_as_run()
    train()
    assert runs.reports() == []  # the run belongs to the process
    runs.end()
    check_counts(runs)


def test_program_under_run_has_one_report(runs: Runs) -> None:
    Path("program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "training_profiler", "run", "program.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Final Profiling Summary (12 steps)") == 1
    assert done.stdout.index("trained") < done.stdout.index("Final Profiling Summary")  # the run belongs to the process
    check_counts(runs)


def test_run_of_the_program_gets_the_steps_of_the_trainer(runs: Runs) -> None:
    api.start_training_profiling()
    train()
    assert runs.reports() == []
    runs.end()
    assert runs.report()["steps"] == EPOCHS * BATCHES


def test_handler_on_an_engine_inside_another_is_one_run(runs: Runs) -> None:
    train(at_epoch_end=lambda: train(has_profiler=True))
    assert [report["steps"] for report in runs.reports()] == [EPOCHS * BATCHES * (EPOCHS + 1)]


def test_variable_that_says_off_switches_the_handler_off(runs: Runs, off: None) -> None:
    train()
    assert not runs.folder.exists()


def test_metrics_of_the_engine_have_those_of_the_profiler(runs: Runs) -> None:
    metrics: list[dict[str, float]] = []
    train(metrics=metrics)
    train(metrics=metrics, log_metrics=False)
    assert metrics[0]["profiling/samples_per_second"] > 0
    assert metrics[1] == {}


@pytest.mark.parametrize("skips_completed", [False, True])
def test_terminated_engine_ends_its_run(runs: Runs, skips_completed: bool) -> None:
    from ignite.engine import Engine, Events

    engine = Engine(lambda engine, batch: None)
    attach(engine)
    engine.add_event_handler(
        Events.ITERATION_COMPLETED(once=3), lambda: engine.terminate(skip_completed=skips_completed)
    )
    engine.run(range(6))
    assert len(runs.reports()) == 1


def test_exception_of_the_training_is_raised_as_without_the_handler(runs: Runs) -> None:
    with pytest.raises(RuntimeError, match="as planned"):
        train(fails_at=5)
    runs.end()
    train(has_profiler=False)
    assert runs.report()["steps"] == 4  # the training after the end of the run begins no other one


def test_ctrl_c_is_raised_as_without_the_handler_and_the_next_training_is_a_run(runs: Runs) -> None:
    with pytest.raises(KeyboardInterrupt, match="as planned"):
        train(fails_at=5, failure=KeyboardInterrupt)
    train()
    assert [report["steps"] for report in runs.reports()] == [4, EPOCHS * BATCHES]
