"""The callback for Keras on torch."""

import os
from typing import Any

import pytest
import torch

from tests.integrations.trainers.conftest import Runs
from training_profiler.base.errors import SettingsError

pytestmark = [pytest.mark.integrations, pytest.mark.xdist_group("keras")]  # its import takes seconds
EPOCHS, BATCHES = 2, 6


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


def profiler(**settings: Any) -> Any:
    from training_profiler.integrations.keras import TrainingProfilerCallback

    return TrainingProfilerCallback(**settings)


def make_model(keras: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def fit(keras: Any, *callbacks: Any) -> Any:
    """Train a small model on arrays, with validation; return what ``fit`` returns."""
    model = make_model(keras)
    x, y = torch.randn(8 * BATCHES, 8).numpy(), torch.randn(8 * BATCHES, 1).numpy()
    history = model.fit(
        x, y, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=list(callbacks), validation_data=(x[:16], y[:16])
    )
    assert int(model.optimizer.iterations) == EPOCHS * BATCHES
    return history.history


def test_training_is_a_run_of_its_own_and_stays_the_same(runs: Runs, keras: Any) -> None:
    plain = fit(keras)
    profiled = fit(keras, profiler(log_metrics=False))
    assert profiled == plain
    report = runs.report()
    assert report["steps"] == EPOCHS * BATCHES
    assert report["sections"]["backward_pass"]["count"] == EPOCHS * BATCHES
    assert report["throughput"]["samples_per_s"] > 0
    assert not any("steps were inferred" in note for note in report["health"]["notes"])


def test_callbacks_are_sections_by_their_hook(runs: Runs, keras: Any) -> None:
    class Older(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    before = keras.callbacks.CallbackList.on_epoch_end, keras.Model.save
    own = (keras.callbacks.ModelCheckpoint("model.keras"), keras.callbacks.CSVLogger("log.csv"))
    fit(keras, profiler(), *own, Older(), keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: None))
    counts = {name: section["count"] for name, section in runs.report()["sections"].items()}
    assert counts["callback on_train_batch_end"] == EPOCHS * BATCHES
    assert counts["callback on_epoch_begin"] == EPOCHS
    assert counts["logging"] == EPOCHS
    assert counts["checkpointing"] == EPOCHS
    assert not any("test" in name or "begin" in name.replace("epoch_begin", "") for name in counts)
    assert "Still inside" not in runs.text()
    assert (keras.callbacks.CallbackList.on_epoch_end, keras.Model.save) == before


def test_under_run_nothing_is_counted_twice(runs: Runs, keras: Any) -> None:
    runs.profile_as_run()
    fit(keras, profiler())
    assert runs.reports() == []  # the run belongs to the process
    runs.end()
    report = runs.report()
    assert report["steps"] == EPOCHS * BATCHES
    assert report["sections"]["backward_pass"]["count"] == EPOCHS * BATCHES


def test_variable_that_says_off_switches_the_callback_off(runs: Runs, keras: Any, off: None) -> None:
    fit(keras, profiler())
    assert not runs.folder.exists()


def test_logs_of_an_epoch_have_the_rates(runs: Runs, keras: Any) -> None:
    history = fit(keras, profiler())
    assert len(history["profiling/samples_per_second"]) == len(history["loss"]) == EPOCHS
    assert set(history) - set(fit(keras)) == {
        "profiling/batch_time_avg",
        "profiling/batches_per_second",
        "profiling/steps_per_second",
        "profiling/samples_per_second",
    }


def test_step_is_an_update_after_several_batches(runs: Runs, keras: Any) -> None:
    model = make_model(keras)
    model.compile(keras.optimizers.Adam(gradient_accumulation_steps=3), "mse")
    x, y = torch.randn(8 * BATCHES, 8).numpy(), torch.randn(8 * BATCHES, 1).numpy()
    model.fit(x, y, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=[profiler()])
    assert runs.report()["steps"] == EPOCHS * BATCHES // 3


def test_batches_end_beside_the_training_as_without_the_callback(keras: Any) -> None:
    plain, profiled = keras.callbacks.CallbackList([]), keras.callbacks.CallbackList([profiler()])
    assert (profiled._async_train, profiled._async_test) == (plain._async_train, plain._async_test) == (True, True)


def test_another_backend_is_an_error_at_once(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(SettingsError, match="its backend is 'jax'"):
        profiler()


def test_evaluation_alone_is_a_run(runs: Runs, keras: Any) -> None:
    model = make_model(keras)
    x, y = torch.randn(24, 8).numpy(), torch.randn(24, 1).numpy()
    model.evaluate(x, y, batch_size=8, verbose=0, callbacks=[profiler()])
    report = runs.report()
    assert report["steps"] == 0
    assert any(name.startswith("validation_epoch") for name in report["sections"])


def test_ctrl_c_is_raised_as_without_the_callback_and_the_next_training_is_a_run(runs: Runs, keras: Any) -> None:
    def interrupt(epoch: int, logs: Any) -> None:
        raise KeyboardInterrupt("as planned")

    with pytest.raises(KeyboardInterrupt, match="as planned"):
        fit(keras, profiler(), keras.callbacks.LambdaCallback(on_epoch_end=interrupt))
    fit(keras, profiler())
    assert [report["steps"] for report in runs.reports()] == [BATCHES, EPOCHS * BATCHES]
