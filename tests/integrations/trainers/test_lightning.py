"""The profiler and the callback for Lightning's Trainer."""

import csv
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.integrations.trainers.conftest import Runs

pytestmark = [pytest.mark.integrations, pytest.mark.xdist_group("lightning")]  # its import takes seconds
lightning = pytest.importorskip("lightning")
EPOCHS, BATCHES = 2, 6
ROOT = Path(__file__).parents[3]


def make(name: str, **settings: Any) -> dict[str, Any]:
    """Return the argument of a Trainer with the profiler or the callback; without either for ""."""
    from training_profiler.integrations import lightning as ours

    if name == "callback":
        return {"callbacks": [ours.TrainingProfilerCallback(**settings)]}
    return {"profiler": ours.TrainingProfiler(**settings)} if name else {}


class Model(lightning.LightningModule):
    def __init__(self, fails_at: int = -1, failure: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
        self.losses: list[str] = []
        self.fails_at, self.failure = fails_at, failure

    def forward(self, batch: Any) -> torch.Tensor:
        return (self.layers(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if index == self.fails_at:
            raise self.failure("as planned")
        with self.trainer.profiler.profile("augmentation"):
            batch = [batch[0] * 2, batch[1]]
        loss = self(batch)
        self.losses.append(loss.item().hex())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self(batch))

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self(batch)

    def on_train_batch_end(self, *_: Any) -> None:
        sum(range(1000))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def data(batches: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(8 * batches, 8), torch.randn(8 * batches, 1)), batch_size=8)


def trainer_with(**arguments: Any) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(**{"max_epochs": EPOCHS, "accelerator": "cpu", **quiet, **arguments})


def fit(fails_at: int = -1, failure: type[BaseException] = RuntimeError, **arguments: Any) -> list[str]:
    """Train a small model with a Trainer; return its losses."""
    lightning.seed_everything(0)
    model = Model(fails_at, failure)
    trainer_with(**arguments).fit(model, data(BATCHES), data(2))
    return model.losses


def check_counts(runs: Runs) -> None:
    report = runs.report()
    assert report["steps"] == EPOCHS * BATCHES
    assert report["sections"]["forward_pass"]["count"] == EPOCHS * BATCHES
    assert report["sections"]["optimizer_step"]["count"] == EPOCHS * BATCHES
    # Two batches after each epoch, and in the sanity check before the first.
    assert report["sections"]["validation_epoch/forward_pass"]["count"] == 2 * (EPOCHS + 1)
    assert report["throughput"]["samples_per_s"] > 0


@pytest.mark.parametrize("name", ["profiler", "callback"])
def test_training_is_a_run_of_its_own_and_stays_the_same(runs: Runs, name: str) -> None:
    plain = fit()
    assert fit(**make(name)) == plain
    check_counts(runs)


class Hooks(lightning.Callback):
    """A callback of the user's that writes down what it is called for."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(("start", batch_idx, trainer.global_step))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(("end", batch_idx, outputs["loss"].item().hex()))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.seen.append(("validated", sorted(trainer.callback_metrics), trainer.state.fn))


def test_hooks_of_the_user_are_called_as_before(runs: Runs) -> None:
    plain, profiled = Hooks(), Hooks()
    fit(callbacks=[plain])
    fit(callbacks=[*make("callback")["callbacks"], profiled], **make("profiler"))
    assert profiled.seen == plain.seen
    assert sum(event[0] == "end" for event in plain.seen) == EPOCHS * BATCHES


@pytest.mark.parametrize("name", ["profiler", "callback"])
def test_under_run_nothing_is_counted_twice(runs: Runs, name: str) -> None:
    runs.profile_as_run()
    arguments = make(name)
    fit(**arguments)
    assert runs.reports() == []  # the run belongs to the process
    if name == "profiler":
        assert f"({EPOCHS * BATCHES} steps)" in arguments["profiler"].summary()
    runs.end()
    check_counts(runs)


def test_profiler_and_callback_together_are_one_run(runs: Runs) -> None:
    fit(**make("profiler"), **make("callback"))
    check_counts(runs)


def test_hooks_and_own_actions_are_sections(runs: Runs) -> None:
    fit(**make("profiler"), enable_progress_bar=True)
    counts = {name: section["count"] for name, section in runs.report()["sections"].items()}
    assert counts["augmentation"] == EPOCHS * BATCHES
    assert counts["callback on_train_batch_end"] >= EPOCHS * BATCHES
    assert counts["progress bar"] >= EPOCHS * BATCHES
    assert "callback on_after_backward" not in counts  # nothing has that hook
    assert counts["checkpointing"] == EPOCHS
    assert not any(name.startswith("[") for name in counts)


def test_what_comes_before_the_forward_pass_is_not_the_optimizers(runs: Runs) -> None:
    fit(**make("profiler"))
    sections = runs.report()["sections"]
    assert sections["augmentation"]["parent"] is None  # although the optimizer's step calls it, in its closure
    assert sections["optimizer_step"]["count"] == EPOCHS * BATCHES


def test_variable_that_says_off_switches_both_off(runs: Runs, off: None) -> None:
    fit(**make("profiler"), **make("callback"))
    assert not runs.folder.exists()


def test_summary_is_the_report_and_goes_to_the_file(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_with(**make("profiler", dirpath=".", filename="perf"))
    assert trainer.profiler.summary() == ""
    trainer.fit(Model(), data(BATCHES))
    (written,) = Path().glob("fit-perf*.txt")
    printed = capsys.readouterr().out
    title = f"=== Final Profiling Summary ({EPOCHS * BATCHES} steps) ==="
    assert printed.count(title) == 1
    assert title in trainer.profiler.summary()
    assert title in written.read_text()


@pytest.mark.parametrize("name", ["profiler", "callback"])
def test_loggers_get_the_metrics_of_each_report(runs: Runs, name: str) -> None:
    from lightning.pytorch.loggers import CSVLogger

    fit(**make(name, log_every=5), logger=CSVLogger("logs"), log_every_n_steps=5)
    (file,) = Path("logs").glob("**/metrics.csv")
    rows = [row for row in csv.DictReader(file.open()) if row.get("profiling/batch_time_avg")]
    assert [int(row["step"]) for row in rows] == [4, 9, 12]  # Lightning counts the updates before this batch
    assert all(float(row["profiling/samples_per_second"]) > 0 for row in rows)


def test_validation_prediction_and_no_epoch_at_all(runs: Runs) -> None:
    trainer = trainer_with(**make("profiler"), max_epochs=0)
    trainer.fit(Model(), data(BATCHES))
    trainer.validate(Model(), data(3), verbose=False)
    predicted = trainer.predict(Model(), data(3))
    empty, validated, prediction = runs.reports()
    assert [report["steps"] for report in (empty, validated, prediction)] == [0, 0, 0]
    assert len(predicted) == 3
    for report in (validated, prediction):
        assert report["sections"]["validation_epoch/forward_pass"]["count"] == 3


@pytest.mark.parametrize("name", ["profiler", "callback"])
def test_training_that_failed_ends_before_the_next_begins(runs: Runs, name: str) -> None:
    with pytest.raises(RuntimeError, match="as planned"):
        fit(fails_at=4, **make(name))
    fit(**make(name))
    assert [report["steps"] for report in runs.reports()] == [4, EPOCHS * BATCHES]


def test_ctrl_c_exits_as_without_the_profiler(runs: Runs) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        fit(fails_at=4, failure=KeyboardInterrupt, **make("profiler"))
    signal.signal(signal.SIGINT, handler)  # Lightning ignores Ctrl-C from the first on
    runs.end()
    assert runs.report()["steps"] == 4


class Slow(TensorDataset):
    """Samples that take long, so that the first finding is about the loader."""

    def __getitem__(self, at: Any) -> Any:
        time.sleep(0.001)
        return super().__getitem__(at)


@pytest.mark.parametrize(
    ("settings", "ended_by"), [({"for_": "4steps"}, "--for 4steps"), ({"stop_when_sure": True}, "--stop-when-sure")]
)
def test_an_early_end_has_status_0_after_the_callbacks_of_the_user(
    runs: Runs, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], ended_by: str
) -> None:
    class Saves(lightning.Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            trainer.save_checkpoint("ended.ckpt")

    handler = signal.getsignal(signal.SIGINT)
    trainer = trainer_with(max_epochs=10**6, limit_val_batches=0, callbacks=[Saves()], **make("profiler", **settings))
    with pytest.raises(SystemExit) as ended:
        trainer.fit(Model(), DataLoader(Slow(*data(50).dataset.tensors), batch_size=8))
    assert (ended.value.code, signal.getsignal(signal.SIGINT)) == (0, handler)
    runs.end()
    steps = runs.report()["steps"]
    assert (steps == 4, runs.report()["ended_by"]) == (ended_by == "--for 4steps", ended_by)
    assert f"Profiler: ending the training after {steps} steps, as {ended_by} asked" in capsys.readouterr().out
    assert steps - torch.load("ended.ckpt", weights_only=False)["global_step"] in (0, 1)


SPAWNING = """
from tests.integrations.trainers.test_lightning import fit, make

if __name__ == "__main__":
    fit(strategy="ddp_spawn", devices=2, num_sanity_val_steps=0, **make("profiler"))
    print("trained", flush=True)
"""


def test_ranks_that_lightning_spawns_are_one_run(runs: Runs) -> None:
    Path("program.py").write_text(SPAWNING)
    done = subprocess.run(
        [sys.executable, "program.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    report = runs.report()
    assert report["steps"] == EPOCHS * BATCHES // 2
    assert [rank["steps"] for rank in report["ranks"]["ranks"]] == [EPOCHS * BATCHES // 2] * 2


def test_logger_that_fails_leaves_the_training_and_the_report(runs: Runs) -> None:
    from lightning.pytorch.loggers import CSVLogger

    class Failing(CSVLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if "profiling/batch_time_avg" in metrics:
                raise OSError("as planned")
            super().log_metrics(metrics, step)

    plain = fit()
    assert fit(**make("profiler", log_every=5), logger=Failing("logs")) == plain
    check_counts(runs)


def test_trainer_with_both_can_be_pickled_and_saves_the_same_checkpoint(runs: Runs) -> None:
    keys = []
    for arguments in ({}, {**make("profiler"), **make("callback")}):
        trainer = trainer_with(**arguments)
        trainer.fit(Model(), data(2))
        trainer.save_checkpoint("saved.ckpt")
        keys.append(sorted(torch.load("saved.ckpt", weights_only=False)["state_dict"]))
    assert keys[0] == keys[1]
    both = pickle.loads(pickle.dumps([trainer.profiler, *trainer.callbacks]))
    trainer_with(profiler=both[0], callbacks=both[1:2]).fit(Model(), data(2))
    assert [report["steps"] for report in runs.reports()] == [4, 4]


class Keeping(Model):
    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[torch.Tensor] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.outputs.append(torch.zeros(50_000) + self.layers(batch[0]).detach()[0])
        return self(batch)


def keep(model: Keeping) -> None:  # no test, whose variables pytest uses
    trainer_with(max_epochs=1, limit_val_batches=0, **make("profiler", monitor_s=0.05)).fit(model, data(800))


def test_outputs_that_a_module_keeps_are_named_as_what_memory_grows_by(runs: Runs) -> None:
    keep(Keeping())
    (finding,) = (each for each in runs.report()["findings"] if each["code"] == "memory-growth")
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.outputs.append" in text)
    assert finding["evidence"]["variable"] == "model.outputs"
    assert finding["evidence"]["lines"] == f"test_lightning.py:{line}"


class Noisy(TensorDataset):
    """Samples that take long to make."""

    def __getitem__(self, at: Any) -> Any:
        time.sleep(0.0001)
        return super().__getitem__(at)


def found_actions(report: dict[str, Any]) -> str:
    return " ".join(action["text"] for finding in report["findings"] for action in finding["actions"])


HOOK = "self.layer.register_forward_hook(lambda module, inputs, output: output.abs().mean().item() and None)"


class Hooked(lightning.LightningModule):
    """Registers a hook in each step, and keeps all losses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.kept: list[torch.Tensor] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        for _ in range(8):
            self.layer.register_forward_hook(lambda module, inputs, output: output.abs().mean().item() and None)
        losses = [(self.layer(x) - y).square().mean() for x, y in batch.values()]
        loss = losses[0] + losses[1]
        self.kept.append(loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_what_only_the_module_has_is_named_and_loaders_by_their_keys(runs: Runs) -> None:
    runs.profile_as_run()  # which sees the loaders made
    tensors = data(130).dataset.tensors
    loaders = {"clean": DataLoader(TensorDataset(*tensors), 8), "noisy": DataLoader(Noisy(*tensors), 8)}
    trainer_with(max_epochs=1, enable_checkpointing=False).fit(Hooked(), loaders)
    runs.end()
    report = runs.report()
    found = {finding["code"]: finding["evidence"] for finding in report["findings"]}
    lines = [line.strip() for line in Path(__file__).read_text().splitlines()]
    assert found["kept-graphs"]["lines"] == f"test_lightning.py:{1 + lines.index('self.kept.append(loss)')}"
    assert {"growing-work", "machine-busy"} & found.keys()  # beside other programs, steps of a few ms rise by chance
    if grown := found.get("growing-work"):
        assert (grown["what"], grown["variable"]) == ("hooks", "a module of Hooked")
        assert grown["lines"] == f"test_lightning.py:{1 + lines.index(HOOK)}"
    assert {loader["name"] for loader in report["loaders"]} == {"clean", "noisy"}
    assert "for loader noisy" in found_actions(report)
