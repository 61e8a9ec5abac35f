"""The callback for the Trainer of Hugging Face."""

import copy
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.trainers.conftest import Runs

pytestmark = [pytest.mark.integrations, pytest.mark.xdist_group("transformers")]  # its import takes seconds
transformers = pytest.importorskip("transformers")
CallbackHandler = transformers.trainer_callback.CallbackHandler
EPOCHS, MICRO_BATCHES, UPDATES = 3, 16, 8  # an epoch
QUIET = {"report_to": "none", "use_cpu": True, "disable_tqdm": True}


def profiler(**settings: Any) -> Any:
    from training_profiler.integrations.hugging_face import TrainingProfilerCallback

    return TrainingProfilerCallback(**settings)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))

    main_input_name = "x"  # whose elements the Trainer counts as tokens

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x).squeeze(-1)
        return {"loss": (logits - labels).square().mean(), "logits": logits}


class Events(transformers.TrainerCallback):
    """Writes down what it is called for, as a user's callback would."""

    def __init__(self, fails_at: int = 0, failure: type[BaseException] = RuntimeError) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.fails_at, self.failure = fails_at, failure

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.append(("log", state.global_step, *sorted(logs), float(logs.get("loss", 0)).hex()))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(("step", state.global_step))
        if state.global_step == self.fails_at:
            raise self.failure("as planned")


def train(
    *callbacks: Any,
    report_to: str = "none",
    epochs: int = EPOCHS,
    save: str = "no",
    bars: bool = False,
    kind: type[list[Any]] = list,
    **arguments: Any,
) -> list[tuple[Any, ...]]:
    """Train a small network; return what the callback of the user saw, with the losses."""
    transformers.set_seed(0)
    examples = [{"x": torch.randn(8), "labels": torch.randn(())} for _ in range(4 * MICRO_BATCHES)]
    events = Events()
    trainer = transformers.Trainer(
        model=Net(),
        args=transformers.TrainingArguments(
            "out",
            num_train_epochs=epochs,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=MICRO_BATCHES // UPDATES,
            eval_strategy="epoch",
            save_strategy=save,
            logging_steps=UPDATES,
            report_to=report_to,
            use_cpu=True,
            disable_tqdm=not bars,
            **arguments,
        ),
        train_dataset=kind(examples),
        eval_dataset=examples[:8],
        callbacks=[events, *callbacks],
    )
    trainer.train()
    assert trainer.state.global_step == epochs * UPDATES
    return events.seen


def check_counts(runs: Runs) -> None:
    report = runs.report()
    assert report["steps"] == EPOCHS * UPDATES
    assert report["sections"]["forward_pass"]["count"] == EPOCHS * MICRO_BATCHES
    assert report["sections"]["optimizer_step"]["count"] == EPOCHS * UPDATES
    assert report["throughput"]["samples_per_s"] > 0


def test_training_is_a_run_of_its_own_and_stays_the_same(runs: Runs) -> None:
    plain = train()
    assert train(profiler()) == plain
    check_counts(runs)


def test_phases_of_the_trainer_are_sections(runs: Runs) -> None:
    before = CallbackHandler.call_event, transformers.Trainer.log, transformers.Trainer._save_checkpoint
    train(profiler(), save="epoch", bars=True)
    counts = {name: section["count"] for name, section in runs.report()["sections"].items()}
    assert counts["callback on_step_end"] == EPOCHS * UPDATES
    assert counts["logging"] == counts["callback on_log"] == 2 * EPOCHS + 1  # losses, evaluations, the summary
    assert counts["checkpointing"] == EPOCHS  # each of several files
    assert counts["validation_epoch"] == EPOCHS
    assert counts["progress bar"] == 2 * EPOCHS  # the batch of an evaluation, and its end
    assert "Still inside" not in runs.text()
    assert "callback on_substep_end" not in counts  # the user's callback has no such hook
    assert (CallbackHandler.call_event, transformers.Trainer.log, transformers.Trainer._save_checkpoint) == before


def test_under_run_nothing_is_counted_twice(runs: Runs) -> None:
    runs.profile_as_run()
    train(profiler())
    assert runs.reports() == []  # the run belongs to the process
    runs.end()
    check_counts(runs)


def test_variable_that_says_off_switches_the_callback_off(runs: Runs, off: None) -> None:
    train(profiler())
    assert not runs.folder.exists()


def test_trackers_of_report_to_get_the_metrics_of_each_report(runs: Runs) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(profiler(log_every=10), report_to="tensorboard")
    (file,) = Path("out").glob("runs/*/*")  # a second file would begin a second run
    rows = EventAccumulator(str(file))
    rows.Reload()
    assert [row.step for row in rows.Scalars("train/profiling/batch_time_avg")] == [10, 20, 24]
    assert all(row.value > 0 for row in rows.Scalars("train/profiling/samples_per_second"))


def test_tokens_are_counted_where_the_trainer_does(runs: Runs) -> None:
    train(profiler(), include_num_input_tokens_seen="all")
    train(profiler())
    counted, uncounted = (report["throughput"] for report in runs.reports())
    assert counted["tokens_per_s"] == pytest.approx(8 * counted["samples_per_s"])  # of 8 numbers, its "tokens"
    assert uncounted["tokens_per_s"] is None


def test_training_that_failed_ends_before_the_next_begins(runs: Runs) -> None:
    callback = profiler()
    with pytest.raises(RuntimeError, match="as planned"):
        train(callback, Events(fails_at=5))
    train(callback)
    assert [report["steps"] for report in runs.reports()] == [5, EPOCHS * UPDATES]


def test_ctrl_c_is_raised_as_without_the_callback_and_the_next_training_is_a_run(runs: Runs) -> None:
    callback = profiler()
    with pytest.raises(KeyboardInterrupt, match="as planned"):
        train(callback, Events(fails_at=5, failure=KeyboardInterrupt))
    train(callback)
    assert [report["steps"] for report in runs.reports()] == [5, EPOCHS * UPDATES]


def test_copies_profile_trainings_of_their_own(runs: Runs) -> None:
    callback = profiler()
    train(callback, epochs=1)
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        train(copied, epochs=1)
    assert [report["steps"] for report in runs.reports()] == [UPDATES] * 3


def test_setting_that_does_not_exist_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match="log_evry"):
        profiler(log_evry=5)


class Slow(list):
    """Examples that take long, so that the first finding is about the loader."""

    def __getitem__(self, at: Any) -> Any:
        time.sleep(0.001)
        return super().__getitem__(at)


@pytest.mark.parametrize(
    ("settings", "ended_by"), [({"for_": "4steps"}, "--for 4steps"), ({"stop_when_sure": True}, "--stop-when-sure")]
)
def test_an_early_end_reaches_the_handler_of_the_user_as_ctrl_c_does(
    runs: Runs, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], ended_by: str
) -> None:
    with pytest.raises(KeyboardInterrupt) as ended:
        train(profiler(**settings), kind=Slow, epochs=10**4, save="steps", save_steps=2, save_total_limit=1)
    assert isinstance(ended.value, SystemExit)  # where no one handles it
    assert ended.value.code == 0
    runs.end()
    steps = runs.report()["steps"]
    assert (steps == 4, runs.report()["ended_by"]) == (ended_by == "--for 4steps", ended_by)
    assert f"Profiler: ending the training after {steps} steps, as {ended_by} asked" in capsys.readouterr().out
    (checkpoint,) = Path("out").glob("checkpoint-*")
    assert steps - int(checkpoint.name.rpartition("-")[2]) in (0, 1, 2)


@pytest.mark.parametrize("longest", [64, None])
def test_padding_is_found_with_the_collator_that_leaves_it_out(runs: Runs, longest: int | None) -> None:
    transformers.set_seed(0)
    texts = [torch.randint(5, 100, (4 + at % 8,)).tolist() for at in range(240)]
    sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, intermediate_size=64))

    def example(ids: list[int]) -> dict[str, Any]:
        padding = (longest or 11) - len(ids)  # otherwise the longest text has 11 tokens
        return {
            "input_ids": ids + padding * [0],
            "attention_mask": len(ids) * [1] + padding * [0],
            "labels": ids[0] % 2,
        }

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            "out", num_train_epochs=1, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True
        ),
        train_dataset=[example(ids) for ids in texts],
        callbacks=[profiler(thresholds="padding=0.2")],
    )
    trainer.train()
    found = [finding for finding in runs.report()["findings"] if finding["code"] == "padding"]
    assert len(found) == (longest is not None)
    for finding in found:
        assert finding["evidence"]["padding"] == pytest.approx(1 - 7.5 / 64, abs=0.02)
        assert finding["actions"][0]["text"].startswith(
            "Trainer(..., data_collator=DataCollatorWithPadding(tokenizer))"
        )


def found_in(runs: Runs) -> dict[str, dict[str, Any]]:
    return {finding["code"]: finding for finding in runs.report()["findings"]}


def actions_of(finding: dict[str, Any]) -> list[str]:
    return [action["text"] for action in finding["actions"]]


class KeepsLosses(transformers.Trainer):
    total: Any = 0.0

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        outputs = model(**inputs)
        loss = outputs["loss"]
        self.total += loss
        return (loss, outputs) if return_outputs else loss


class History(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.losses.extend(2000 * [0.5])
        sum(each * each for each in self.losses)


def test_what_only_the_trainer_holds_is_named_with_its_line(runs: Runs) -> None:
    examples = [{"x": torch.randn(8), "labels": torch.randn(())} for _ in range(800)]
    arguments = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "save_strategy": "no", **QUIET}
    KeepsLosses(
        Net(),
        transformers.TrainingArguments("out", **arguments),
        train_dataset=examples,
        callbacks=[History(), profiler()],
    ).train()
    found, lines = found_in(runs), Path(__file__).read_text().splitlines()
    at = 1 + lines.index("        self.total += loss")
    assert found["kept-graphs"]["evidence"]["lines"] == f"test_hugging_face.py:{at}"
    growing = found["growing-work"]["evidence"]
    assert growing["variable"] == "History.losses"
    assert growing["lines"].endswith("History.on_step_end")


class Rotation(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.matrix_exp(weight - weight.T)


class Turned(torch.nn.Module):
    """Applies one weight several times, which is computed each time."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.nn.Linear(16, 16)
        torch.nn.utils.parametrize.register_parametrization(self.turn, "weight", Rotation())

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        for _ in range(4):
            x = torch.tanh(self.turn(x))
        return {"loss": (x.sum(1) - labels).square().mean()}


def test_checkpoints_of_short_epochs_and_a_weight_computed_again_have_arguments_to_type(runs: Runs) -> None:
    examples = [{"x": torch.randn(16), "labels": torch.randn(())} for _ in range(4)]
    arguments = {"num_train_epochs": 150, "per_device_train_batch_size": 4, "save_strategy": "epoch", **QUIET}
    transformers.Trainer(
        Turned(),
        transformers.TrainingArguments("out", **arguments),
        train_dataset=examples,
        callbacks=[profiler()],
    ).train()
    found = found_in(runs)
    assert actions_of(found["short-epochs"]) == [
        'TrainingArguments(..., save_strategy="steps", save_steps=10)',
        "make epochs 10 times as long: train_dataset=ConcatDataset(10 * [data])",
    ]
    assert found["computed-weights"]["evidence"]["calls"] == 4


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A stream of samples that each worker yields all of."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for at in range(1600):
            time.sleep(0.0005)
            yield {"x": torch.full((8,), at / 1600), "labels": torch.zeros(())}


def test_a_stream_that_is_skipped_and_repeated_in_workers_is_named(runs: Runs) -> None:
    def train_to(steps: int, **resumed: Any) -> None:
        arguments = {"max_steps": steps, "per_device_train_batch_size": 4, "save_steps": 40, **QUIET}
        transformers.Trainer(
            Net(),
            transformers.TrainingArguments("out", dataloader_num_workers=2, **arguments),
            train_dataset=Stream(),
            # Sampled lines say that it is a Trainer: half a second needs more than the usual ones.
            callbacks=[profiler(thresholds="fetched-before-training=0.01", sample_hz=500)] if resumed else [],
        ).train(**resumed)

    train_to(40)
    train_to(240, resume_from_checkpoint=True)
    found = found_in(runs)
    assert actions_of(found["fetched-before-training"])[0] == "TrainingArguments(..., ignore_data_skip=True)"
    assert (found["stream-repeated"]["evidence"]["times"], found["stream-repeated"]["evidence"]["workers"]) == (2, 2)
